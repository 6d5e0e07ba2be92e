"""How much of the truth each valid bound certifies, on Gaussian releases.

    python benchmarks/dp_power.py [--audits 300] [--trials 5000]

Means over simulated audits at δ = 1e-5 and 95 %, with μ the distance of the releases over σ.
"""

import argparse
from collections.abc import Callable

import numpy as np

from gradaudit.dp.bounds import epsilon_ceiling, lower_bound
from gradaudit.dp.gaussian import gaussian_bound
from gradaudit.dp.laws import DistanceLaw, Law, PilotLaw, ProjectionLaw, best_threshold
from gradaudit.dp.theory import FloatArray, epsilon_gaussian

DELTA, PILOT, ELEMENTS = 1e-5, 500, 30_000

Bound = Callable[[np.random.Generator], float]


def at_threshold(
    law: ProjectionLaw | DistanceLaw, known: Callable[[np.random.Generator], Law], trials: int
) -> Bound:
    """The bound on fresh trials, at the threshold that the known law recommends."""

    def bound(rng: np.random.Generator) -> float:
        threshold = best_threshold(known(rng), trials, delta=DELTA).value
        return lower_bound(*law.sample(trials, rng), threshold, delta=DELTA).value

    return bound


def after_split(law: ProjectionLaw, trials: int) -> Bound:
    """A quarter of the trials is the pilot, and only the rest is counted."""

    def bound(rng: np.random.Generator) -> float:
        pilot = trials // 4
        null, alternative = law.sample(trials, rng)
        known = PilotLaw(null[:pilot], alternative[:pilot])
        threshold = best_threshold(known, trials - pilot, delta=DELTA).value
        return lower_bound(null[pilot:], alternative[pilot:], threshold, delta=DELTA).value

    return bound


def bounds(mu: float, trials: int) -> dict[str, Bound]:
    law, far = ProjectionLaw((mu,), 1.0), DistanceLaw((mu,), 1.0, ELEMENTS)
    return {
        "known law": at_threshold(law, lambda _: law, trials),
        f"{PILOT} pilots": at_threshold(law, lambda rng: PilotLaw(*law.sample(PILOT, rng)), trials),
        "split 25/75": after_split(law, trials),
        f"distance, {ELEMENTS:,} elements": at_threshold(far, lambda _: far, trials),
        "Gaussian bound": lambda rng: gaussian_bound(*law.sample(trials, rng), delta=DELTA).epsilon,
    }


def means(mu: float, trials: int, audits: int) -> FloatArray:
    rng = np.random.default_rng(0)
    return np.array(
        [np.mean([bound(rng) for _ in range(audits)]) for bound in bounds(mu, trials).values()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=300)
    parser.add_argument("--trials", type=int, default=5000)
    options = parser.parse_args()
    ceiling = epsilon_ceiling(options.trials, delta=DELTA, alpha=0.05)
    print(f"{options.trials} + {options.trials} trials, ceiling {ceiling:.2f}\n")
    print("| μ | true ε |", " | ".join(bounds(1.0, options.trials)), "|")
    print("|---|---|" + "---|" * len(bounds(1.0, options.trials)))
    for mu in (1.0, 3.0, 6.4):
        cells = " | ".join(f"{mean:.2f}" for mean in means(mu, options.trials, options.audits))
        print(f"| {mu:g} | {epsilon_gaussian(mu, DELTA):.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
