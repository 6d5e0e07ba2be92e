"""Judges a report by a policy; each rule yields a finding for every row that it judges."""

import math
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from gradaudit.audits.gathering import members
from gradaudit.core.text import listed
from gradaudit.errors import UsageError
from gradaudit.judging.answered import of_unknown_kinds, question_of, unanswered
from gradaudit.judging.case import Case, ShareBeyond, correct, ends_of
from gradaudit.judging.policy import (
    DEFAULT,
    Ignore,
    Policy,
    Rule,
    claims,
    known_metrics,
    layer_matches,
    read_policy,
)
from gradaudit.judging.verdict import (
    ANSWERED,
    FAIL_ON,
    KNOWN,
    NO_RULE,
    UNJUDGED,
    WAIVED,
    answered_subjects,
    expected_subjects,
    is_scan,
    missing_evidence,
    verdict,
)
from gradaudit.measurement import CLOSEST, TOO_FEW, dict_of, text_of, texts_of
from gradaudit.report import Finding, Key, Measurement, Outcome, Report, Unclear, estimate

_EXCUSED = ("failed", "unclear")
"""Outcomes that are excused where the baseline has one of them."""
_SETTLED = ("passed", "not-applicable")
TOLERANCE = 0.01
"""Share of its size, or of its distance from the limit, by which a known value may be worse."""
CLOSE = 0.7
"""Similarity from which on a known name is suggested for an unknown one."""
MAX_COMPARISONS = 5_000_000
"""Largest number of rows that a policy's globs are held against, over all of them."""
_CONDITIONS = {"defenses": "defenses", "hidden": "hidden layers"}
_REMEDY: dict[str | None, str] = {"deployed": ": describe your federation with --deployment FILE"}
_NO_EVIDENCE = "no evidence: rules of level error ask about {}, and judged no row: {}"
_UNASKED = "no evidence about {}: no rule of level error judged a row"
Met = list[tuple[int, Rule, list[Measurement]]]


def excuse_known(judged: Report, baseline: Report) -> Report:
    """Returns the judged report with findings excused that the judged baseline has too.

    A failure is ``known`` where the same row failed the same rule in the baseline and is no worse
    than it was: the intervals, or what the values are known to, overlap or the new one lies on the
    better side. Where neither row has one, it may be worse by ``TOLERANCE`` of the baseline's size
    or of its distance from the limit, whichever is larger.
    What is unclear passes, and stays unclear, where it is no worse. Rows that could not be measured
    are never known: what nobody looked at is excused by nothing.
    """
    earlier = {(x.rule, x.key): x.outcome for x in baseline.findings if x.outcome in ANSWERED}
    before, now = baseline.by_key(), judged.by_key()
    findings = []
    for finding in judged.findings:
        outcome = earlier.get((finding.rule, finding.key))
        if finding.outcome in _EXCUSED and outcome is not None:
            row, was = now[finding.key], before[finding.key]
            bounded = row.known_to is not None or was.known_to is not None or CLOSEST in row.details
            unclear = finding.outcome == "unclear"
            comparable = (outcome != "passed" or bounded) if unclear else outcome == "failed"
            if comparable and not worse(row, was, finding):
                words = f"{finding.message}{KNOWN}{estimate(was)} in the baseline"
                excused = {"unclear": "pass"} if unclear else {"outcome": "known"}
                finding = finding.model_copy(update={**excused, "message": words})
        findings.append(finding)
    return judged.model_copy(update={"findings": findings})


def worse(now: Measurement, before: Measurement, rule: Finding) -> bool:
    """Whether a row is worse than the earlier one, in the direction of the finding's limit."""
    value, was = now.number, before.number
    limit = rule.limit
    if value is None or was is None or limit is None:
        return True
    sign = 1 if rule.min is None else -1
    shares = [ShareBeyond.of(row, sign, limit) for row in (now, before)]
    if shares[0] and shares[1]:
        return shares[0].interval[0] > shares[1].interval[1]
    room = 0.0
    if now.known_to is None and before.known_to is None and math.isfinite(was):
        room = TOLERANCE * max(abs(was), abs(was - limit))
    low, high = _known(now, value)
    least, most = _known(before, was)
    return high < least - room if rule.max is None else low > most + room


def _known(row: Measurement, value: float) -> tuple[float, float]:
    return (value, value) if row.known_to is None or math.isinf(value) else row.known_to


def refuse_another_model(report: Report, baseline: Report) -> None:
    """Refuse a baseline that shares no layer with the report.

    Raises:
        UsageError: the two have no layer in common.
    """
    names, others = ({layer.name for layer in r.target.layers} for r in (report, baseline))
    if names and others and not names & others:
        raise UsageError(
            f"the baseline audits another model ({baseline.target.model}): "
            f"it shares no layer with {report.target.model}"
        )


def differences(report: Report, earlier: Report) -> list[str]:
    """Returns the differences between two reports' layers and plans, one sentence each."""
    layers, before = ({layer.name: layer for layer in r.target.layers} for r in (report, earlier))
    notes = []
    if new := [name for name in layers if name not in before]:
        notes.append(f"does not have the layers {', '.join(new)}")
    if gone := [name for name in before if name not in layers]:
        notes.append(f"has more layers: {', '.join(gone)}")
    if changed := [
        name
        for name in layers.keys() & before.keys()
        if (layers[name].kind, layers[name].parameters)
        != (before[name].kind, before[name].parameters)
    ]:
        notes.append(f"has other kinds or sizes of the layers {', '.join(sorted(changed))}")
    for key, noun in _CONDITIONS.items():
        here, there = (texts_of(r.provenance.get(key)) for r in (report, earlier))
        if here != there:
            notes.append(f"has other {noun}: {listed(there) or 'none'} → {listed(here) or 'none'}")
    return [*notes, *_other_plan(report, earlier)]


def _other_plan(report: Report, earlier: Report) -> list[str]:
    """Names the audits that two scans planned differently; empty where their plans are one."""
    plans = [dict_of(each.provenance.get("plan")) for each in (report, earlier)]
    hashes = {text_of(plan.get("hash")) for plan in plans}
    if "" in hashes or len(hashes) == 1:
        return []
    now, before = (
        {
            name: [{**dict_of(facts), "work": None}, each.options.get(name)]
            for name, facts in dict_of(plan.get("audits")).items()
        }
        for plan, each in zip(plans, (report, earlier), strict=True)
    )
    changed = sorted(n for n in now.keys() | before.keys() if now.get(n) != before.get(n))
    return [f"has another plan: other presets, records, layers or options of {', '.join(changed)}"]


def gate(
    report: Report,
    policy: Policy | str | Path | None = None,
    *,
    baseline: Report | str | Path | None = None,
    today: date | None = None,
    strict: bool = False,
    fail_on: Literal["error", "warning"] = "error",
) -> Report:
    """Returns a copy with the findings of every rule, and the policy in its provenance.

    A row fails where its whole interval is beyond the limit, passes where all of it is within, and
    is unclear in between; without an interval its value is judged. Infinity is beyond every
    ``max``; a row of a linear adversary is never within its limit. A headline that stands for
    several runs is judged by each of them. A rule fails where one of its globs meets no row, or a
    row that failed or was left out for lack of time, or a skipped one of a metric that is a
    guarantee; another skipped row is not applicable, nor is a glob that matches hidden layers
    alone. A report in which nothing was measured, or that was interrupted, fails whatever the
    rules, and so does a policy without any, and one whose error rules ask about a named attribute,
    or about attacks, where none of their rows could be judged.

    Args:
        report: what was measured; findings it holds already are replaced.
        policy: the rules, or the file of them; the default policy without one. A claimed epsilon
            is an error rule beside them, and in place of a default limit.
        strict: let what is unclear fail, whatever the policy makes of it.
        fail_on: ``warning`` lets rules of that level fail the report, too.
        baseline: an earlier report, or its file, judged by the same policy; rows that were beyond
            the same limit there, and are no worse now, are ``known``.
        today: the day that ``until`` is compared with; the current day in UTC without it.

    Raises:
        UsageError: a file cannot be read, or is no policy or report.
    """
    policy = read_policy(policy) if isinstance(policy, str | Path) else policy
    baseline = Report.from_file(baseline) if isinstance(baseline, str | Path) else baseline
    policy = policy or Policy(name=DEFAULT, extends="default")
    policy = policy.strict() if strict else policy
    today = today or datetime.now(UTC).date()
    named = {k: v for k, v in report.provenance.items() if k != UNJUDGED}
    named |= {FAIL_ON: fail_on} if fail_on == "warning" else {}
    judged = _judged(report.model_copy(update={"provenance": named}), policy, today)
    summary: dict[str, JsonValue] = {}
    if baseline is not None:
        before = _judged(baseline, policy, today)
        notes = [*differences(report, baseline), *_uncompared(judged, before)]
        judged = excuse_known(judged, before)
        summary["baseline"] = {
            "absent": _absent(judged, before),
            "notes": [f"the baseline {note}" for note in notes],
        }
    summary["verdict"] = verdict(judged)
    return judged.model_copy(update={"provenance": {**judged.provenance, **summary}})


def beside_limits(report: Report) -> Report:
    """Return a single audit's report with its rows beside default limits, and without a verdict."""
    judged = _judged(report, Policy(name=DEFAULT, extends="default"), datetime.now(UTC).date())
    return judged.model_copy(update={"provenance": {**judged.provenance, "verdict": "measured"}})


def _absent(judged: Report, baseline: Report) -> list[JsonValue]:
    """Returns the baseline's findings about rows that are no longer beyond or near a limit."""
    found = {finding.key for finding in judged.findings if finding.outcome not in _SETTLED}
    return [
        finding.model_dump(mode="json", exclude_defaults=True)
        for finding in baseline.findings
        if finding.outcome in _EXCUSED and finding.key not in found
    ]


def _uncompared(judged: Report, baseline: Report) -> list[str]:
    """Describe the judged rows that the baseline lacks, which it excuses nothing of."""
    rows, others = (
        dict.fromkeys(x.key for x in each.findings if x.outcome in ANSWERED)
        for each in (judged, baseline)
    )
    if not (lacking := [key for key in rows if key not in others]):
        return []
    if len(lacking) == len(rows):
        return ["has no row that a rule judges here: nothing is compared"]
    places = dict.fromkeys(layer or "whole update" for _, layer, _ in lacking)
    return [f"lacks {len(lacking):,} of {len(rows):,} judged rows, in {listed(places)}"]


def _judged(report: Report, written: Policy, today: date) -> Report:
    policy = written.in_force(report)
    _expect_few_comparisons(report, policy)
    met: Met = [(i, rule, _rows_of(rule, report)) for i, rule in enumerate(policy.rules, start=1)]
    untried = {} if UNJUDGED in report.provenance else unanswered(report)
    # a single audit is judged by rules of one's own for itself, where every method could be run
    whole = is_scan(report) or len(report.options) > 1 or of_unknown_kinds(report)
    asked = 0 if whole else len(written.rules)
    held = report.data.get("records")
    records = held if isinstance(held, int) else None
    cases = [
        Case(
            *(number, rule, row, ends_of(row, value), *_ignores(policy, row, today)),
            unanswered=untried.get(question_of(row), "") if number > asked else "",
            available=records,
        )
        for number, rule, rows in met
        for row in rows
        if (value := row.number) is not None
    ]
    verdicts = {
        (case.number, case.row.key): _verdict(case, policy)
        for case in (correct(cases) if policy.family == "holm" else cases)
    }
    judged_by: dict[str, JsonValue] = {
        "name": policy.name,
        "sha256": written.in_force(report, every=True).sha256,
        "own_rules": len(written.rules),
        "claims": len(claims(report)),
        "rules": len(policy.rules),
        "unmatched": [*_unmatched(written, met), *_unneeded(written, verdicts.values())],
    }
    judged = report.model_copy(
        update={
            "provenance": {**report.provenance, "policy": judged_by},
            "findings": _findings(report, met, verdicts),
        }
    )
    if UNJUDGED in report.provenance or any(finding.rule == 0 for finding in judged.findings):
        return judged
    lacking = missing_evidence(judged)
    missing = [_nothing(_NO_EVIDENCE.format(*each)) for each in lacking.items()]
    missing += [
        _nothing(_UNASKED.format(each)) for each in _unasked(judged, written) if each not in lacking
    ]
    return judged.model_copy(update={"findings": [*missing, *judged.findings]})


def _unasked(judged: Report, written: Policy) -> list[str]:
    """Name what a scan has to answer by the default policy, and no rule judged a row about."""
    if written.extends is None or not is_scan(judged):
        return []
    answered = answered_subjects(judged)
    return [subject for subject in expected_subjects(judged) if subject not in answered]


def _unmatched(policy: Policy, met: Met) -> list[JsonValue]:
    """Describe the exceptions that cover no row of any rule."""
    places = {(row.id, row.layer) for _, _, rows in met for row in rows}
    ids = sorted({metric for metric, _ in places})
    return [
        f"ignore {i} ({each.metric} in {', '.join(each.layers)}) matches no row that a rule judges"
        f"{'' if each.metric in ids else _suggestion(each.metric, ids)}"
        for i, each in enumerate(policy.ignore, start=1)
        if not any(each.covers(*place) for place in places)
    ]


def _unneeded(policy: Policy, findings: Collection[Finding]) -> list[JsonValue]:
    """Describe the exceptions that cover rows, all of which are within their limits."""
    return [
        f"ignore {i} ({each.metric} in {', '.join(each.layers)}) is not needed: every row that it "
        "covers is within its limit"
        for i, each in enumerate(policy.ignore, start=1)
        if (covered := [x.outcome for x in findings if each.covers(x.metric, x.layer)])
        if set(covered) == {"passed"}
    ]


def _rows_of(rule: Rule, report: Report) -> list[Measurement]:
    met = [
        row
        for row in _candidates(rule, report)
        if rule.judges(row) and any(layer_matches(row.layer, glob) for glob in rule.layers)
    ]
    return [member for row in met for member in members(row, report) if rule.heeds(member)]


def _candidates(rule: Rule, report: Report) -> Sequence[Measurement]:
    """Returns the rows of the rule's metric, or all where it is a glob."""
    places = report.rows_by_place
    return [*chain(*places[rule.metric].values())] if rule.metric in places else report.rows


def _expect_few_comparisons(report: Report, policy: Policy) -> None:
    compared = [(each.layers, _candidates(each, report)) for each in policy.rules]
    compared += [(each.layers, report.rows) for each in policy.ignore]
    if (count := sum(len(globs) * len(rows) for globs, rows in compared)) > MAX_COMPARISONS:
        raise UsageError(
            f"{policy.name}: its rules and exceptions ask about {count:,} rows of this report, "
            f"more than {MAX_COMPARISONS:,}; name metrics in full, and layers by fewer globs"
        )


def _ignores(policy: Policy, row: Measurement, today: date) -> tuple[Ignore | None, Ignore | None]:
    """Returns the first exception for the row that is in force, and the first that has expired."""
    covering = [ignore for ignore in policy.ignore if ignore.covers(row.id, row.layer)]
    lapsed = [ignore for ignore in covering if ignore.until and ignore.until < today]
    in_force = [ignore for ignore in covering if ignore not in lapsed]
    return next(iter(in_force), None), next(iter(lapsed), None)


def _findings(report: Report, met: Met, verdicts: dict[tuple[int, Key], Finding]) -> list[Finding]:
    message = "" if met else NO_RULE
    if not any(row.status == "measured" for row in report.rows):
        message = "no audit measured a number"
    elif report.interrupted:
        message = "this report is incomplete: its command did not end"
    findings = [_nothing(message)] if message else []
    for number, rule, rows in met:
        for glob in rule.layers:
            if not any(layer_matches(row.layer, glob) for row in rows):
                outcome, words = _unmet(rule, glob, report)
                findings.append(_finding(number, rule, None, outcome, words))
        for row in rows:
            found = verdicts.get((number, row.key))
            findings.append(found or _finding(number, rule, row, *_without_value(row)))
    return findings


def _nothing(message: str) -> Finding:
    """Returns a finding that a report lacks what every policy demands, or what this one demands."""
    return Finding(rule=0, metric="*", level="error", outcome="unmeasured", message=message)


def _verdict(case: Case, policy: Policy) -> Finding:
    """Returns the finding of a case; exceptions accept what is failed or unclear.

    What becomes of an unclear row is the rule's or the policy's word; unset, a guarantee fails.
    """
    words: str = case.words
    outcome: Outcome = case.outcome
    more: dict[str, Any] = {"ends": case.ends} if case.corrected else {}
    if outcome == "unclear":
        guarded = "unclear" not in policy.model_fields_set and _promised(case.row)
        effect: Unclear = case.rule.unclear or ("fail" if guarded else policy.unclear)
        more |= {"unclear": effect, "times": case.times}
    if outcome != "passed" and case.ignore:
        until = f" until {case.ignore.until}" if case.ignore.until else ""
        words += f"{WAIVED[0]}{until}: {case.ignore.reason}"
        if outcome == "unclear":
            more["unclear"] = "pass"
        else:
            outcome = "ignored"
    elif outcome != "passed" and case.lapsed:
        words += f"{WAIVED[1]}{case.lapsed.lapses}: {case.lapsed.reason}"
    return _finding(case.number, case.rule, case.row, outcome, words, **more)


def _promised(row: Measurement) -> bool:
    metric = known_metrics().get(row.id)
    return metric is not None and metric.guarantee


def _without_value(row: Measurement) -> tuple[Outcome, str]:
    metric = known_metrics().get(row.id)
    of_attribute = metric is not None and metric.question == "attribute"
    short = of_attribute and row.details.get(TOO_FEW) is True
    if row.status == "skipped" and not (row.left_out or short or _promised(row)):
        return "not-applicable", f"not applicable: {row.reason}"
    return "unmeasured", f"could not be measured: {row.reason}"


def _finding(
    number: int, rule: Rule, row: Measurement | None, outcome: Outcome, words: str, **more: Any
) -> Finding:
    """A rule's finding about a row, or about a row that is missing."""
    return Finding(
        rule=number,
        metric=row.id if row else rule.metric,
        layer=row.layer if row else None,
        variant=row.variant if row else {},
        level=rule.level,
        max=rule.max,
        min=rule.min,
        outcome=outcome,
        message=words,
        **more,
    )


def _unmet(rule: Rule, glob: str, report: Report) -> tuple[Outcome, str]:
    """Returns outcome and reason of a rule whose glob matches no layer with a row."""
    shown = [layer.name for layer in report.target.layers]
    kept = texts_of(report.provenance.get("hidden"))
    fits = partial(layer_matches, glob=glob)
    if any(map(fits, kept)) and not any(map(fits, [*shown, None])):
        return "not-applicable", f"not applicable: what matches {glob!r} is hidden, never shared"
    return "unmeasured", _why_unmet(rule, glob, report)


def _why_unmet(rule: Rule, glob: str, report: Report) -> str:
    candidates = [row for row in report.rows if rule.judges(row)]
    if candidates and not any(rule.heeds(row) for row in candidates):
        return f"no row was measured in the setting {rule.setting!r}{_REMEDY.get(rule.setting, '')}"
    if candidates:
        layers = sorted({row.layer or "" for row in candidates})
        words = f"no row of a layer that matches {glob!r}{_suggestion(glob, layers)}"
        reasons = {row.reason for row in candidates}
        return f"{words}: {reasons.pop()}" if len(reasons) == 1 and all(reasons) else words
    ids = sorted({row.id for row in report.rows})
    if rule.metric in ids:
        return "no row of this variant" if rule.variant else "no headline row; name a variant"
    meant = "" if rule.metric in known_metrics() else _suggestion(rule.metric, ids)
    return f"no row of this metric{meant}"


def _suggestion(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=CLOSE)
    return f"; did you mean {close[0]!r}?" if close else ""
