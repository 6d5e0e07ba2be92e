"""A case: one rule, one measured row, and the outcome that the row's interval allows.

Holm's step-down correction (Holm 1979) of the intervals that a policy judges together.

Each judged row makes two claims, "the metric is within its limit" and "it is beyond": it passes
where the first is granted, is shown to fail where the second is, and is unclear where neither is.
Of many claims, some are granted by luck; ``family: holm`` bounds the probability that *any* granted
claim is false by 1 - confidence, whichever way it errs.

The claims "within" are one family and the claims "beyond" another, each corrected at α =
(1 - confidence)/2, that of one end of a two-sided interval, and of the strictest row where they
differ. The null hypothesis of a claim is its contrary; its p-value is read off the interval, taken
as Student's with as many degrees of freedom as the row counts, less one, and the k-th smallest of m
p-values must be at most α/(m - k + 1). Written as intervals: the end moves outwards to the
confidence 1 - α/(m - k + 1), and once a claim is refused, all with a larger p-value are judged at
its confidence. Within a family Holm's proof needs no assumption about dependence between rows, and
Bonferroni joins the two. (One step-down over both directions, with 2α in all, is not known to
control errors of direction: Shaffer 1980 needs independent rows.)

Intervals of other kinds (Clopper-Pearson, bootstrap) are extended as if they were Student's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal, Self

from gradaudit.audits.gathering import member_of
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.text import MANY, UNBOUNDED, deciding_remedy, number
from gradaudit.judging.policy import Ignore, Rule, known_metrics
from gradaudit.measurement import CHANCE, CLOSEST, EFFORT, NO_EVIDENCE, dict_of, numbers_of
from gradaudit.report import Measurement, estimate

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Claim:
    """The claim that a metric is at most ``limit``, with the upper end of its interval.

    A lower limit is the same claim with every sign turned. ``half_width`` is the distance from
    the estimate to an end of the two-sided interval at ``confidence``, and ``degrees`` are those of
    freedom; infinite ones make it normal.
    """

    limit: float
    upper: float
    half_width: float
    confidence: float
    degrees: float = math.inf

    @property
    def alpha(self) -> float:
        """Return the one-sided error level of the interval's upper end."""
        return (1 - self.confidence) / 2

    @property
    def deviation(self) -> float:
        """Standard deviation of the estimate, from the interval's width."""
        return self.half_width / self._quantile(self.alpha)

    @property
    def p_value(self) -> float:
        """Returns the probability of an upper end this low if the true value equals the limit."""
        if self.deviation == 0:
            return 0.0 if self.upper <= self.limit else 1.0
        t = self._quantile(self.alpha) + (self.limit - self.upper) / self.deviation
        if math.isinf(self.degrees):
            return _NORMAL.cdf(-t)
        return float(_special().stdtr(self.degrees, -t))

    def upper_at(self, alpha: float) -> float:
        """Returns the upper end at another one-sided level; an infinite one stays infinite."""
        moved = self.deviation * (self._quantile(alpha) - self._quantile(self.alpha))
        return min(self.upper + moved, max(self.upper, UNBOUNDED))

    def _quantile(self, alpha: float) -> float:
        """Returns the quantile of Student's distribution that is exceeded with this probability."""
        if math.isinf(self.degrees):
            return _NORMAL.inv_cdf(1 - alpha)
        return -float(_special().stdtrit(self.degrees, alpha))


def _special() -> Any:
    """Returns SciPy's special functions, which take long to import and are rarely needed."""
    from scipy import special

    return special


def corrected_ends(claims: Sequence[Claim]) -> list[float]:
    """Returns the upper ends after Holm's correction; a claim holds where its end is in the limit.

    >>> sharp = Claim(limit=1.0, upper=0.5, half_width=0.1, confidence=0.95)
    >>> close = Claim(limit=1.0, upper=0.99, half_width=0.1, confidence=0.95)
    >>> [round(end, 4) for end in corrected_ends([close, sharp])]
    [0.99, 0.5144]
    """
    if not claims:
        return []
    alpha = min(claim.alpha for claim in claims)
    order = sorted(range(len(claims)), key=lambda i: claims[i].p_value)
    ends = [math.nan] * len(claims)
    share = alpha
    refused = False
    for rank, i in enumerate(order):
        if not refused:
            share = alpha / (len(claims) - rank)
        ends[i] = claims[i].upper_at(share)
        refused = refused or ends[i] > claims[i].limit
    return ends


TOLERATED = 0.1
"""Share of attacked updates beyond a limit that must be excluded for a row to be within it."""


@dataclass(frozen=True)
class ShareBeyond:
    """How many attacked updates show a record beyond a limit, with the share's interval.

    ``by_chance`` counts those that show one of another update.
    """

    count: int
    tried: int
    by_chance: int
    several: bool = False

    @classmethod
    def of(cls, row: Measurement, sign: int, limit: float) -> Self | None:
        """Count the closest records of a row's updates; None where it lists none."""
        closest = row.details.get(CLOSEST)
        if not isinstance(closest, list) or not closest or sign > 0:
            return None
        own, other = (numbers_of(row.details.get(key)) for key in (CLOSEST, CHANCE))
        size = dict_of(row.details.get("knowledge")).get("batch_size")
        return cls(
            sum(error < limit for error in own),
            len(closest),
            sum(error < limit for error in other),
            isinstance(size, int) and size > 1,
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's interval of the share."""
        return _exact(self.count, self.tried)

    @property
    def shown(self) -> bool:
        """Whether a record is reconstructed, and more often than by chance."""
        beyond_chance = not self.by_chance or (
            self.interval[0] > _exact(self.by_chance, self.tried)[1]
        )
        return self.count > 0 and beyond_chance

    @property
    def excluded(self) -> bool:
        """Whether none is, of so many that a share above ``TOLERATED`` is excluded."""
        return self.count == 0 and self.interval[1] <= TOLERATED

    @property
    def times(self) -> float | None:
        """Number of times as many updates that would exclude the share, where none is beyond."""
        wanted = math.ceil(math.log(0.025) / math.log(1 - TOLERATED))
        return None if self.count else max(FEWEST_TIMES, wanted / self.tried)

    def __str__(self) -> str:
        """Formats the count: ``3 of 4 records [19 %, 99 %]``."""
        low, high = self.interval
        noun = "update" if self.several else "record"
        named = noun if self.tried == 1 else f"{noun}s"
        ends = f"[{100 * low:.0f} %, {100 * high:.0f} %]"
        return f"{self.count:,} of {self.tried:,} {named} {ends}"


@lru_cache(maxsize=1024)
def _exact(count: int, tried: int) -> tuple[float, float]:
    """Compute Clopper and Pearson's interval by bisection, as judging has no SciPy."""
    return _least_share(count, tried), 1 - _least_share(tried - count, tried)


def _least_share(least: int, tried: int) -> float:
    """Return the share at which ``least`` or more of the tried have the probability of a tail."""
    if least == 0:
        return 0.0
    counts = range(least, tried + 1)
    every = math.lgamma(tried + 1)
    ways = [every - math.lgamma(k + 1) - math.lgamma(tried - k + 1) for k in counts]
    low, high = 0.0, 1.0
    while low < (share := (low + high) / 2) < high:
        hit, miss = math.log(share), math.log1p(-share)
        terms = zip(ways, counts, strict=True)
        tail = math.fsum(math.exp(way + k * hit + (tried - k) * miss) for way, k in terms)
        low, high = (share, high) if tail < (1 - CONFIDENCE) / 2 else (low, share)
    return share


SIMULATED = 0.05
"""Relative error of units that are computed from a simulated interval of a share of 0."""
FEWEST_TIMES, MOST_TIMES = 1.1, MANY
"""Smallest and largest factor that is shown; beyond the largest, the value is too close to the
limit to be settled."""


@dataclass(frozen=True)
class Case:
    """A rule, by its number in the policy, and a measured row.

    Attributes:
        ends: of the interval that is judged, the lower first; twice the value where there is none.
        ignore: the policy's exception for this row.
        lapsed: an exception for this row whose day is over.
        unanswered: adversaries on the row's question that were not run; empty where all were.
        available: number of records that the data has.
    """

    number: int
    rule: Rule
    row: Measurement
    ends: tuple[float, float]
    ignore: Ignore | None = None
    lapsed: Ignore | None = None
    unanswered: str = ""
    available: int | None = None

    @property
    def corrected(self) -> bool:
        """Whether the judged ends differ from the row's interval."""
        interval = self.row.interval
        return interval is not None and not self.row.infinite and self.ends != interval

    @property
    def outcome(self) -> Literal["failed", "passed", "unclear"]:
        """Whether the whole interval is beyond the limit (failed), within it (passed), or neither.

        An interval that holds the limit shows neither. A row of an adversary that only learns
        linear functions, or of an attack that did less than the preset quick, is never within its
        limit: it is what the adversary got, and a stronger one may get more. Nor is one where
        another adversary on the same question was not run.
        """
        weak = is_weak(self.row) or self.unanswered
        if share := self.share:
            return (
                "failed" if share.shown else "passed" if share.excluded and not weak else "unclear"
            )
        if self.rule.sign * self._nearer > self.rule.sign * self.rule.limit:
            return "failed"
        return "unclear" if self._exceeds(self._farther) or weak else "passed"

    @property
    def times(self) -> float | None:
        """Number of times as many records or trials that would settle an unclear case.

        Of a share that is 0, by the exact interval. Else half-widths shrink with the root of the
        number, so it takes the square of the half-width towards the limit over the value's
        distance from it. None where that is more than
        ``MOST_TIMES``, and where the limit does not lie inside the interval.
        """
        value = self.row.number
        if share := self.share:
            return None if share.excluded else share.times
        if value is None or not self._exceeds(self._farther):
            return None
        if none_of := _times_of_none(self.row, self.rule.limit):
            return none_of if none_of <= MOST_TIMES else None
        towards = self._nearer if self._exceeds(value) else self._farther
        distance = abs(value - self.rule.limit)
        if distance * math.sqrt(MOST_TIMES) < abs(towards - value):
            return None
        return max(FEWEST_TIMES, float(f"{((towards - value) / distance) ** 2:.2g}"))

    @property
    def share(self) -> ShareBeyond | None:
        """The updates with a record beyond the limit, where the row lists updates."""
        return ShareBeyond.of(self.row, self.rule.sign, self.rule.limit)

    @property
    def words(self) -> str:
        """Compares the row with its limit in words that claim no more than the interval shows."""
        kind = "max" if self.rule.sign > 0 else "min"
        limit = f"the {kind} of {self.rule.limit:.10g}"
        measured = estimate(self.row)
        if self.corrected:
            low, high = map(number, self.ends)
            measured += f", corrected to [{low}, {high}],"
        if share := self.share:
            return self._counted(f"{measured}, {share}", share, limit)
        if self.outcome != "unclear":
            relations = ("is within", "exceeds") if self.rule.sign > 0 else ("reaches", "is below")
            rest = self._margin if self.outcome == "failed" else self._unproven
            return f"{measured} {relations[self.outcome == 'failed']} {limit}{rest}"
        direction = "above" if self.rule.sign > 0 else "below"
        inside = self._exceeds(self._farther)
        undecided = "neither shows nor excludes" if inside else "does not exclude"
        remedy = would_settle(
            self.row,
            self.times,
            inside=inside,
            at_limit=self.row.number == self.rule.limit,
            available=self.available,
        )
        if self.unanswered and not inside and not is_weak(self.row):
            remedy = self.unanswered
        return f"{measured} {undecided} a value {direction} {limit}; {remedy}"

    def _counted(self, measured: str, share: ShareBeyond, limit: str) -> str:
        """Words the count of updates with a record below the limit."""
        if self.outcome == "failed":
            return f"{measured} below {limit}"
        if self.outcome == "passed":
            return f"{measured} below {limit}{self._unproven}"
        if share.excluded:
            why = f"{weakness(self.row)}, and it may get more"
            return f"{measured} below {limit}; {why if is_weak(self.row) else self.unanswered}"
        if share.count:
            return f"{measured} below {limit}, {share.by_chance:,} of another update by chance"
        remedy = would_settle(self.row, self.times, tried=share.tried)
        return f"{measured} below {limit} do not exclude {TOLERATED:.0%}; {remedy}"

    @property
    def _nearer(self) -> float:
        """The end that must be beyond the limit for the case to fail."""
        return self.ends[0 if self.rule.sign > 0 else 1]

    @property
    def _farther(self) -> float:
        """The end that must be within the limit for the case to pass."""
        return self.ends[1 if self.rule.sign > 0 else 0]

    @property
    def _margin(self) -> str:
        """Formats by how much a failed end exceeds the limit where three digits do not show it."""
        if f"{self._nearer:.3g}" != f"{self.rule.limit:.3g}":
            return ""
        return f" by {abs(self._nearer - self.rule.limit):.2g}"

    @property
    def _unproven(self) -> str:
        """Remark that a value within its limit is a lower bound of the truth, where it is one."""
        metric = known_metrics().get(self.row.id)
        if metric is not None and metric.proven and self.rule.sign > 0:
            return "; it is a lower bound, and the truth may be larger"
        if metric is not None and metric.stronger:
            return "; it is what this adversary got, and a stronger one may get more"
        return ""

    def _exceeds(self, end: float) -> bool:
        return self.rule.sign * end > self.rule.sign * self.rule.limit


def is_weak(row: Measurement) -> bool:
    """Whether a row shows only what a weak adversary got: linear, or tried less than quick."""
    metric = known_metrics().get(row.id)
    linear = row.linear and metric is not None and bool(metric.stronger)
    return linear or row.details.get(EFFORT) == "below"


def weakness(row: Measurement) -> str:
    """Name the reason for which a row within its limit is not known to be."""
    if row.details.get(EFFORT) == "below":
        return "its attack is not shown to do as much as the preset quick"
    return "its adversary is linear"


def would_settle(
    row: Measurement,
    times: float | None,
    *,
    inside: bool = True,
    options: bool = True,
    tried: int | None = None,
    at_limit: bool = False,
    available: int | None = None,
) -> str:
    """Advises how to settle an undecided row.

    Args:
        row: what was measured.
        times: factor by which records or trials would have to grow; None where no number would
            settle it.
        inside: whether the limit lies inside the interval; else a weak adversary is the reason.
        options: whether to name the options that give a stronger adversary.
        tried: number of attacked updates that the row lists.
        at_limit: whether the value equals the limit.
        available: number of records that the data has.
    """
    if tried is not None and times is not None:
        wanted = max(tried + 1, math.ceil(times * tried - 1e-9))
        count = f"{wanted:,} attacked updates instead of {tried:,}"
        return f"{count} would settle it ({member_of(row)} --batches, --solved)"
    vacuous = row.unbounded or row.details.get(NO_EVIDENCE) is True
    if vacuous and row.doubts:
        return row.doubts[0]
    metric = known_metrics().get(row.id)
    stronger = metric.stronger if metric else ""
    counts = metric.counts if metric else ""
    remedy = deciding_remedy(
        times,
        row.n,
        counts,
        played=bool(stronger) and options,
        at_limit=at_limit,
        available=available if counts == "records" else None,
    )
    if not inside:
        remedy = f"{weakness(row)}, and a stronger one may get more"
    return f"{remedy} ({stronger})" if options and stronger else remedy


def _times_of_none(row: Measurement, limit: float) -> float | None:
    """Factor of the units of a share of 0, of which none would exclude the limit.

    None for any other row: of n units none gives Clopper and Pearson's upper end 1 − (α/2)^(1/n).
    """
    low, high = row.interval or (1.0, 1.0)
    if (row.number, low) != (0.0, 0.0) or not (0 < high < 1 and 0 < limit < 1):
        return None
    alpha = math.log((1 - (row.confidence or 0.95)) / 2)
    units = alpha / math.log1p(-high)
    whole = round(units)
    if not whole or abs(units - whole) > SIMULATED * whole:
        return None
    return max(FEWEST_TIMES, math.ceil(alpha / math.log1p(-limit)) / whole)


def ends_of(row: Measurement, value: float) -> tuple[float, float]:
    """Returns the interval of a measured row; the value twice where it has none or is infinite."""
    return (value, value) if row.interval is None or math.isinf(value) else row.interval


def correct(cases: Sequence[Case]) -> list[Case]:
    """Returns the cases with their intervals' ends corrected by Holm's procedure.

    The claims "within its limit" are one family, the claims "beyond its limit" another. Of
    neither are cases that the policy excuses, and cases without an interval or with one that
    states no confidence: that is a bound, not an estimate.
    """
    judged = [
        i
        for i, case in enumerate(cases)
        if case.ignore is None and case.row.value is not None
        if case.row.interval is not None and case.row.confidence is not None
    ]
    within = corrected_ends([_claim(cases[i], cases[i].rule.sign) for i in judged])
    beyond = corrected_ends([_claim(cases[i], -cases[i].rule.sign) for i in judged])
    corrected = list(cases)
    for i, inner, outer in zip(judged, within, beyond, strict=True):
        ends = (-outer, inner) if cases[i].rule.sign > 0 else (-inner, outer)
        corrected[i] = replace(cases[i], ends=ends)
    return corrected


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
        half_width=max(0.0 if case.row.unbounded else (high - low) / 2, abs(end - value)),
        confidence=confidence,
        degrees=math.inf if case.row.n is None else max(1, case.row.n - 1),
    )
