"""How often each bound on epsilon exceeds the truth, over simulated audits of known mechanisms.

    python -m benchmarks.coverage.dp_coverage [--audits 2000]

Every number is the share of audits, in percent, in which the quantity lies above the true epsilon
(the last column: below it). Bounds at 95 % may show 5 %; beyond the tolerance named in the last
line a bound that errs in exactly 5 % of audits would come with probability 0.001.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import binom

from benchmarks.harness import arguments
from gradaudit.audits.dp_audit.law.bounds import (
    count_errors,
    epsilon_lower,
    epsilon_of_rates,
)
from gradaudit.audits.dp_audit.law.decision import Law, PilotLaw, ProjectionLaw, best_threshold
from gradaudit.audits.dp_audit.law.estimates import epsilon_point, mu_lower
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.statistics.intervals import clopper_pearson_upper

ALPHA, DELTA, PILOT, CHUNK = 0.05, 1e-5, 500, 100

COLUMNS = (
    "law's threshold",
    "pilot's threshold",
    "Gaussian bound",
    "best threshold's limit",
    "epsilon_point",
    "its interval's low end",
    "its high end (below)",
)

Array = NDArray[np.float64]
Draw = Callable[[tuple[int, ...], Generator], tuple[Array, Array]]


@dataclass(frozen=True)
class Mechanism:
    """A mechanism by its statistic, with the law it declares where there is a closed form."""

    name: str
    epsilon: float
    draw: Draw
    law: Law | None = None


def normal(shift: float) -> Draw:
    return lambda shape, rng: (
        rng.standard_normal(shape),
        rng.standard_normal(shape) + shift,
    )


def laplace_ratio(epsilon: float) -> Draw:
    def draw(shape: tuple[int, ...], rng: Generator) -> tuple[Array, Array]:
        null, alternative = np.clip(2 * rng.laplace(size=(2, *shape)) - epsilon, -epsilon, epsilon)
        return null, -alternative

    return draw


def laplace_projection(epsilon: float) -> Draw:
    return lambda shape, rng: (rng.laplace(size=shape), epsilon + rng.laplace(size=shape))


def response(truthful: float) -> Draw:
    return lambda shape, rng: (
        (rng.random(shape) >= truthful).astype(float),
        (rng.random(shape) < truthful).astype(float),
    )


def mechanisms() -> list[Mechanism]:
    """Laplace of ε has ε + 2 ln(1 − δ) at δ; randomised response ln((p − δ)/(1 − p))."""
    answers = math.log((0.75 - DELTA) / 0.25)
    return [
        Mechanism("null, declared Gaussian 1", 0.0, normal(0), gaussian(1)),
        Mechanism("Laplace 1, ratio", laplace(1), laplace_ratio(1)),
        Mechanism("Laplace 1, projection", laplace(1), laplace_projection(1)),
        Mechanism("Laplace 4, projection", laplace(4), laplace_projection(4)),
        Mechanism("randomised response 3/4", answers, response(0.75)),
        Mechanism("Gaussian 1", epsilon_gaussian(1.0, DELTA), normal(1), gaussian(1)),
        Mechanism("Gaussian 3", epsilon_gaussian(3.0, DELTA), normal(3), gaussian(3)),
    ]


def gaussian(mu: float) -> Law:
    return ProjectionLaw((mu,), 1.0)


def laplace(epsilon: float) -> float:
    return epsilon + 2 * math.log1p(-DELTA)


def known_law(mechanism: Mechanism) -> Law:
    """The declared law, or a large sample of it drawn apart from all trials."""
    return mechanism.law or PilotLaw(*mechanism.draw((4000,), np.random.default_rng(0)))


def fixed(threshold: float | Array, null: Array, alternative: Array) -> Array:
    counts = count_errors(null, alternative, threshold)
    return epsilon_lower(*counts, null.shape[1], delta=DELTA, alpha=ALPHA)


def piloted(mechanism: Mechanism, null: Array, alternative: Array, rng: Generator) -> Array:
    thresholds = [
        best_threshold(PilotLaw(*mechanism.draw((PILOT,), rng)), null.shape[1], delta=DELTA).low
        for _ in null
    ]
    return fixed(np.asarray(thresholds), null, alternative)


def best_of_all(null: Array, alternative: Array) -> Array:
    """The Clopper–Pearson limit at whichever threshold of these releases makes it largest."""
    trials, bounds = null.shape[1], []
    limit = clopper_pearson_upper(np.arange(trials + 1), trials, ALPHA / 2)
    for zero, one in zip(np.sort(null), np.sort(alternative), strict=True):
        thresholds = np.union1d(zero, one)
        positive = limit[trials - np.searchsorted(zero, thresholds)]
        negative = limit[np.searchsorted(one, thresholds)]
        both = (
            epsilon_of_rates(positive, negative, DELTA),
            epsilon_of_rates(negative, positive, DELTA),
        )
        bounds.append(np.max(both))
    return np.asarray(bounds)


def exceedances(mechanism: Mechanism, trials: int, audits: int) -> dict[str, float]:
    """Share of audits in which each column's quantity is on the wrong side of the truth."""
    rng, truth = np.random.default_rng(trials), mechanism.epsilon
    known = best_threshold(known_law(mechanism), trials, delta=DELTA).low
    wrong: dict[str, list[Array]] = {column: [] for column in COLUMNS}
    for start in range(0, audits, CHUNK):
        null, alternative = mechanism.draw((min(CHUNK, audits - start), trials), rng)
        releases = zip(null, alternative, strict=True)
        points = [epsilon_point(*pair, delta=DELTA) for pair in releases]
        mu = mu_lower(null, alternative, alpha=ALPHA)
        low, high = np.transpose([point.interval for point in points])
        columns = (
            fixed(known, null, alternative) > truth,
            piloted(mechanism, null, alternative, rng) > truth,
            epsilon_gaussian(mu, DELTA) > truth,
            best_of_all(null, alternative) > truth,
            np.array([point.value for point in points]) > truth,
            low > truth,
            high < truth,
        )
        for column, values in zip(COLUMNS, columns, strict=True):
            wrong[column].append(values)
    return {column: float(np.mean(values)) for column, values in wrong.items()}


def main() -> None:
    audits = arguments(__doc__).audits
    print("| mechanism | ε | trials |", " | ".join(COLUMNS), "|")
    print("|---|---|---|" + "---|" * len(COLUMNS))
    for mechanism in mechanisms():
        for trials in (1000, 5000):
            shares = exceedances(mechanism, trials, audits)
            cells = " | ".join(f"{100 * share:.1f}" for share in shares.values())
            print(
                f"| {mechanism.name} | {mechanism.epsilon:.2f} | {trials} | {cells} |", flush=True
            )
    tolerated = binom.ppf(0.999, audits, ALPHA) / audits
    print(f"\nTolerance over {audits} audits: {100 * tolerated:.2f} %")
    print("Bounds: the first two columns everywhere, the third where noise is declared Gaussian.")


if __name__ == "__main__":
    main()
