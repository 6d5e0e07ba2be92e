"""One check for every interval that claims to cover a truth."""

from collections.abc import Iterable, Sequence

from scipy import stats


def covered(intervals: Iterable[Sequence[float]], truth: float) -> int:
    """How many of the intervals hold the truth."""
    return sum(low <= truth <= high for low, high in intervals)


def assert_covers(
    intervals: Sequence[Sequence[float]], truth: float, confidence: float, doubt: float = 1e-4
) -> None:
    """Fail if so few intervals hold the truth that chance explains it with less than ``doubt``."""
    hits = covered(intervals, truth)
    fewest = int(stats.binom.ppf(doubt, len(intervals), confidence))
    assert hits >= fewest, f"{hits} of {len(intervals)} intervals cover, {fewest} are expected"
