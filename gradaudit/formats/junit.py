"""JUnit XML for CI servers, as Maven Surefire writes it: a test case for each rule and row."""

from collections import Counter
from collections.abc import Collection, Mapping
from xml.etree import ElementTree as ET

from gradaudit.core.text import printable, variant_text
from gradaudit.formats.base import Format
from gradaudit.formats.results import asked, policy_name, summary
from gradaudit.judging import Policy, notes, verdict
from gradaudit.judging.risk import why, with_findings
from gradaudit.judging.verdict import failing_levels
from gradaudit.measurement import dict_of
from gradaudit.report import Finding, Report
from gradaudit.view.facts import preparation
from gradaudit.view.faults import faults_of, job_lines


class Junit(Format):
    """Findings as test cases."""

    name = "junit"
    suffix = ".xml"
    summary = "JUnit XML, for CI servers"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The findings as a test suite, whose cases keep their names when limits change.

        Rows that do not apply have a case where a rule of the user's is about them, and none where
        only a default rule is. A failure is that of a rule whose level fails the report; a warning
        passes otherwise and says so, and what is unclear, not applicable, ignored or known is
        skipped with the reason. What is unclear and may be by the policy passes and says so too. A
        case takes its share of the time that its audit took. Every fault of a job has a case too,
        which passes and says it: what fails of a job is the rule about its faults.
        """
        judged = with_findings(report, policy)
        judged = judged.model_copy(update={"findings": asked(judged)})
        seconds = _seconds(judged)
        total = f"{sum(seconds[_audit(finding)] for finding in judged.findings):.3f}"
        faults = list(faults_of(judged))
        failing = failing_levels(judged)
        counts = _counts(judged, len(faults), failing)
        root = ET.Element("testsuite", {"name": "gradaudit", "time": total, **counts})
        properties = ET.SubElement(root, "properties")
        for name, value in _facts(judged).items():
            ET.SubElement(properties, "property", name=name, value=printable(value, limit=None))
        names = Counter[str]()
        for finding in judged.findings:
            name = _name(finding)
            names[f"{finding.metric} {name}"] += 1
            again = names[f"{finding.metric} {name}"]
            name = name if again == 1 else f"{name} {again}"
            _case(root, finding, name, seconds, failing)
        for fault in faults:
            case = _named(root, fault.heading, "job.faults", 0)
            ET.SubElement(case, "system-out").text = f"{fault.level}: {fault.sentence}"
        ET.indent(root)
        return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _facts(judged: Report) -> dict[str, str]:
    prepared = preparation(judged)
    return {
        "verdict": verdict(judged),
        "policy": policy_name(judged),
        "summary": summary(judged),
        "model": judged.target.model,
        "checkpoints": ", ".join(checkpoint.sha256 for checkpoint in judged.target.checkpoints),
        **({"notes": "; ".join(noted)} if (noted := notes(judged)) else {}),
        **({"data": prepared} if prepared else {}),
        **({"job": "; ".join(job)} if (job := job_lines(judged)) else {}),
    }


def _case(
    suite: ET.Element,
    finding: Finding,
    name: str,
    seconds: Mapping[str, float],
    failing: Collection[str],
) -> None:
    message = printable(finding.message, limit=None)
    case = _named(suite, name, finding.metric, seconds[_audit(finding)])
    if finding.says in failing:
        failure = ET.SubElement(case, "failure", message=message, type=finding.outcome)
        failure.text = f"{message}\n{why(finding.metric)}".strip()
    elif finding.says == "warning" or finding.unclear == "pass":
        ET.SubElement(case, "system-out").text = f"{finding.says}: {message}"
    elif _skipped(finding):
        ET.SubElement(case, "skipped", message=message)


def _named(suite: ET.Element, name: str, group: str, seconds: float) -> ET.Element:
    named = {"name": name, "classname": group}
    shown = {key: printable(text, limit=None) for key, text in named.items()}
    return ET.SubElement(suite, "testcase", {**shown, "time": f"{seconds:.3f}"})


def _name(finding: Finding) -> str:
    """Names a case by place and kind of limit, ``conv1 (round=2) max error``."""
    parts = (
        finding.layer or "whole model",
        f"({variant_text(finding.variant)})" if finding.variant else "",
        "max" if finding.max is not None else "min" if finding.min is not None else "",
        finding.level,
    )
    return " ".join(part for part in parts if part)


def _audit(finding: Finding) -> str:
    return finding.metric.partition(".")[0]


def _seconds(judged: Report) -> Counter[str]:
    cases = Counter(map(_audit, judged.findings))
    shares = Counter[str]()
    for name, taken in dict_of(judged.provenance.get("seconds")).items():
        audit = name.split()[0] if name.split() else ""
        if isinstance(taken, int | float) and cases[audit]:
            shares[audit] += taken / cases[audit]  # type: ignore[assignment]
    return shares


def _counts(judged: Report, faults: int, failing: Collection[str]) -> dict[str, str]:
    findings = judged.findings
    return {
        "tests": str(len(findings) + faults),
        "errors": "0",
        "skipped": str(sum(map(_skipped, findings))),
        "failures": str(sum(finding.says in failing for finding in findings)),
    }


def _skipped(finding: Finding) -> bool:
    return finding.says not in ("error", "warning", "passed") and finding.unclear != "pass"
