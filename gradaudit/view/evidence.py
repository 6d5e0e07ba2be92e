"""The number behind a finding against its limit, and what would help or settle it, in words."""

from gradaudit.judging.case import ends_of, would_settle
from gradaudit.judging.policy import known_metrics
from gradaudit.report import Finding, Measurement, estimate
from gradaudit.text import number, variant_text
from gradaudit.view.wording import Place

_WEAK = ", but of a linear adversary alone"


def beyond(finding: Finding, place: Place) -> str:
    """``vinfo.vinfo is above 0.35 in fc1``."""
    side, limit = ("below", finding.min) if finding.max is None else ("above", finding.max)
    return f"{finding.metric} is {side} {limit:.10g} in {place}"


def number_of(finding: Finding, row: Measurement, place: Place) -> str:
    """``vinfo.auroc 0.920 [0.846, 0.994] in fc1, lower end above limit 0.75``."""
    where = f" in {Place((finding.layer,))}" if finding.layer and place.several else ""
    most = finding.max is not None
    limit = f"limit {finding.max if most else finding.min:.10g}"
    value = f"{finding.metric} {estimate(row)}{_played(row)}{where}{_corrected(finding)}"
    if finding.outcome == "unclear":
        inside = _holds(finding, row)
        return f"{value}, " + (
            f"{limit} inside the interval" if inside else f"within {limit}{_WEAK}"
        )
    side = "above" if most else "below"
    if row.interval is None or row.infinite:
        counted = f", n = {row.n:,}" if row.n else ""
        return f"{value}, {side} {limit} (no interval{counted})"
    return f"{value}, {'lower' if most else 'upper'} end {side} {limit}"


def _holds(finding: Finding, row: Measurement) -> bool:
    """Whether the limit lies inside the interval that was judged."""
    limit = finding.min if finding.max is None else finding.max
    low, high = finding.ends or ends_of(row, row.number or 0.0)
    return limit is not None and low <= limit <= high


def _corrected(finding: Finding) -> str:
    """The interval that was judged, where it is not the row's own."""
    if finding.ends is None:
        return ""
    low, high = finding.ends
    return f", corrected to [{number(low)}, {number(high)}]"


def _played(row: Measurement) -> str:
    """The row's variant; of one that only tells audits of one name apart, that name."""
    only = row.variant.keys() == {row.audit}
    words = str(row.variant[row.audit]) if only else variant_text(row.variant)
    return f" ({words})" if words else ""


def helps_of(finding: Finding, row: Measurement, place: Place) -> str:
    """What would bring a value within its limit; of an unclear one, what would tell."""
    if finding.outcome == "unclear":
        return finding_remedy(finding, row)
    known = known_metrics().get(finding.metric)
    some = place.layers and not place.every and not place.whole
    hidden = f"hiding {place} (--hide)" if some else ""
    return ", or ".join(filter(None, (hidden, known.helps if known else "")))


def finding_remedy(finding: Finding, row: Measurement, *, options: bool = True) -> str:
    """What would settle an unclear finding; empty of another."""
    if finding.outcome != "unclear":
        return ""
    return would_settle(row, finding.times, inside=_holds(finding, row), options=options)
