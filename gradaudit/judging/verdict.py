"""The verdict on a judged report: one of three words, and whether the gate fails it."""

from collections.abc import Sequence
from typing import Literal

from gradaudit.judging.policy import default_policy, known_metrics, proxies
from gradaudit.measurement import dict_of, texts_of
from gradaudit.report import Finding, Key, Report

Word = Literal["passed", "failed", "undecided", "measured"]
ANSWERED = frozenset({"passed", "failed", "unclear", "ignored", "known"})
"""Outcomes of rows with a value, which a rule could judge."""
UNJUDGED = "unjudged"
"""Provenance of a single audit that was run without a policy: its report states no verdict."""
KNOWN = "; known: "
"""Words in a message before the baseline's value of the row."""
WAIVED = ("; ignored", "; no longer ignored since ")
"""Words in a message before the day and the reason of an exception, in force or expired."""
FAIL_ON = "fail_on"
"""Provenance of a report that rules of level warning fail, too."""
ATTACK = "attack"
"""The ``audit`` of the rows of every attack."""


def verdict(judged: Report) -> Word:
    """Returns the verdict on a judged report as one word.

    ``failed``: a rule of level error is shown, with the whole interval of a row beyond its limit;
    or one of level warning, where the gate is to fail on these.
    ``passed``: every row that an error rule judges lies within its limit, or the policy accepts it
    (an exception, a baseline, ``unclear: pass``). ``undecided``: anything else. ``measured``:
    no policy judged the report, as none was named for a single audit.
    """
    if not judged.findings or judged.provenance.get(UNJUDGED):
        return "measured"
    levels = failing_levels(judged)
    if any(finding.level in levels and finding.outcome == "failed" for finding in judged.findings):
        return "failed"
    return "undecided" if open_findings(judged) or not _answered(judged) else "passed"


def passed(judged: Report) -> bool:
    """Whether the verdict is ``passed``; False for ``undecided`` too.

    ``fails`` says whether the gate ends with exit status 1, which most undecided reports do not.
    """
    return verdict(judged) == "passed"


def fails(judged: Report) -> bool:
    """Whether the gate fails a judged report, so that its exit status is 1.

    It does where a finding says ``error``: an error rule is shown, could not be measured, is
    unclear where the policy lets that fail, or the evidence for it is missing.
    """
    levels = failing_levels(judged)
    return not judged.findings or any(finding.says in levels for finding in judged.findings)


NO_RULE = "the policy has no rule for what this report holds"


def evidence_lacking(judged: Report) -> list[str]:
    """Return a sentence for each thing that every policy demands, or error rules ask in vain."""
    if judged.provenance.get(UNJUDGED):
        return []
    return [finding.message for finding in judged.findings if finding.rule == 0]


def failing_levels(judged: Report) -> tuple[str, ...]:
    """Return the levels of rules that fail the gate."""
    return ("error", "warning") if judged.provenance.get(FAIL_ON) == "warning" else ("error",)


def open_findings(judged: Report) -> list[Finding]:
    """Returns the findings of error rules that leave the verdict undecided."""
    return [
        finding
        for finding in judged.findings
        if finding.level in failing_levels(judged)
        and (finding.outcome == "unmeasured" or finding.unclear in ("warn", "fail"))
    ]


def accepted(judged: Report) -> list[Finding]:
    """Return findings of error rules beyond or near their limit that the policy accepts."""
    return [
        finding
        for finding in judged.findings
        if finding.level == "error"
        and (finding.outcome == "ignored" or finding.unclear == "pass")
        and not is_known(finding)
    ]


def known_rows(judged: Report) -> set[Key]:
    """Return the rows that the baseline has too, and that no rule finds worse than there."""
    open_ = ("error", "warning", "unclear")
    others = {x.key for x in judged.findings if x.says in open_ and not is_known(x)}
    return {x.key for x in judged.findings if is_known(x)} - others


def is_known(finding: Finding) -> bool:
    """Whether the baseline has the finding too, and it is no worse than there."""
    return finding.outcome == "known" or KNOWN in finding.message


def notes(judged: Report) -> list[str]:
    """Return what the policy and the baseline say without effect on this report."""
    policy, baseline = (dict_of(judged.provenance.get(key)) for key in ("policy", "baseline"))
    return [*texts_of(policy.get("unmatched")), *texts_of(baseline.get("notes"))]


def rule_name(number: int, judged: Report) -> str:
    """Name a rule by its place in the policy file, or by what set its limit."""
    policy = dict_of(judged.provenance.get("policy"))
    own, claimed, every = (policy.get(key) for key in ("own_rules", "claims", "rules"))
    if not (isinstance(own, int) and isinstance(claimed, int) and isinstance(every, int)):
        return f"rule {number}"
    if number <= own:
        return f"rule {number}"
    return "claim" if number > every - claimed else "default policy"


def missing_evidence(judged: Report) -> dict[str, str]:
    """Returns subjects of error rules without any evidence, each with the reason.

    A question about a named attribute, and one about attacks, is asked in vain where every row
    that the error rules on it meet is skipped as not applicable. Layers that are never shared are
    none of these: nothing of them can be read.
    """
    rows = judged.by_key()
    asked: dict[str, list[Finding]] = {}
    for finding in judged.findings:
        if finding.level == "error":
            for subject in _subjects(finding.metric, judged):
                asked.setdefault(subject, []).append(finding)
    return {
        subject: rows[findings[0].key].reason or ""
        for subject, findings in asked.items()
        if all(finding.outcome == "not-applicable" and finding.key in rows for finding in findings)
    }


def is_scan(report: Report) -> bool:
    """Whether a report is that of a scan, which has to answer about the attribute and attacks."""
    return "plan" in report.provenance and not report.provenance.keys() & {UNJUDGED, "sweep"}


def expected_subjects(judged: Report) -> list[str]:
    """Name what default rules of level error ask about: the named attribute, and attacks."""
    rules = [rule for rule in default_policy().rules if rule.level == "error"]
    return list(dict.fromkeys(x for rule in rules for x in _subjects(rule.metric, judged)))


def answered_subjects(judged: Report) -> set[str]:
    """Name the subjects of which error rules judged a row, or whose layers are never shared."""
    rows = judged.by_key()
    return {
        subject
        for finding in judged.findings
        if finding.level == "error"
        if finding.outcome in ANSWERED
        or (finding.outcome == "not-applicable" and finding.key not in rows)
        for subject in _subjects(finding.metric, judged)
    }


def _attribute(judged: Report) -> list[str]:
    named = texts_of(judged.provenance.get("attributes"))
    return [f"the attribute {', '.join(named)}"] if named else []


def _subjects(metric: str, judged: Report) -> Sequence[str]:
    """Name what a metric is about: the named attribute, attacks, or neither.

    An indicator such as the sign of a crafted model attacks nothing.
    """
    known = known_metrics().get(metric)
    about = known is not None and known.question == "attribute"
    attacks = metric.startswith(f"{ATTACK}.") and metric not in proxies()
    return [*(_attribute(judged) if about else []), *(["attacks"] if attacks else [])]


def _answered(judged: Report) -> bool:
    """Whether an error rule judged a row; any rule, where the policy has no error rule.

    What matches hidden layers alone is answered: they are never shared.
    """
    errors = [finding for finding in judged.findings if finding.level == "error"]
    rows = judged.by_key()
    return any(
        finding.outcome in ANSWERED
        or (finding.outcome == "not-applicable" and finding.key not in rows)
        for finding in errors or judged.findings
    )
