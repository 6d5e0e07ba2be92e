"""DLG in single, double and mixed precision: what as many evaluations rebuild, and how fast.

Every reconstruction starts at the same points in each precision and takes as many outer steps of up
to 20 steps or 25 evaluations. Printed for each: the share whose relative error is below 1e-2 and
1e-6, the median error, and processor time over that of double precision. What decides is paired by
starting point: how many errors are smaller, or larger, by a tenth or more in mixed than in double
precision, with the p-value of the two-sided sign test. Mixed precision is used here wherever it is
asked for; in an attack only where evaluations are many and large (``blocks._LONG``, ``_WIDE``).

Last run with 7 records, 112 reconstructions a line, single records unless said (share below 1e-2;
median error in mixed, single and double precision; better and worse; time of mixed):

    digits, fresh, 100 evaluations        99 %  5.7e-8  7.3e-7  5.7e-8  45 39  1.19
    digits, fresh, 300                    99 %  6.5e-10 7.2e-7  6.5e-10 42 34  1.18
    digits, trained, 300                   4 %  1.2     1.2     1.1     20 18  1.00
    digits, fresh, batches of 4, 100       0 %  5.0e-2  5.0e-2  5.0e-2   0  3   .85
    lenet, fresh, 300                      0 %  5.4e-1  6.0e-1  5.4e-1   4  8  1.01
    deep-leakage, fresh, 300              53 %  9.5e-3  9.5e-3  9.4e-3  16 22   .71
    deep-leakage, trained, 300             0 %  1.0     1.0     1.0      4  2   .83

    python -m benchmarks.speed.mixed_precision [--scenes digits lenet deep-leakage …]
        [--batch-size 1 4 …] [--records 8] [--restarts 16] [--outer 1 4 12 …]
"""

import runpy
import sys
import time
from collections.abc import Callable
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.harness import SAMPLES, arguments, drawn, fit, seen_of
from gradaudit import zoo
from gradaudit.attacks.reconstruction.closeness import scores_of
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage
from gradaudit.attacks.reconstruction.matching import blocks
from gradaudit.attacks.reconstruction.matching.objectives import Objective
from gradaudit.attacks.reconstruction.matching.restarts import MatchingOptions, Precision
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.data.records import Records

STEPS_OF_TRAINING = 600


def digits(side: int) -> tuple[Tensor, Tensor]:
    """The pictures of scikit-learn, of so many pixels a side, and their classes."""
    data = load_digits()
    pictures = torch.from_numpy(data.images / 16).float()[:, None]
    return F.interpolate(pictures, size=(side, side), mode="bilinear"), torch.from_numpy(
        data.target
    )


def sample(trained: bool) -> nn.Module:
    model: nn.Module = runpy.run_path(str(SAMPLES / "models.py"))["digits_cnn"]()
    if trained:
        model.load_state_dict(load_file(SAMPLES / "digits" / "round-10.safetensors"))
    return model


def lenet(trained: bool) -> nn.Module:
    model = zoo.build("lenet", shape=(1, 28, 28), activation="sigmoid")
    return learned(model, *digits(28)) if trained else model


def deep_leakage(trained: bool) -> nn.Module:
    model = zoo.build("deep-leakage", shape=(1, 28, 28), classes=10, init="uniform:0.5")
    return learned(model, *digits(28)) if trained else model


def learned(model: nn.Module, pictures: Tensor, classes: Tensor) -> nn.Module:
    """The model after some hundred steps of Adam."""
    adam = torch.optim.Adam(model.parameters(), 2e-3)
    return fit(model, pictures, classes, adam, drawn(len(classes), 64, STEPS_OF_TRAINING))


SCENES: dict[str, tuple[int, Callable[[bool], nn.Module]]] = {
    "digits": (8, sample),
    "lenet": (28, lenet),
    "deep-leakage": (28, deep_leakage),
}


def objective(model: nn.Module, batch: Records) -> Objective:
    view = seen_of(model, batch, dtype=torch.float64)
    return Objective(view, Targets.of(view, None))


Ends = dict[Precision, tuple[NDArray[np.float64], float]]
"""Relative errors (restarts,) and seconds on a processor, by precision."""


def ends(goal: Objective, truth: Tensor, points: Tensor, outer: int) -> Ends:
    found: Ends = {}
    for precision in get_args(Precision):
        single = precision == "float32"
        where = goal.in_precision(torch.float32) if single else goal
        search = DeepLeakage(MatchingOptions(iterations=outer, precision=precision)).search(where)
        begun = time.process_time()
        minimum = search.minimised(points.to(where.view.dtype), 1, lambda units: None)
        seconds = time.process_time() - begun
        records = goal.view.clipped(goal.records(minimum.points.double()))
        scores = scores_of(truth, records, pictures=False)
        found[precision] = scores["relative_error"].numpy(), seconds
    return found


def line(title: str, all_ends: list[Ends]) -> None:
    """What all reconstructions of a scene came to."""
    errors = {name: np.concatenate([one[name][0] for one in all_ends]) for name in all_ends[0]}
    seconds = {name: sum(one[name][1] for one in all_ends) for name in errors}
    told = "; ".join(
        f"{name} {np.mean(found < 1e-2):4.0%} {np.mean(found < 1e-6):4.0%} {np.median(found):.1e} "
        f"time {seconds[name] / seconds['float64']:.2f}"
        for name, found in errors.items()
    )
    mixed, double = errors["mixed"], errors["float64"]
    better, worse = int((mixed < 0.9 * double).sum()), int((double < 0.9 * mixed).sum())
    p = binomtest(better, better + worse).pvalue if better + worse else 1.0
    print(f"{title} n {len(mixed)}: {told}; mixed better {better}, worse {worse}, p {p:.2f}")
    sys.stdout.flush()


def main() -> None:
    given = arguments(__doc__)
    blocks._WIDE = blocks._LONG = 0
    for name in given.scenes:
        side, build = SCENES[name]
        for trained in (False, True):
            torch.manual_seed(0)
            model, (pictures, classes) = build(trained).double().eval(), digits(side)
            for size in given.batch_size:
                batches = [slice(i * size, (i + 1) * size) for i in range(given.records)]
                goals = [
                    objective(model, Records(pictures[rows].double(), classes[rows]))
                    for rows in batches
                ]
                for outer in given.outer:
                    found = []
                    for number, (rows, goal) in enumerate(zip(batches, goals, strict=True)):
                        draws = torch.Generator().manual_seed(number)
                        shape = given.restarts, goal.unknowns
                        points = torch.randn(shape, generator=draws, dtype=torch.float64)
                        found.append(ends(goal, pictures[rows].double(), points, outer))
                    state = "trained" if trained else "fresh"
                    line(f"{name} {state}, batches of {size}, {25 * outer} evaluations,", found)


if __name__ == "__main__":
    main()
