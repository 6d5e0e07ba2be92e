"""The search behind a later layer's input: ours, and one jvp at a time solved to the last digit.

The former way forms J of up to a million elements and else asks for one ``jvp`` a product; every
step is solved to 13 digits. Both take as many steps, in turns, on LeNet and one face of UTKFace or,
where that is missing, noise. Medians of CPU seconds, and the residuals of both.

    python benchmarks/closed_form_search.py [--sides 32 64] [--steps 5] [--repeats 3]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from gradaudit import zoo
from gradaudit.attacks.layerwise.levenberg_marquardt import minimise
from gradaudit.attacks.layerwise.systems import Vector, float64
from gradaudit.attacks.reconstruction.closed_form import Inversion, layer_input
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target


def picture(folder: Path, side: int) -> Tensor:
    if not (folder / "utkface_32.npz").exists():
        return torch.rand(1, 3, side, side).double()
    with np.load(folder / "utkface_32.npz", allow_pickle=False) as data:
        face = torch.tensor(data["images"][:1]).permute(0, 3, 1, 2).double() / 255
    return F.interpolate(face, size=(side, side), mode="bilinear")


def products(problem: Inversion, z: Vector) -> LinearOperator:
    def shaped(vector: Vector) -> Tensor:
        return torch.from_numpy(vector.ravel()).reshape(1, *problem.shape)

    pull = torch.func.vjp(problem.read, shaped(z))[1]
    return LinearOperator(
        (len(problem.wanted), len(z)),
        matvec=lambda v: float64(torch.func.jvp(problem.read, (shaped(z),), (shaped(v),))[1]),
        rmatvec=lambda u: float64(pull(torch.from_numpy(u.ravel()))[0].flatten()),
        dtype="float64",
    )


def former(problem: Inversion, start: Vector, steps: int) -> float:
    z, damping = start, 1e-3
    exactly = partial(lsmr, atol=1e-13, btol=1e-13, conlim=0, maxiter=500)
    left = problem.residuals(z)
    for _ in range(steps):
        tried = z + exactly(products(problem, z), -left, damp=damping)[0]
        then = problem.residuals(tried)
        if np.linalg.norm(then) < np.linalg.norm(left):
            z, left, damping = tried, then, damping / 10
        else:
            damping *= 10
    return float(np.linalg.norm(left)) / problem.scale


def ours(problem: Inversion, start: Vector, steps: int) -> float:
    return minimise(problem, start, steps=steps, inner=500).residual


def timed(way: Callable[[], float]) -> tuple[float, float]:
    begun = time.process_time()
    residual = way()
    return time.process_time() - begun, residual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sides", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for side in given.sides:
        torch.manual_seed(0)
        model = zoo.build("lenet", shape=(3, side, side))
        read = layer_input(FunctionalModel.of(Target(model, CrossEntropy())), "fc1")
        record = picture(given.data, side)
        with torch.no_grad():
            problem = Inversion(read, read(record), tuple(record.shape[1:]))
        start = np.full(record.numel(), 0.5)
        ways = [partial(way, problem, start, given.steps) for way in (former, ours)]
        runs = [[timed(way) for way in ways] for _ in range(given.repeats)]
        (before, old), (now, new) = (
            [statistics.median(column) for column in zip(*way, strict=True)]
            for way in zip(*runs, strict=True)
        )
        print(
            f"lenet {side}×{side}, {given.steps} steps: {before:.2f} s before (left {old:.2e}), "
            f"{now:.2f} s now ({new:.2e}), {before / now:.1f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
