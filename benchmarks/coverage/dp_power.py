"""How much of the truth each valid bound certifies, on Gaussian releases.

    python -m benchmarks.coverage.dp_power [--audits 300] [--trials 5000]

Means over simulated audits at δ = 1e-5 and 95 %, with μ the distance of the releases over σ.
Fair coins pick each release's hypothesis. The first two columns are what dp-audit reports of the
statistic that is asked for (nine tenths of the error probability); the two beside them give either
method all of it.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.harness import arguments
from gradaudit.audits.dp_audit.game.hypotheses import pilot_releases
from gradaudit.audits.dp_audit.game.play import Rules
from gradaudit.audits.dp_audit.law.bounds import epsilon_ceiling, guesses_ceiling
from gradaudit.audits.dp_audit.law.decision import (
    Decision,
    DistanceLaw,
    PilotLaw,
    ProjectionLaw,
    Samples,
    best_decision,
    best_tails,
    best_threshold,
)
from gradaudit.audits.dp_audit.law.estimates import gaussian_bound
from gradaudit.audits.dp_audit.law.theory import FloatArray, epsilon_gaussian

DELTA, ELEMENTS, ALPHA = 1e-5, 30_000, 0.05
SHARE = Rules(1000, DELTA).alpha_of("projection")

Law = ProjectionLaw | DistanceLaw
Bound = Callable[[np.random.Generator], float]


def releases(law: Law, trials: int, rng: np.random.Generator) -> Samples:
    """Twice ``trials`` statistics, by coins."""
    others = int(rng.binomial(2 * trials, 0.5))
    null, alternative = law.sample(2 * trials, rng)
    return null[: 2 * trials - others], alternative[:others]


def judged(
    law: Law, trials: int, decide: Callable[[np.random.Generator], Decision], alpha: float
) -> Bound:
    """The bound on fresh trials by what is decided before them."""

    def bound(rng: np.random.Generator) -> float:
        decision = decide(rng)
        return decision.bound(*releases(law, trials, rng), delta=DELTA, alpha=alpha).value

    return bound


def bounds(mu: float, trials: int) -> dict[str, Bound]:
    law, far = ProjectionLaw((mu,), 1.0), DistanceLaw((mu,), 1.0, ELEMENTS)
    pilots = pilot_releases(trials)
    told = best_decision(law, trials, delta=DELTA, alpha=SHARE)
    told_far = best_decision(far, trials, delta=DELTA, alpha=ALPHA)
    threshold = best_threshold(law, trials, delta=DELTA, alpha=ALPHA)
    tails = best_tails(law, trials, delta=DELTA, alpha=ALPHA)

    def by_pilot(rng: np.random.Generator) -> Decision:
        pilot = PilotLaw(*releases(law, pilots, rng))
        return best_decision(pilot, trials, delta=DELTA, alpha=SHARE)

    return {
        "by the law": judged(law, trials, lambda rng: told, SHARE),
        f"by {pilots} pilots": judged(law, trials, by_pilot, SHARE),
        "Clopper-Pearson": judged(law, trials, lambda rng: threshold, ALPHA),
        "two-tailed guesses": judged(law, trials, lambda rng: tails, ALPHA),
        f"distance, {ELEMENTS:,} elements": judged(far, trials, lambda rng: told_far, ALPHA),
        "Gaussian bound": lambda rng: (
            gaussian_bound(*releases(law, trials, rng), delta=DELTA).epsilon
        ),
    }


def means(mu: float, trials: int, audits: int) -> FloatArray:
    rng = np.random.default_rng(0)
    return np.array(
        [np.mean([bound(rng) for _ in range(audits)]) for bound in bounds(mu, trials).values()]
    )


def main() -> None:
    options = arguments(__doc__)
    settings = {"delta": DELTA, "alpha": ALPHA}
    print(
        f"2 × {options.trials} trials; ceilings {epsilon_ceiling(options.trials, **settings):.2f} "
        f"(Clopper-Pearson), {guesses_ceiling(2 * options.trials, **settings):.2f} (guesses)\n"
    )
    print("| μ | true ε |", " | ".join(bounds(1.0, options.trials)), "|")
    print("|---|---|" + "---|" * len(bounds(1.0, options.trials)))
    for mu in (0.5, 1.0, 2.0, 3.0, 4.0, 6.4):
        cells = " | ".join(f"{mean:.2f}" for mean in means(mu, options.trials, options.audits))
        print(f"| {mu:g} | {epsilon_gaussian(mu, DELTA):.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
