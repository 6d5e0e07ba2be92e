"""A case: one rule that meets one measured row, and the end of the interval that it judges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradaudit.judging.holm import Claim, corrected_ends
from gradaudit.judging.policy import Ignore, Rule
from gradaudit.report import Measurement
from gradaudit.wording import estimate, number


@dataclass(frozen=True)
class Case:
    """A rule, by its number in the policy, and a measured row.

    Attributes:
        end: the unfavourable end of the row's interval, or its value where there is none.
        ignore: the policy's exception for this row.
        lapsed: an exception for this row whose day is over.
    """

    number: int
    rule: Rule
    row: Measurement
    end: float
    ignore: Ignore | None = None
    lapsed: Ignore | None = None

    @property
    def beyond(self) -> bool:
        """Whether the judged end is beyond the limit."""
        return self.rule.sign * self.end > self.rule.sign * self.rule.limit

    @property
    def verdict(self) -> str:
        """The row against the limit in words."""
        relations = ("is within", "exceeds") if self.rule.sign > 0 else ("reaches", "is below")
        relation = relations[self.beyond]
        kind = "max" if self.rule.sign > 0 else "min"
        return (
            f"{estimate(self.row)}{self._correction} {relation} "
            f"the {kind} of {self.rule.limit:.10g}{self._margin}"
        )

    @property
    def _correction(self) -> str:
        if self.row.interval is None or self.end in (*self.row.interval, math.inf):
            return ""
        return f", corrected to {number(self.end)},"

    @property
    def _margin(self) -> str:
        """By how much, where three digits do not show it."""
        if not self.beyond or f"{self.end:.3g}" != f"{self.rule.limit:.3g}":
            return ""
        return f" by {abs(self.end - self.rule.limit):.2g}"


def unfavourable_end(rule: Rule, row: Measurement, value: float) -> float:
    """The end of a measured row's interval that is nearer to trouble; infinity stays infinite."""
    if row.interval is None or math.isinf(value):
        return value
    return row.interval[1 if rule.sign > 0 else 0]


def correct(cases: Sequence[Case]) -> list[Case]:
    """The cases with their ends corrected by Holm's procedure as one family.

    Not of the family are cases that the policy excuses, and cases without an interval or with one
    that states no confidence: that is a bound, not an estimate.
    """
    claims = {i: claim for i, case in enumerate(cases) if (claim := _claim(case)) is not None}
    ends = dict(zip(claims, corrected_ends(list(claims.values())), strict=True))
    return [
        replace(case, end=case.rule.sign * ends[i]) if i in ends else case
        for i, case in enumerate(cases)
    ]


def _claim(case: Case) -> Claim | None:
    value, interval, confidence = case.row.value, case.row.interval, case.row.confidence
    if value is None or interval is None or confidence is None or case.ignore is not None:
        return None
    return Claim(
        limit=case.rule.sign * case.rule.limit,
        upper=case.rule.sign * case.end,
        half_width=max((interval[1] - interval[0]) / 2, abs(case.end - value)),
        confidence=confidence,
    )
