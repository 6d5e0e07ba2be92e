"""How often dp-audit's bounds exceed the truth, and whether faulty mechanisms are caught.

Bounds: statistics are drawn from laws of known epsilon, and decided and judged as dp-audit does it.
Mechanisms as a user would write them: the whole game, with the statistics that it chooses among.
Serial dependence: of 1,000 + 1,000 values autoregressive noise of coefficient .1 is found in 63 of
100 runs, of .15, .2 and of a square-root factorisation in all of 50; of 1,500 independent series 3.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.signal import lfilter

from benchmarks.coverage.studies.base import Cell, Outcome, Study, interval
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.missing_noise import verdict_without_trials
from gradaudit.audits.dp_audit.game.play import (
    Rules,
    TrialSeries,
    choose_statistics,
    decide_by_law,
    fair_coins,
    play,
    score,
)
from gradaudit.audits.dp_audit.law.bounds import LowerBound
from gradaudit.audits.dp_audit.law.decision import ProjectionLaw
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.dp_audit.mechanisms import FileMechanism
from gradaudit.core.randomness import Seed, rng, sequence
from gradaudit.progress import Advance

DELTA, ELEMENTS = 1e-5, 40
HOLDS, NEVER = (0.95, 1.0), (1.0, 1.0)

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]
Rng = np.random.Generator


# Laws of a statistic, and their epsilon ---------------------------------------------------------


@dataclass(frozen=True)
class Simulated:
    """Trials of a mechanism that is known by the law of its statistic.

    Attributes:
        draw: statistics in order, from coins that say which are of the alternative.
        epsilon: the truth at δ.
        law: that the mechanism declares; None where thresholds come from a pilot.
        state: whether the mechanism may have state, so that its releases are tested for dependence.
    """

    make: Callable[[Coins, Rng], Array]
    epsilon: Callable[[], float]
    law: ProjectionLaw | None = None
    state: bool = False

    def draw(self, trials: int, seed: Seed, advance: Advance) -> TrialSeries:
        coins = fair_coins(2 * trials, rng(seed, "coins"))
        values = self.make(coins, rng(seed, "values"))
        return TrialSeries(coins, {"projection": np.asarray(values, float)})

    def play(self, trials: int, seed: int) -> Mapping[str, Outcome]:
        rules = Rules(trials, DELTA)
        if self.law is not None:
            decisions = decide_by_law({"projection": self.law}, rules)
        else:
            _, decisions = choose_statistics(self.draw, rules, seed)
        played = self.draw(trials, sequence(seed, "trials"), lambda units: None)
        if self.state and played.dependent(seed):
            return {"epsilon_lower": Outcome(None)}
        scored, truth = score(played, decisions, rules)["projection"], self.epsilon()
        return {
            "epsilon_lower": Outcome(bool(scored.bound.value <= truth)),
            "estimate: epsilon_point not above": Outcome(bool(scored.point.value <= truth)),
            "estimate: its interval": interval(*scored.point.interval, truth),
        }


def shifted(noise: Callable[[int, Rng], Array], shift: float) -> Callable[[Coins, Rng], Array]:
    return lambda coins, rng: noise(len(coins), rng) + shift * coins


def normal(count: int, rng: Rng) -> Array:
    return rng.standard_normal(count)


def geometric(count: int, rng: Rng, ratio: float = math.exp(-1)) -> Array:
    """Two-sided geometric noise."""
    both = rng.geometric(1 - ratio, (2, count))
    noise: Array = both[0] - both[1]
    return noise


def carried(coefficient: float) -> Callable[[int, Rng], Array]:
    """Autoregressive noise of standard deviation 1, as of a mechanism with state."""

    def noise(count: int, rng: Rng) -> Array:
        fresh = normal(count + 200, rng) * math.sqrt(1 - coefficient**2)
        return lfilter([1], [1, -coefficient], fresh)[200:]

    return noise


def factorised(count: int, rng: Rng) -> Array:
    """Noise of the square-root factorisation of the sums of all steps: (1 − B)^½ of white noise."""
    coefficients = np.cumprod(np.r_[1.0, (np.arange(1, 500) - 1.5) / np.arange(1, 500)])
    return lfilter(coefficients, [1], normal(count + 500, rng))[500:]


def of_masses(null: Array, other: Array) -> float:
    """ε at δ of two laws on one set of points, by the hockey stick of their masses, both ways."""

    def excess(epsilon: float) -> float:
        ways = ((null, other), (other, null))
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ways) - DELTA

    return brentq(excess, 0, 60) if excess(0) > 0 else 0.0


@cache
def of_shift(name: str, shift: float) -> float:
    """ε of continuous noise under a shift, on points that are close together wherever it is."""
    law = getattr(stats, name.split()[0])(*map(float, name.split()[1:]))
    step = np.linspace(-25, 25, 400_001)
    points, width = np.sinh(step), np.cosh(step) * (step[1] - step[0])
    return of_masses(*(law.pdf(points - move) * width for move in (0.0, shift)))


@cache
def of_geometric() -> float:
    points = np.arange(-200, 202)
    ratio = math.exp(-1)
    null, other = (ratio ** np.abs(points - move) * (1 - ratio) / (1 + ratio) for move in (0, 1))
    return of_masses(null, other)


@cache
def of_subsampled(rate: float, mu: float) -> float:
    points = np.linspace(-12, 12 + mu, 400_001)
    null, moved = (stats.norm.pdf(points - by) * (points[1] - points[0]) for by in (0, mu))
    return of_masses(null, (1 - rate) * null + rate * moved)


def subsampled(rate: float, mu: float) -> Simulated:
    def make(coins: Coins, rng: Rng) -> Array:
        return normal(len(coins), rng) + mu * (coins & (rng.random(len(coins)) < rate))

    return Simulated(make, lambda: of_subsampled(rate, mu))


def response(truthful: float) -> Simulated:
    def answers(coins: Coins, rng: Rng) -> Array:
        return np.asarray((rng.random(len(coins)) < truthful) == coins, float)

    return Simulated(answers, lambda: math.log((truthful - DELTA) / (1 - truthful)))


def simulated() -> dict[str, Simulated]:
    def gaussian(mu: float, *, declared: bool) -> Simulated:
        law = ProjectionLaw((mu,), 1.0) if declared else None
        return Simulated(shifted(normal, mu), lambda: of_shift("norm", mu), law)

    def student(degrees: int, shift: float) -> Simulated:
        def noise(count: int, rng: Rng) -> Array:
            return rng.standard_t(degrees, count)

        return Simulated(shifted(noise, shift), lambda: of_shift(f"t {degrees}", shift))

    def laplace(epsilon: float) -> Simulated:
        def noise(count: int, rng: Rng) -> Array:
            return rng.laplace(size=count)

        return Simulated(shifted(noise, epsilon), lambda: epsilon + 2 * math.log1p(-DELTA))

    nothing, one = shifted(normal, 0), ProjectionLaw((1.0,), 1.0)
    return {
        **{f"Gaussian {mu:g}, its law": gaussian(mu, declared=True) for mu in (0.5, 1, 2, 4)},
        **{f"Gaussian {mu:g}, pilot": gaussian(mu, declared=False) for mu in (0.5, 1, 2, 4)},
        **{f"Laplace {epsilon:g}": laplace(epsilon) for epsilon in (1, 4)},
        **{f"randomised response {p:g}": response(p) for p in (0.6, 0.75, 0.99)},
        "geometric 1": Simulated(shifted(geometric, 1), of_geometric),
        **{f"t3 {shift:g}": student(3, shift) for shift in (1, 4)},
        **{f"Cauchy {shift:g}": student(1, shift) for shift in (1, 4)},
        "subsampled Gaussian 4, rate .1": subsampled(0.1, 4),
        "null, pilot": Simulated(nothing, lambda: 0.0, state=True),
        "null, declared Gaussian 1": Simulated(nothing, lambda: 0.0, one),
    }


def stateful() -> dict[str, Simulated]:
    """By noise that depends on the noise before, of deviation 1 or 1.1284."""

    def truth(shift: float) -> float:
        return of_shift("norm", shift) if shift else 0.0

    noises = (
        ("autoregressive .1", carried(0.1), 1.0),
        ("autoregressive .3", carried(0.3), 1.0),
        ("autoregressive .99", carried(0.99), 1.0),
        ("matrix factorisation", factorised, 1.1284),
    )
    found = {}
    for mu, (name, noise, scale) in product((0, 1), noises):
        by = partial(truth, mu / scale)
        found[f"shift {mu}, {name} noise"] = Simulated(shifted(noise, mu), by, state=True)
    return found


# Mechanisms as a user would write them -----------------------------------------------------------


Noise = Callable[[torch.Generator], torch.Tensor]
Release = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def noise(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (ELEMENTS,)), generator=generator)


def fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def under(draw: Noise) -> Release:
    """The sum of the gradients under what is drawn."""
    return lambda gradients, generator: gradients.sum(0) + draw(generator)


def rounded(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise and gradient on one lattice, as a discrete mechanism has them."""
    return (50 * under(noise)(gradients, generator)).round() / 50


def answers_by(draw: Callable[[int], bytes]) -> Release:
    """Randomised response of ε = 9 on randomness that no seed reaches."""

    def answer(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        truth = gradients.sum(0).sign()
        return -truth if int.from_bytes(draw(8)) / 2**64 < 1 / (1 + math.exp(9)) else truth

    return answer


def read_device(size: int) -> bytes:
    with Path("/dev/urandom").open("rb", buffering=0) as device:
        return device.read(size)


FINITE: Mapping[str, tuple[Release, float]] = {
    "Gaussian 1 from a file": (under(noise), epsilon_gaussian(1.0, DELTA)),
    "Gaussian 1 from a file, rounded": (rounded, epsilon_gaussian(1.0, DELTA)),
    "randomised response 9, os.getrandom": (answers_by(os.getrandom), 9.0),
    "randomised response 9, /dev/urandom": (answers_by(read_device), 9.0),
}
FAULTY: Mapping[str, Release] = {
    "no noise": under(lambda generator: torch.zeros(ELEMENTS)),
    "the same noise again": under(lambda generator: noise(fixed())),
    "one number for all elements": under(lambda generator: noise(generator, 1)),
    "noise of rank 10": under(
        lambda generator: noise(generator, 10) @ noise(fixed(), 10, ELEMENTS)
    ),
}


def audited(function: Release, trials: int, seed: int) -> LowerBound:
    """The bound of a mechanism from a file for two gradients that lie 1 apart."""
    rng = np.random.default_rng(seed)
    null, away = torch.from_numpy(rng.standard_normal((2, ELEMENTS)))
    other = null + away / away.norm()
    hypotheses = Hypotheses(null, other[None], torch.zeros(0, ELEMENTS, dtype=torch.float64))
    mechanism = FileMechanism(function, "f.py:mechanism")
    assert verdict_without_trials(mechanism, hypotheses) is None
    return play(mechanism, hypotheses, Rules(trials, DELTA), seed).scores["projection"].bound


def within(function: Release, epsilon: float, trials: int, seed: int) -> Mapping[str, Outcome]:
    return {"epsilon_lower": Outcome(audited(function, trials, seed).value <= epsilon)}


def caught(function: Release, trials: int, seed: int) -> Mapping[str, Outcome]:
    """Whether the bound exceeds what the same noise, but honest, promises."""
    bound = audited(function, trials, seed)
    return {"above the claim": Outcome(bound.value > epsilon_gaussian(1.0, DELTA))}


def cells(trials: tuple[int, ...]) -> Iterator[Cell]:
    for name, one in simulated().items():
        for count in trials:
            yield Cell({"mechanism": name, "trials": count}, partial(one.play, count), HOLDS)
    for name, one in stateful().items():
        yield Cell({"mechanism": name, "trials": trials[0]}, partial(one.play, trials[0]), HOLDS)
    for name, (function, epsilon) in FINITE.items():
        yield Cell({"mechanism": name}, partial(within, function, epsilon, 1000), HOLDS)
    for name, function in FAULTY.items():
        yield Cell({"mechanism": name}, partial(caught, function, 1000), NEVER)


STUDY = Study(
    name="dp",
    says=(
        "dp-audit's bound on the statistic of mechanisms whose epsilon at δ = 1e-5 is known in "
        "closed form or by numerical integration, chosen and computed as in the audit, of 2 × "
        "trials releases; covered is a bound that does not exceed the truth. Mechanisms with "
        "state are tested for dependence first, and where that is found nothing is said. "
        "Mechanisms from a file play the whole game on 40 elements; faulty ones claim the ε of "
        "honest noise."
    ),
    quick=lambda: cells((1000,)),
    full=lambda: cells((1000, 5000)),
    notes=(
        "At the exact law of randomised response a bound at 95 % errs in just below 5 % of audits: "
        "a share of 94 or 93 % in 200 studies is not unlikely there.",
    ),
)
