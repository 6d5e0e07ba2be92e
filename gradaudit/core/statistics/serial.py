"""Whether a series depends on what came before it, given the group of each of its values.

What is looked at are ranks within each group, so that no law and no outlier matters: their
correlation with those before (noise that is carried on), that of their distance from the middle (a
scale that is), and that of a rank with the groups before it (a release that remembers). Of all
lags up to half the series the rarest correlation counts, with p-values as if they were normal and
1/(k(k+1)) of the attention for lag k, as dependence is mostly near.

The p-value of that is not theirs but that of permutations within groups. They leave the joint law
as it is wherever the values are independent and of one law in each group: exact for every law.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import irfft, next_fast_len, rfft

from gradaudit.core.statistics.correlation import rank

FloatArray = NDArray[np.float64]
PERMUTATIONS = 999
"""Independent values are taken for dependent once in a thousand times."""
_DECIMALS = 6
"""Decimals of a rarity that are not rounding, so that equal ones are ties."""


def depends(series: ArrayLike, groups: ArrayLike, rng: np.random.Generator) -> bool:
    """Whether any of several series is rarer in its order than in 999 others, within groups.

    ``benchmarks/coverage/studies/dp.py`` plays what it finds.

    Args:
        series: (series, n) in order of time, or (n,).
        groups: (n,) bool, what each value belongs to.
        rng: draws the permutations; the first that is no less rare ends them.
    """
    groups = np.asarray(groups, bool)
    scores = np.concatenate([_scores(one, groups) for one in np.atleast_2d(series)])
    rarity = _Rarity.of(scores, groups)
    observed = rarity(scores)
    order = np.arange(len(groups))
    members = np.flatnonzero(groups), np.flatnonzero(~groups)
    for _ in range(PERMUTATIONS):
        for group in members:
            order[group] = rng.permutation(group)
        if rarity(scores[:, order]) >= observed:
            return False
    return True


def _scores(values: FloatArray, groups: NDArray[np.bool_]) -> FloatArray:
    """Ranks within groups, and their distances from the middle: (2, n), centred in each group."""
    scores = np.zeros((2, len(values)))
    for group in (groups, ~groups):
        ranks = rank(values[group])
        ranks = (ranks - ranks.mean()) / len(ranks)
        far = np.abs(ranks)
        scores[:, group] = ranks, far - far.mean()
    return scores


@dataclass(frozen=True)
class _Rarity:
    """The rarity of the scores' order among permutations within groups.

    ``padded`` is the length of the Fourier transforms, ``coins`` that of the groups, conjugate;
    ``varied`` says which of the correlations there are. A product's sum at lag k, squared,
    times ``halves`` is z²/2, and ``price`` what it costs to look there.
    """

    padded: int
    coins: NDArray[np.complex128]
    varied: NDArray[np.bool_]
    halves: FloatArray
    price: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, groups: NDArray[np.bool_]) -> Self:
        """The test for these scores, (scores, n), and all their permutations within groups."""
        length = scores.shape[1]
        lags = np.arange(1, length // 2 + 1)
        padded = next_fast_len(length + len(lags), real=True)
        coins = groups - groups.mean()
        power = np.mean(scores**2, axis=1)
        scale = np.concatenate([power**2, np.mean(coins**2) * power[::2]])
        varied = scale > 0
        halves = 1 / (2 * scale[varied, np.newaxis] * (length - lags))
        return cls(padded, np.conj(rfft(coins, padded)), varied, halves, np.log(lags * (lags + 1)))

    def __call__(self, scores: FloatArray) -> float:
        """Largest z²/2 of a correlation, about −ln of its p-value, less the price of its lag."""
        spectra = rfft(scores, self.padded)
        products = np.concatenate([np.abs(spectra) ** 2, self.coins * spectra[::2]])[self.varied]
        sums = irfft(products, self.padded)[:, 1 : len(self.price) + 1]
        return round(float((sums**2 * self.halves - self.price).max(initial=0)), _DECIMALS)
