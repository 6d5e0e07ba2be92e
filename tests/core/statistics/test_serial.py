"""Serial dependence: exact for every law, and found where mechanisms make it."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import binom
from scipy.stats import rankdata

from gradaudit.core.statistics.serial import _Rarity, _scores, depends

N = 1000


def _coins(rng, n=N):
    return rng.integers(2, size=n).astype(bool)


def _white(rng, n=N):
    return rng.standard_normal(n)


INDEPENDENT = {
    "normal": _white,
    "Cauchy": lambda rng: rng.standard_cauchy(N),
    "a coin": lambda rng: rng.random(N) < 0.3,
    "a rare event": lambda rng: rng.random(N) < 0.003,
    "a constant": lambda rng: np.ones(N),
}
ROOT = np.array([binom(0.5, k) * (-1) ** k for k in range(N)])
DEPENDENT = {
    "autoregressive": lambda rng, coins: lfilter([1], [1, -0.5], _white(rng)),
    "differences": lambda rng, coins: np.diff(_white(rng, N + 1)),
    "a square-root factorisation": lambda rng, coins: lfilter(ROOT, [1], _white(rng)),
    "a walk": lambda rng, coins: np.cumsum(_white(rng)),
    "noise that comes round": lambda rng, coins: np.resize(_white(rng, 100), N),
    "a scale that is carried on": lambda rng, coins: (
        np.exp(lfilter([1], [1, -0.95], 0.3 * _white(rng))) * _white(rng)
    ),
    "a memory of the groups": lambda rng, coins: lfilter([0, 1, 0.5], [1], coins) + _white(rng),
}


@pytest.mark.parametrize("law", INDEPENDENT.values(), ids=INDEPENDENT)
def test_independent_values_hardly_ever_seem_dependent(law):
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(10):
        coins = _coins(rng)
        found += depends(law(rng) + 3 * coins, coins, rng)
    assert found == 0


@pytest.mark.parametrize("law", DEPENDENT.values(), ids=DEPENDENT)
def test_dependence_is_found(law):
    rng = np.random.default_rng(1)
    coins = _coins(rng)
    assert depends(law(rng, coins) + 2 * coins, coins, rng)


def test_any_of_several_series_counts():
    rng = np.random.default_rng(2)
    coins = _coins(rng)
    series = np.stack([_white(rng), np.cumsum(_white(rng))])
    assert depends(series, coins, rng)
    assert not depends(series[:1], coins, rng)


@pytest.mark.slow
def test_outliers_and_scale_do_not_matter():
    rng = np.random.default_rng(3)
    coins = _coins(rng)
    walk = np.cumsum(_white(rng))
    walk[[5, 500]] = 1e12, -1e15
    assert depends(walk, coins, np.random.default_rng(0))
    assert depends(np.cbrt(walk), coins, np.random.default_rng(0))


@pytest.mark.parametrize("n", [20, 21])
def test_the_rarest_lag_by_a_plain_loop_over_pairs(n):
    """z²/2 − ln k(k+1) of every lag k up to n/2, of ranks, of their distances, and after coins."""
    rng = np.random.default_rng(n)
    coins, values = _coins(rng, n), _white(rng, n)
    rank, far = np.zeros(n), np.zeros(n)
    for group in (coins, ~coins):
        rank[group] = rankdata(values[group]) / group.sum()
        rank[group] -= rank[group].mean()
        far[group] = abs(rank[group]) - abs(rank[group]).mean()
    before = coins - coins.mean()
    rarities = []
    for early, late in [(rank, rank), (far, far), (before, rank)]:
        for lag in range(1, n // 2 + 1):
            pairs = [early[t] * late[t + lag] for t in range(n - lag)]
            scale = np.mean(early**2) * np.mean(late**2) * (n - lag)
            rarities.append(sum(pairs) ** 2 / scale / 2 - np.log(lag * (lag + 1)))
    assert max(rarities) > 0
    scores = _scores(values, coins)
    assert _Rarity.of(scores, coins)(scores) == pytest.approx(max(rarities), abs=1e-6)
