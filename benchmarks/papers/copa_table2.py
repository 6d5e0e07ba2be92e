"""COPA's table 2: CNN3 in four variants, two activations, rebuilt by R-GAP and by COPA.

Chen & Campbell (2021) rebuild two CIFAR-10 pictures, a truck and an animal, by networks with random
weights and print MSE and PSNR; the PSNR of pictures in [0, 1] has a peak of 255 there, which is
48.1 dB more than with a peak of 1. The paper names neither pictures nor weights nor where its
optimiser starts, so that MSEs are to be compared by their order among variants. Here: pictures in
[0, 1], the first trucks and the first deer of the test set, label known, float64; weights as
PyTorch draws them; COPA started from mid-grey and from uniform noise; MSE of the raw result,
unclipped. Pictures minus 1/2 can be asked for: a picture's mean is most of its energy, and R-GAP's
shortest solution where a layer leaves directions open is the closest one to zero.

    python -m benchmarks.papers.copa_table2 [--pictures 1] [--variants '3124']
        [--activations tanh,leaky] [--seed 0] [--centred] [--float32]
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import arguments, cifar10
from gradaudit.attacks.reconstruction import AttackerView, Candidates, Execution, reconstructions
from gradaudit.attacks.reconstruction.copa import denoise
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

SHAPE = (3, 32, 32)
ACTIVATIONS = {"tanh": ("tanh", "tanh"), "leaky": ("leaky-relu", "sigmoid")}
SUBJECTS = ("truck", "deer")
METHODS = ("COPA original", "COPA denoised", "R-GAP")
WEIGHT = 0.15

PAPER = {  # MSE of (truck, animal) by COPA original, COPA denoised, R-GAP
    ("tanh", 1): ((0.0512, 0.0766), (0.0426, 0.0596), (0.0483, 0.0578)),
    ("tanh", 2): ((0.1921, 0.1913), (0.0738, 0.0707), (0.0502, 0.0533)),
    ("tanh", 3): ((0.0001, 0.0001), (0.0088, 0.0031), (0.0000, 0.0000)),
    ("tanh", 4): ((0.1007, 0.0861), (0.0524, 0.0373), (0.0472, 0.0385)),
    ("leaky", 1): ((0.0546, 0.1046), (0.0516, 0.0950), (25.2923, 31.3128)),
    ("leaky", 2): ((0.1751, 0.2571), (0.1016, 0.1822), (12.3527, 3.6857)),
    ("leaky", 3): ((0.0355, 0.0565), (0.0386, 0.0563), (0.0000, 0.0000)),
    ("leaky", 4): ((0.0868, 0.1061), (0.0630, 0.0908), (0.0483, 0.0382)),
}


@dataclass(frozen=True)
class Result:
    """MSE by method, for one picture."""

    from_grey: dict[str, float]
    from_noise: dict[str, float]
    r_gap: float
    seconds: dict[str, float]


def pictures(count: int) -> Iterator[tuple[Tensor, int]]:
    """The first test pictures of each subject, (3, 32, 32) in [0, 1], and their labels."""
    records = cifar10(tested=True)
    for label in map(records.classes.index, SUBJECTS):
        for picture in records.inputs[records.labels == label][:count]:
            yield picture, label


def view_of(
    activation: str, variant: int, picture: Tensor, label: int, seed: int, float32: bool = False
) -> AttackerView:
    hidden, last = ACTIVATIONS[activation]
    torch.manual_seed(seed)
    model = load_model(
        f"zoo:cnn3?variant={variant}&activation={hidden}&output_activation={last}"
    ).double()
    functional = FunctionalModel.of(Target(model, CrossEntropy()))
    labels = torch.tensor([label])

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional.losses(parameters, picture[None], labels).mean()

    update = torch.func.grad(loss)(functional.parameters)
    if float32:
        update = {name: part.float().double() for name, part in update.items()}
    low = 0.0 if float(picture.min()) >= 0 else -0.5
    return AttackerView(
        functional, update, 1, SHAPE, classes=10, labels=labels, bounds=(low, low + 1)
    )


def attacked(name: str, view: AttackerView, restarts: int) -> tuple[Candidates, float]:
    attack: Any = reconstructions()[name]
    started = time.perf_counter()
    found = attack(attack.Options(box=False), restarts=restarts).run(view, Execution())
    return found, time.perf_counter() - started


def measured(view: AttackerView, picture: Tensor) -> Result:
    copa, copa_seconds = attacked("copa", view, 2)
    r_gap, r_gap_seconds = attacked("r-gap", view, 1)

    def scores(record: Tensor) -> dict[str, float]:
        return {
            "COPA original": mse(record, picture),
            "COPA denoised": mse(denoise(record, WEIGHT), picture),
        }

    return Result(
        scores(copa.inputs[0, 0]),
        scores(copa.inputs[1, 0]),
        mse(r_gap.inputs[0, 0], picture),
        {"copa": copa_seconds / 2, "r-gap": r_gap_seconds},
    )


def mse(found: Tensor, picture: Tensor) -> float:
    return float((found - picture).square().mean())


def psnr(error: float) -> str:
    """With a peak of 1, and the paper's with a peak of 255."""
    if error == 0:
        return "inf"
    ours = -10 * math.log10(error)
    return f"{ours:.1f} / {ours + 20 * math.log10(255):.1f}"


def row(activation: str, variant: int, results: list[Result]) -> None:
    paper = PAPER[activation, variant]
    for number, method in enumerate(METHODS):
        grey = [r.r_gap if method == "R-GAP" else r.from_grey[method] for r in results]
        noise = [r.r_gap if method == "R-GAP" else r.from_noise[method] for r in results]
        seconds = np.mean([r.seconds["r-gap" if method == "R-GAP" else "copa"] for r in results])
        mean = float(np.mean(grey))
        print(
            f"{activation:>6} {variant} {method:<14} paper {np.mean(paper[number]):>8.4f} | "
            f"grey {mean:>9.3g} [{min(grey):.2g}, {max(grey):.2g}] PSNR {psnr(mean):>15} | "
            f"noise {np.mean(noise):>9.3g} | {seconds:6.1f} s",
            flush=True,
        )


def main() -> None:
    given = arguments(__doc__)
    for activation in given.activations.split(","):
        for variant in map(int, given.variants):
            results = []
            for number, (picture, label) in enumerate(pictures(given.pictures)):
                shown = picture - 0.5 if given.centred else picture
                seed = given.seed + number
                view = view_of(activation, variant, shown, label, seed, given.float32)
                results.append(measured(view, shown))
            row(activation, variant, results)


if __name__ == "__main__":
    main()
