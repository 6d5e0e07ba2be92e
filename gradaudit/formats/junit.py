"""JUnit XML for CI servers: one test case for each rule and row, a test suite for each metric."""

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from gradaudit.formats.base import Format
from gradaudit.judging import Policy, says
from gradaudit.judging.risk import why, with_findings
from gradaudit.report import Finding, Report
from gradaudit.text import printable, variant_text


class Junit(Format):
    """Findings as test cases."""

    name = "junit"
    suffix = ".xml"
    summary = "JUnit XML, for CI servers"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The findings as test suites.

        A failure is an error rule's; a warning passes and says so on its standard output, and what
        is unclear, not applicable, ignored or known is skipped with the reason. What is unclear
        and may be by the policy passes and says so too.
        """
        findings = with_findings(report, policy).findings
        root = ET.Element("testsuites", {"name": "gradaudit", **_counts(findings)})
        for metric in dict.fromkeys(finding.metric for finding in findings):
            suite = [finding for finding in findings if finding.metric == metric]
            name = printable(metric, limit=None)
            element = ET.SubElement(root, "testsuite", {"name": name, **_counts(suite)})
            for finding in suite:
                _case(element, finding)
        ET.indent(root)
        return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, finding: Finding) -> None:
    words = (finding.metric, _name(finding), finding.message)
    metric, name, message = (printable(text, limit=None) for text in words)
    case = ET.SubElement(suite, "testcase", classname=metric, name=name)
    if says(finding) == "error":
        failure = ET.SubElement(case, "failure", message=message, type=finding.outcome)
        failure.text = f"{message}\n{why(finding.metric)}".strip()
    elif says(finding) == "warning" or finding.unclear == "pass":
        ET.SubElement(case, "system-out").text = f"{says(finding)}: {message}"
    elif _skipped(finding):
        ET.SubElement(case, "skipped", message=message)


def _name(finding: Finding) -> str:
    """``conv1 (round=2) max 10 [rule 1]``."""
    parts = (
        finding.layer or "whole model",
        f"({variant_text(finding.variant)})" if finding.variant else "",
        f"max {finding.max:.10g}" if finding.max is not None else "",
        f"min {finding.min:.10g}" if finding.min is not None else "",
        f"[rule {finding.rule}]",
    )
    return " ".join(part for part in parts if part)


def _counts(findings: Iterable[Finding]) -> dict[str, str]:
    findings = list(findings)
    return {
        "tests": str(len(findings)),
        "failures": str(sum(says(finding) == "error" for finding in findings)),
        "errors": "0",
        "skipped": str(sum(map(_skipped, findings))),
    }


def _skipped(finding: Finding) -> bool:
    return says(finding) not in ("error", "warning", "passed") and finding.unclear != "pass"
