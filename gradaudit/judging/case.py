"""A case: one rule that meets one measured row, and which of three verdicts the interval allows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gradaudit.judging.holm import Claim, corrected_ends
from gradaudit.judging.policy import Ignore, Rule, known_metrics
from gradaudit.report import Measurement
from gradaudit.wording import estimate, number, settling

FEWEST_TIMES, MOST_TIMES = 1.1, 100
"""Where it takes more than most, the value lies at the limit as far as anybody can tell."""


@dataclass(frozen=True)
class Case:
    """A rule, by its number in the policy, and a measured row.

    Attributes:
        ends: of the interval that is judged, the lower first; twice the value where there is none.
        ignore: the policy's exception for this row.
        lapsed: an exception for this row whose day is over.
    """

    number: int
    rule: Rule
    row: Measurement
    ends: tuple[float, float]
    ignore: Ignore | None = None
    lapsed: Ignore | None = None

    @property
    def outcome(self) -> Literal["failed", "passed", "unclear"]:
        """Whether the interval is beyond the limit as a whole, within it, or holds it."""
        if self.row.imprecise:
            return "unclear"
        if self.rule.sign * self._nearer > self.rule.sign * self.rule.limit:
            return "failed"
        return "unclear" if self._exceeds(self._farther) else "passed"

    @property
    def times(self) -> float | None:
        """About how many times as many records or trials would settle an unclear case.

        Half-widths shrink with the root of the number, so it takes the square of the half-width
        towards the limit over the value's distance from it. None where that is more than
        ``MOST_TIMES``, and where the interval itself cannot be trusted.
        """
        value = self.row.number
        if value is None or self.row.imprecise:
            return None
        towards = self._nearer if self._exceeds(value) else self._farther
        distance = abs(value - self.rule.limit)
        if distance * math.sqrt(MOST_TIMES) < abs(towards - value):
            return None
        return max(FEWEST_TIMES, float(f"{((towards - value) / distance) ** 2:.2g}"))

    @property
    def words(self) -> str:
        """The row against the limit, and no more than the interval says."""
        kind = "max" if self.rule.sign > 0 else "min"
        limit = f"the {kind} of {self.rule.limit:.10g}"
        told = f"{estimate(self.row)}{self._correction}"
        if self.outcome != "unclear":
            relations = ("is within", "exceeds") if self.rule.sign > 0 else ("reaches", "is below")
            return f"{told} {relations[self.outcome == 'failed']} {limit}{self._margin}"
        direction = "above" if self.rule.sign > 0 else "below"
        return f"{told} neither shows nor excludes a value {direction} {limit}; {self._remedy}"

    @property
    def _nearer(self) -> float:
        """The end that must be beyond the limit for the case to be shown."""
        return self.ends[0 if self.rule.sign > 0 else 1]

    @property
    def _farther(self) -> float:
        """The end that must be within the limit for the case to pass."""
        return self.ends[1 if self.rule.sign > 0 else 0]

    @property
    def _correction(self) -> str:
        if self.row.interval is None or self.row.infinite or self.ends == self.row.interval:
            return ""
        low, high = self.ends
        return f", corrected to [{number(low)}, {number(high)}],"

    @property
    def _margin(self) -> str:
        """By how much, where three digits do not show it."""
        if self.outcome != "failed" or f"{self._nearer:.3g}" != f"{self.rule.limit:.3g}":
            return ""
        return f" by {abs(self._nearer - self.rule.limit):.2g}"

    @property
    def _remedy(self) -> str:
        if self.row.imprecise:
            return self.row.doubts[0]
        metric = known_metrics().get(self.row.id)
        return settling(self.times, self.row.n, metric.counts if metric else "")

    def _exceeds(self, end: float) -> bool:
        return self.rule.sign * end > self.rule.sign * self.rule.limit


def ends_of(row: Measurement, value: float) -> tuple[float, float]:
    """The interval of a measured row; its value twice where it has none or is infinite."""
    return (value, value) if row.interval is None or math.isinf(value) else row.interval


def correct(cases: Sequence[Case]) -> list[Case]:
    """The cases with the ends of their intervals corrected by Holm's procedure.

    The claims "within its limit" are one family, the claims "beyond its limit" another. Of
    neither are cases that the policy excuses, imprecise rows, and cases without an interval or
    with one that states no confidence: that is a bound, not an estimate.
    """
    judged = [case for case in cases if _makes_claims(case)]
    within = corrected_ends([_claim(case, case.rule.sign) for case in judged])
    beyond = corrected_ends([_claim(case, -case.rule.sign) for case in judged])
    found = iter(zip(within, beyond, strict=True))
    return [_corrected(case, *next(found)) if _makes_claims(case) else case for case in cases]


def _makes_claims(case: Case) -> bool:
    row = case.row
    estimated = row.value is not None and row.interval is not None and row.confidence is not None
    return estimated and case.ignore is None and not row.imprecise


def _claim(case: Case, sign: int) -> Claim:
    """The claim that the metric is at most its limit; with a sign of -1, at least its limit."""
    low, high = case.ends
    value, confidence = case.row.value, case.row.confidence
    assert value is not None
    assert confidence is not None
    end = high if sign > 0 else low
    return Claim(
        limit=sign * case.rule.limit,
        upper=sign * end,
        half_width=max((high - low) / 2, abs(end - value)),
        confidence=confidence,
        degrees=math.inf if case.row.n is None else max(1, case.row.n - 1),
    )


def _corrected(case: Case, within: float, beyond: float) -> Case:
    ends = (-beyond, within) if case.rule.sign > 0 else (-within, beyond)
    return replace(case, ends=ends)
