"""Holm's step-down correction (Holm 1979) of the intervals that a policy judges together.

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
from dataclasses import dataclass
from statistics import NormalDist

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
        """One-sided level of the upper end."""
        return (1 - self.confidence) / 2

    @property
    def deviation(self) -> float:
        """Standard deviation of the estimate, from the interval's width."""
        return self.half_width / self._quantile(self.alpha)

    @property
    def p_value(self) -> float:
        """Probability of so low an upper end where the metric equals the limit."""
        if self.deviation == 0:
            return 0.0 if self.upper <= self.limit else 1.0
        t = self._quantile(self.alpha) + (self.limit - self.upper) / self.deviation
        if math.isinf(self.degrees):
            return _NORMAL.cdf(-t)
        from scipy.special import stdtr

        return float(stdtr(self.degrees, -t))

    def upper_at(self, alpha: float) -> float:
        """The upper end at another one-sided level."""
        return self.upper + self.deviation * (self._quantile(alpha) - self._quantile(self.alpha))

    def _quantile(self, alpha: float) -> float:
        """Of Student's distribution, exceeded with probability ``alpha``."""
        if math.isinf(self.degrees):
            return _NORMAL.inv_cdf(1 - alpha)
        from scipy.special import stdtrit

        return -float(stdtrit(self.degrees, alpha))


def corrected_ends(claims: Sequence[Claim]) -> list[float]:
    """The upper ends after Holm's correction; a claim is granted where its end is in the limit.

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
