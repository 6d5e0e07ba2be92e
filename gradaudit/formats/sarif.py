"""SARIF 2.1.0 for code scanning: one result for each row that is not within its limit.

What is beyond a limit, or could not be measured, is of the kind ``fail`` with its rule's level;
what is unclear is ``open`` ("insufficient information to decide", 3.27.9) and has no level, unless
the policy lets it fail.

Code scanning shows no logical locations and tells results of one file apart by the fingerprint
``primaryLocationLineHash``, so the layer's name stands in the message and in the fingerprint.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from urllib.parse import quote

from pydantic import JsonValue

from gradaudit.formats.base import Format
from gradaudit.judging import Policy, known_metrics, says
from gradaudit.judging.risk import BEYOND, OPEN, why, with_findings
from gradaudit.report import Finding, Report
from gradaudit.text import printable, variant_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
TOLD = BEYOND | OPEN
NOTHING_MEASURED = "report.incomplete"

Json = dict[str, JsonValue]


class Sarif(Format):
    """Findings for code scanning."""

    name = "sarif"
    suffix = ".sarif"
    summary = "SARIF 2.1.0, for code scanning"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The findings as one SARIF run."""
        findings = [f for f in with_findings(report, policy).findings if f.outcome in TOLD]
        rules = list(dict.fromkeys(map(_rule_id, findings)))
        results: list[JsonValue] = [_result(report, finding, rules) for finding in findings]
        driver: Json = {
            "name": _text(report.tool.get("name", "gradaudit")),
            "semanticVersion": _text(report.tool.get("version", "0")),
            "rules": [_rule(name) for name in rules],
        }
        run: Json = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints"}
        document: Json = {
            "$schema": SCHEMA,
            "version": "2.1.0",
            "runs": [{**run, "results": results}],
        }
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rule_id(finding: Finding) -> str:
    return NOTHING_MEASURED if finding.rule == 0 else _text(finding.metric)


def _rule(name: str) -> Json:
    metric = known_metrics().get(name)
    title = metric.title if metric else name
    meaning = (metric.why if metric else "") or title
    return {
        "id": name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": meaning},
        "help": {"text": f"{meaning}. Judged by `gradaudit gate`; `gradaudit list` says more."},
        "properties": {"tags": ["privacy", "security"]},
    }


def _result(report: Report, finding: Finding, rules: Sequence[str]) -> Json:
    rule = _rule_id(finding)
    undecided = says(finding) == "unclear"
    result: Json = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "kind": "open" if undecided else "fail",
        "level": "none" if undecided else finding.level,
        "message": {"text": _message(finding)},
        "locations": [_location(report, finding)],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding)},
    }
    if finding.outcome == "ignored":
        result["suppressions"] = [{"kind": "external", "justification": _text(finding.message)}]
    if finding.outcome == "known":
        result["baselineState"] = "unchanged"
    return result


def _message(finding: Finding) -> str:
    where = f"Layer {finding.layer}" if finding.layer is not None else "The whole model"
    variant = f" ({variant_text(finding.variant)})" if finding.variant else ""
    meaning = why(finding.metric) if finding.outcome in BEYOND else ""
    sentence = f"{where}: {finding.metric}{variant} {finding.message}."
    return _text(f"{sentence} {meaning}".strip())


def _location(report: Report, finding: Finding) -> Json:
    location: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(_artifact(report))},
            "region": {"startLine": 1},
        }
    }
    if finding.layer is not None:
        location["logicalLocations"] = [{"name": _text(finding.layer), "kind": "module"}]
    return location


def _artifact(report: Report) -> str:
    """The file that makes the model, else the checkpoint, else the model's name."""
    if source := re.match(r"(.+\.py):", report.target.model):
        return source[1]
    checkpoints = report.target.checkpoints
    return checkpoints[-1].file if checkpoints else report.target.model


def _fingerprint(finding: Finding) -> str:
    """The same for the same rule and row, whatever the value."""
    key = json.dumps([*finding.key, finding.level, finding.max is None])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _text(value: JsonValue) -> str:
    """Harmless, and without embedded links, which SARIF writes as ``[text](address)``."""
    return printable(str(value), limit=None).replace("](", "] (")
