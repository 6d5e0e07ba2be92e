"""Releases of a gradient: a numpy loop, the batched mechanism, the statistic's law.

    python benchmarks/dp_speed.py [--elements 30000] [--trials 5000] [--repeats 5]

Times are CPU seconds, medians over repeats that alternate between the three ways, on one thread.
Memory is the most that tensors took at one time, beside the bytes of all releases together.
Kolmogorov-Smirnov p-values compare the statistics of the mechanism and of the law, over seeds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import ks_2samp

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, known_ruler, laws_of
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult, play, trials_of_laws
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.gradients.memory import peak_bytes

CLIP, SIGMA, DELTA, SEEDS = 2.0, 0.5, 1e-5, 5


def gradients(elements: int) -> Hypotheses:
    """Two gradients of norm 5 at an angle of 60 degrees."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.linalg.qr(
        torch.randn(elements, 2, generator=generator, dtype=torch.float64)
    ).Q.T
    turned = 0.5 * first + 0.75**0.5 * second
    return Hypotheses(5 * first, 5 * turned[None], torch.zeros(0, elements, dtype=torch.float64))


def numpy_loop(hypotheses: Hypotheses, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """The way it is usually written: one trial after the other, in float64."""
    rng = np.random.default_rng(0)
    null, other = hypotheses.null.numpy(), hypotheses.alternatives[0].numpy()

    def clip(gradient: np.ndarray) -> np.ndarray:
        clipped: np.ndarray = gradient / max(1, np.linalg.norm(gradient) / CLIP)
        return clipped

    centre = clip(null)
    direction = clip(other) - centre
    direction /= np.linalg.norm(direction)
    found = np.empty((2, 2, trials))
    for hypothesis, gradient in enumerate((null, other)):
        for trial in range(trials):
            released = clip(gradient) + SIGMA * rng.standard_normal(len(centre))
            offset = released - centre
            found[:, hypothesis, trial] = offset @ direction, np.linalg.norm(offset)
    return found[0], found[1]


def game(hypotheses: Hypotheses, trials: int, mode: str, seed: int = 0) -> TrialsResult:
    mechanism = ClippedNoise(clip=CLIP, sigma=SIGMA)
    rules = Rules(trials, DELTA, mode=mode, memory=1 << 30)  # type: ignore[arg-type]
    return play(mechanism, hypotheses, rules, seed)


def draw_law(hypotheses: Hypotheses, trials: int) -> None:
    """Both statistics by their laws, without what comes before and after the trials."""
    mechanism = ClippedNoise(clip=CLIP, sigma=SIGMA)
    law = mechanism.law(hypotheses.records)
    laws = laws_of(law, hypotheses, known_ruler(law, hypotheses))
    trials_of_laws(laws, trials, 0, lambda units: None)


def seconds(function: Callable[[], object]) -> float:
    begun = time.process_time()
    function()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=30_000)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hypotheses, trials = gradients(arguments.elements), arguments.trials
    ways: dict[str, Callable[[], object]] = {
        "numpy loop": lambda: numpy_loop(hypotheses, trials),
        "implementation": lambda: game(hypotheses, trials, "implementation"),
        "exact": lambda: draw_law(hypotheses, trials),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            taken[name].append(seconds(way))
    loop = statistics.median(taken["numpy loop"])
    releases = f"{trials} + {trials} releases of {arguments.elements} elements"
    print(f"{releases}, both statistics, one thread")
    for name, times in taken.items():
        middle = statistics.median(times)
        print(f"{name:15s} {middle * 1e3:10.2f} ms   {loop / middle:9.1f} times the loop's speed")
    peak = peak_bytes(lambda: game(hypotheses, 500, "implementation"))
    whole = trials * 2 * arguments.elements * 4
    print(f"memory at its peak {peak / 2**20:.0f} MiB; all releases {whole / 2**20:.0f} MiB")
    for seed in range(SEEDS):
        real, law = (game(hypotheses, trials, mode, seed) for mode in ("implementation", "exact"))
        values = [
            ks_2samp(getattr(score, side), getattr(law.scores[name], side)).pvalue
            for name, score in real.scores.items()
            for side in ("null", "alternative")
        ]
        print(
            f"seed {seed}: Kolmogorov-Smirnov p of both statistics, both hypotheses:",
            *(f"{p:.3f}" for p in values),
        )


if __name__ == "__main__":
    main()
