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
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import arguments, cifar10, heading, line, seen_of
from gradaudit.attacks.reconstruction import AttackerView, Execution, reconstructions
from gradaudit.attacks.reconstruction.copa import denoise
from gradaudit.data.records import Records
from gradaudit.models.building import load_model

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
    batch = Records(picture[None], torch.tensor([label]))
    view = seen_of(model, batch, known_labels=True, dtype=torch.float64)
    update = view.update
    if float32:
        update = {name: part.float().double() for name, part in update.items()}
    low = 0.0 if float(picture.min()) >= 0 else -0.5
    return replace(view, update=update, bounds=(low, low + 1))


def attacked(name: str, view: AttackerView, restarts: int) -> list[Tensor]:
    """The records of each start."""
    attack: Any = reconstructions()[name]
    found = attack(attack.Options(box=False), restarts=restarts).run(view, Execution())
    return [found.inputs[start, 0] for start in range(restarts)]


def errors(view: AttackerView, picture: Tensor) -> dict[str, tuple[float, float]]:
    """MSE by method, from a grey start and from noise."""
    starts, (by_r_gap,) = attacked("copa", view, 2), attacked("r-gap", view, 1)
    found = {
        "COPA original": starts,
        "COPA denoised": [denoise(start, WEIGHT) for start in starts],
        "R-GAP": [by_r_gap, by_r_gap],
    }
    return {
        name: tuple(float((each - picture).square().mean()) for each in both)  # type: ignore[misc]
        for name, both in found.items()
    }


def psnr(error: float) -> str:
    """With a peak of 1, and the paper's with a peak of 255."""
    ours = -10 * math.log10(error) if error else math.inf
    return f"{ours:.1f} / {ours + 20 * math.log10(255):.1f}"


def main() -> None:
    given = arguments(__doc__)
    heading("activation, variant", "method", "paper", "grey", "PSNR", "noise", "s a picture")
    for activation in given.activations.split(","):
        for variant in map(int, given.variants):
            begun, results = time.perf_counter(), []
            for number, (picture, label) in enumerate(pictures(given.pictures)):
                shown = picture - 0.5 if given.centred else picture
                seed = given.seed + number
                view = view_of(activation, variant, shown, label, seed, given.float32)
                results.append(errors(view, shown))
            seconds = (time.perf_counter() - begun) / len(results)
            for method, paper in zip(METHODS, PAPER[activation, variant], strict=True):
                grey, noise = np.transpose([result[method] for result in results])
                ours = f"{grey.mean():.3g} [{grey.min():.2g}, {grey.max():.2g}]"
                cells = f"{np.mean(paper):.4f}", ours, psnr(grey.mean()), f"{noise.mean():.3g}"
                line(f"{activation} {variant}", method, *cells, f"{seconds:.1f}")


if __name__ == "__main__":
    main()
