"""A baseline: an earlier report whose failures are known, so that only new or worse ones fail."""

from gradaudit.errors import UsageError
from gradaudit.report import Finding, Measurement, Report
from gradaudit.text import estimate

_EXCUSED = {"failed": ("failed", "unclear"), "unclear": ("unclear",)}
"""What an outcome of the baseline excuses."""
TOLERANCE = 0.01
"""Share by which a value may move before it is worse, where the baseline has no interval."""


def excuse_known(judged: Report, baseline: Report) -> Report:
    """The judged report, where what the judged baseline had too is excused.

    A failure is ``known`` where the same rule failed the same row of the baseline, and the value
    now is no worse than it was: not beyond the unfavourable end of the baseline's interval, or,
    where the baseline has none, not beyond its value by more than ``TOLERANCE`` of it. What is
    unclear passes, and stays unclear, where it was unclear or failed in the baseline and is no
    worse. Rows that could not be measured are never known: what nobody looked at is excused by
    nothing.
    """
    earlier = {
        (finding.rule, finding.key): _EXCUSED[finding.outcome]
        for finding in baseline.findings
        if finding.outcome in _EXCUSED
    }
    before, now = baseline.by_key(), judged.by_key()
    findings = [
        _known(finding, before[finding.key])
        if finding.outcome in earlier.get((finding.rule, finding.key), ())
        and not worse(now[finding.key], before[finding.key], upwards=finding.max is not None)
        else finding
        for finding in judged.findings
    ]
    return judged.model_copy(update={"findings": findings})


def worse(now: Measurement, before: Measurement, *, upwards: bool) -> bool:
    """Whether a measured row has moved beyond what the earlier one allows.

    Args:
        now: the row of today.
        before: the same row of the baseline.
        upwards: whether larger values are worse.
    """
    value, was = now.number, before.number
    if value is None or was is None:
        return True
    if before.interval is None or before.infinite:
        allowed = was + abs(was) * TOLERANCE * (1 if upwards else -1)
    else:
        allowed = before.interval[1 if upwards else 0]
    return value > allowed if upwards else value < allowed


def refuse_another_model(report: Report, baseline: Report) -> None:
    """Check that a baseline is about the same model, by the names of its layers.

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
    """What sets an earlier report's layers apart from a report's, one sentence each."""
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
    return notes


def _known(finding: Finding, before: Measurement) -> Finding:
    words = f"{finding.message}; known: {estimate(before)} in the baseline"
    excused = {"unclear": "pass"} if finding.outcome == "unclear" else {"outcome": "known"}
    return finding.model_copy(update={**excused, "message": words})
