"""SARIF 2.1.0 for code scanning: one result for each row that is not within its limits.

What is beyond a limit, or could not be measured, is of the kind ``fail`` with its rule's level;
what is unclear is ``open`` ("insufficient information to decide", 3.27.9) and has no level, unless
the policy lets it fail.

Code scanning shows no logical locations and distinguishes results of one file by the fingerprint
``primaryLocationLineHash``, so the layer's name stands in the message and in the fingerprint.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from urllib.parse import quote

from pydantic import JsonValue

from gradaudit.audits import Metric
from gradaudit.audits.explaining import Explanation, explain
from gradaudit.core.text import inert_json, printable
from gradaudit.errors import UsageError
from gradaudit.formats.base import Format
from gradaudit.formats.explanation import explanation_markdown
from gradaudit.formats.results import (
    Result,
    artifact,
    by_finding,
    line_of,
    policy_name,
    repository,
    results,
    rule_of,
    summary,
)
from gradaudit.judging import Policy, is_known, known_metrics, notes, verdict
from gradaudit.judging.risk import with_findings
from gradaudit.measurement import dict_of
from gradaudit.report import Finding, Report
from gradaudit.view.facts import preparation
from gradaudit.view.faults import faults_of, job_lines

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
"""Base of the results' locations: the root of the repository."""
_FAULTS = "job.faults"
_SEVERITY = {"error": "8.0", "warning": "5.0"}
"""Scores from which code scanning derives "high" and "medium"."""

Json = dict[str, JsonValue]


class Sarif(Format):
    """Findings for code scanning."""

    name = "sarif"
    suffix = ".sarif"
    aliases = (".sarif.json",)
    summary = "SARIF 2.1.0, for code scanning"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The findings as one SARIF run."""
        judged = with_findings(report, policy)
        document: Json = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(judged)]}
        return inert_json(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _run(judged: Report) -> Json:
    named = [*map(rule_of, (*judged.findings, *(_gone(judged) or ()))), *_rule_of_faults(judged)]
    rules = list(dict.fromkeys(named))
    driver: Json = {
        "name": _text(judged.tool.get("name", "gradaudit")),
        "semanticVersion": _text(judged.tool.get("version", "0")),
        "rules": [_rule(name, judged) for name in rules],
    }
    properties: Json = {
        "verdict": verdict(judged),
        "policy": policy_name(judged),
        "summary": _text(summary(judged)),
    }
    if prepared := preparation(judged):
        properties["data"] = _text(prepared)
    if job := job_lines(judged):
        properties["job"] = [_text(line) for line in job]
    return {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"gradaudit/{quote(judged.target.model, safe='')}/"},
        "invocations": [_invocation(judged)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the repository."}}},
        "columnKind": "unicodeCodePoints",
        "results": [*_results(judged, rules), *_faults(judged, rules)],
        "properties": properties,
    }


def _rule(name: str, judged: Report) -> Json:
    metric = known_metrics().get(name)
    title = metric.title if metric else name
    meaning = (metric.why if metric else "") or title
    explained = _explained(name)
    level = _level(metric, [f for f in judged.findings if rule_of(f) == name])
    rule: Json = {
        "id": name,
        "name": "".join(word.capitalize() for word in re.split(r"[\W_]+", name)),
        "shortDescription": {"text": _text(title)},
        "fullDescription": {"text": _text(meaning)},
        "help": _help(meaning, explained),
        "defaultConfiguration": {"level": level},
        "properties": {"tags": ["privacy", "security"], "security-severity": _SEVERITY[level]},
    }
    return {**rule, "helpUri": explained.address} if explained and explained.address else rule


def _help(meaning: str, explained: Explanation | None) -> Json:
    text: Json = {"text": f"{_text(meaning)}. Judged by `gradaudit gate`."}
    return {**text, "markdown": explanation_markdown(explained, level=2)} if explained else text


def _explained(name: str) -> Explanation | None:
    try:
        return explain(name)
    except UsageError:  # a report of an audit that is not installed here
        return None


def _level(metric: Metric | None, findings: Sequence[Finding]) -> str:
    """Returns the gravest level that the audit declares for its metric, else that of the rules."""
    if metric is not None and (metric.error, metric.warning) != (None, None):
        return "warning" if metric.error is None else "error"
    return "error" if any(finding.level == "error" for finding in findings) else "warning"


def _invocation(report: Report) -> Json:
    ran = report.provenance
    faults = dict_of(ran.get("broken"))
    said: list[tuple[str, str]] = [("error", f"{audit} failed: {x}") for audit, x in faults.items()]
    said += [("note", note) for note in notes(report)]
    invocation: Json = {
        "executionSuccessful": not faults and not report.interrupted,
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": _text(words)}} for level, words in said
        ],
    }
    for key, name in (("started", "startTimeUtc"), ("finished", "endTimeUtc")):
        if isinstance(ran.get(key), str):
            invocation[name] = _text(ran[key]).replace("+00:00", "Z")
    if isinstance(ran.get("command"), str):
        invocation["commandLine"] = _text(ran["command"]).replace(f"{repository()}/", "")
    return invocation


def _result(place: Json, result: Result, rules: Sequence[str], state: str | None) -> Json:
    finding = result.finding
    undecided = result.says == "unclear"
    location: Json = {"physicalLocation": place}
    if finding.layer is not None:
        location["logicalLocations"] = [{"name": _text(finding.layer), "kind": "module"}]
    document: Json = {
        "ruleId": result.rule,
        "ruleIndex": rules.index(result.rule),
        "kind": "open" if undecided else "fail",
        "level": "none" if undecided else finding.level,
        "message": {"text": _text(result.sentence)},
        "locations": [location],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding)},
    }
    if finding.outcome == "ignored":
        document["suppressions"] = [{"kind": "external", "justification": _text(finding.message)}]
    return document if state is None else {**document, "baselineState": state}


def _results(judged: Report, rules: list[str]) -> Iterator[Json]:
    """Yields the worst row of each finding, then the other rows, then those of the baseline alone.

    Where there is a baseline every result is new (or worse), unchanged or absent. None is
    ``updated``: whoever looks at new results alone must see a row that became worse.
    """
    place: Json = {
        "artifactLocation": _artifact(judged),
        "region": {"startLine": line_of(judged)},
    }
    gone, groups = _gone(judged), by_finding(judged)
    for result in [group[0] for group in groups] + [x for group in groups for x in group[1:]]:
        state = "unchanged" if is_known(result.finding) else "new"
        yield _result(place, result, rules, None if gone is None else state)
    for result in results(judged.model_copy(update={"findings": gone or []})):
        yield _result(place, result, rules, "absent")


def _rule_of_faults(judged: Report) -> list[str]:
    return [_FAULTS] if any(faults_of(judged)) else []


def _faults(judged: Report, rules: Sequence[str]) -> Iterator[Json]:
    """Yield the faults of a job, each at its line of the job's file."""
    for fault in faults_of(judged):
        place: Json = {
            "artifactLocation": _location(fault.path),
            "region": {"startLine": fault.line or 1},
        }
        marks = hashlib.sha256(json.dumps([fault.name, fault.task, fault.place]).encode())
        yield {
            "ruleId": _FAULTS,
            "ruleIndex": rules.index(_FAULTS),
            "kind": "fail",
            "level": fault.level,
            "message": {"text": _text(fault.sentence)},
            "locations": [{"physicalLocation": place}],
            "partialFingerprints": {"primaryLocationLineHash": marks.hexdigest()[:32]},
        }


def _gone(judged: Report) -> list[Finding] | None:
    """Returns findings that only the baseline has; None where there was no baseline."""
    absent = dict_of(judged.provenance.get("baseline")).get("absent")
    return [Finding.model_validate(x) for x in absent] if isinstance(absent, list) else None


def _artifact(report: Report) -> Json:
    """Returns the file to look into, relative to the repository's root if it is inside."""
    return _location(artifact(report) or report.target.model)


def _location(file: str) -> Json:
    if PurePath(file).is_absolute():
        return {"uri": PurePath(file).as_uri()}
    return {"uri": quote(PurePath(file).as_posix()), "uriBaseId": ROOT}


def _fingerprint(finding: Finding) -> str:
    """Returns an identifier that a row keeps whatever its value and the rules."""
    return hashlib.sha256(json.dumps(finding.key).encode()).hexdigest()[:32]


def _text(value: JsonValue) -> str:
    """Returns harmless text without embedded links, which SARIF writes as ``[text](address)``."""
    return printable(str(value), limit=None).replace("](", "] (")
