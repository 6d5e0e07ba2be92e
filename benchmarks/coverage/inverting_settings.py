"""Settings of inverting gradients side by side, with the same number of evaluations, by PSNR.

All settings run at once from their own starting points, folded into one batch (one gradient pass of
the model for all), on pictures that the nets were not trained on, labels known, norms in evaluation
mode. ``ours`` is what the attack does by default. ``paper`` is Geiping et al. (2020) with their
weight of the total variation; ``modern`` the settings of that name in breaching 0.1.2 (Adam, the
gradient through tanh, total variation of pixels and differences of colours, isotropic, weight 0.1,
half a cosine after 50 steps of warm-up, a random tile of 4×4 repeated) without its prior on the
features of the last layer; ``modern, at once`` leaves out the warm-up, which so few steps do not
repay.

Batches of one picture, 200 iterations, mean PSNR of two pictures (one number is no better than a
decibel, the scenes agree):

    net, data, epochs        ours  weight 0.2  weight 1e-4  paper  modern
    LeNet, CIFAR-10, 0      14.56       15.16         9.96  10.11   13.75
    LeNet, CIFAR-10, 3      16.10       15.51        11.91  11.33   15.62
    LeNet, faces, 0         12.80       13.16         9.36   9.59   11.38
    LeNet, faces, 3         14.19       13.62        17.11  17.56   11.82
    residual, CIFAR-10, 0   15.35       15.32            –  10.89   14.47
    ResNet-8, CIFAR-10, 3   13.02       13.39            –   9.61   11.08
    residual, faces, 3      10.36       10.97            –   8.83   10.55

Ten pictures, 400 iterations, LeNet on CIFAR-10 of 0 and 3 epochs: ours 14.04 and 15.50, weight 0.2
14.01 and 14.96, modern 11.32 and 12.90; ours with modern's total variation (``colours``) 11.70 and
12.87, with its gradient through tanh (``soft sign``) 14.21 and 15.41, with both 11.84 and 12.95.

One batch of eight, 150 iterations, residual net, CIFAR-10, 3 epochs: 12.19, weight 0.2 12.25, paper
8.39, modern 12.17, at once 11.77.

    python -m benchmarks.coverage.inverting_settings [--iterations 200] [--batch 1 8 …]
        [--batches 2] [--epochs 0 3 …] [--nets residual …] [--settings ours paper modern …]
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import cos, pi

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import arguments, cifar10, epochs_of, fit, scaled, seen_of, stored
from benchmarks.nets import small_residual
from gradaudit import zoo
from gradaudit.attacks.reconstruction.closeness import scores_of
from gradaudit.attacks.reconstruction.matching.folded import folded
from gradaudit.attacks.reconstruction.matching.objectives import Objective, total_variation
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.data.records import Records

RATE, WARM_UP = 0.1, 50


def steps(iteration: int, iterations: int) -> float:
    return 0.1 ** sum(iteration >= share * iterations for share in (3 / 8, 5 / 8, 7 / 8))


def half_a_cosine(iteration: int, iterations: int) -> float:
    return (1 + cos(pi * iteration / iterations)) / 2


def warmed_up(iteration: int, iterations: int) -> float:
    late = max(0, iteration - WARM_UP) / max(1, iterations - WARM_UP)
    return min(1.0, (iteration + 1) / WARM_UP) * (1 + cos(pi * late)) / 2


def colours(picture: Tensor) -> Tensor:
    """Isotropic total variation of (k, 3, height, width) and of its differences of colours."""
    red, green, blue = picture.unbind(dim=1)
    planes = torch.stack([red, green, blue, red - green, red - blue, green - blue], dim=1)
    planes = F.pad(planes, (0, 1, 0, 1))
    corner = planes[..., :-1, :-1]
    down = (planes[..., 1:, :-1] - corner).abs() + 1e-8
    across = (planes[..., :-1, 1:] - corner).abs() + 1e-8
    return (down.square() + across.square()).sqrt().mean()


def as_it_is(gradient: Tensor, left: float) -> Tensor:
    return gradient


def sign(gradient: Tensor, left: float) -> Tensor:
    return gradient.sign()


def soft_sign(gradient: Tensor, left: float) -> Tensor:
    return (gradient * left).tanh() / left


@dataclass(frozen=True)
class Setting:
    """How one attack goes on."""

    weight: float
    variation: Callable[[Tensor], Tensor] = total_variation
    turn: Callable[[Tensor, float], Tensor] = as_it_is
    pace: Callable[[int, int], float] = half_a_cosine
    tiled: bool = False

    def start(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if not self.tiled:
            return torch.randn(shape, generator=generator)
        tile = torch.randn(*shape[:2], 4, 4, generator=generator)
        return tile.repeat(1, 1, shape[2] // 4, shape[3] // 4)


SETTINGS = {
    "ours": Setting(0.1),
    "weight 0.2": Setting(0.2),
    "weight 0.01": Setting(0.01),
    "weight 1e-4": Setting(1e-4),
    "paper": Setting(1e-4, turn=sign, pace=steps),
    "paper, weight 0.1": Setting(0.1, turn=sign, pace=steps),
    "modern": Setting(0.1, colours, soft_sign, warmed_up, tiled=True),
    "modern, at once": Setting(0.1, colours, soft_sign, tiled=True),
    "colours": Setting(0.1, colours),
    "soft sign": Setting(0.1, turn=soft_sign),
    "both": Setting(0.1, colours, soft_sign),
}


def psnr(model: torch.nn.Module, batch: Records, given: argparse.Namespace, seed: int) -> Tensor:
    """Of every setting's answer, the best point by its own objective, (settings,)."""
    chosen = [SETTINGS[name] for name in given.settings]
    view, shape = seen_of(model, batch, known_labels=True), tuple(batch.inputs.shape)
    evaluate = folded(Objective(view, Targets.of(view, view.labels), "cosine"))
    drawn = [one.start(shape, torch.Generator().manual_seed(seed)) for one in chosen]
    points = torch.stack(drawn).flatten(1).clamp(0, 1)
    first, second, best = torch.zeros_like(points), torch.zeros_like(points), points.clone()
    least = torch.full((len(points),), torch.inf)
    for iteration in range(given.iterations + 1):
        values, gradients = evaluate(points)
        left = max(1 - iteration / given.iterations, 1e-6)
        for row, one in enumerate(chosen):
            value, gradient = prior(one, points[row].reshape(shape))
            values[row] += value
            gradients[row] = one.turn(gradients[row] + gradient, left)
        better = values < least
        best[better], least[better] = points[better], values[better]
        first.lerp_(gradients, 0.1)
        second.lerp_(gradients.square(), 0.001)
        rates = torch.tensor([RATE * one.pace(iteration, given.iterations) for one in chosen])
        spread = (second / (1 - 0.999 ** (iteration + 1))).sqrt() + 1e-8
        moves = rates[:, None] / (1 - 0.9 ** (iteration + 1)) * first / spread
        points = (points - moves).clamp(0, 1)
    found = scores_of(batch.inputs, best.reshape(-1, *shape), pictures=True)["psnr"]
    return torch.as_tensor(found)


def prior(setting: Setting, picture: Tensor) -> tuple[float, Tensor]:
    picture = picture.detach().requires_grad_()
    value = setting.weight * setting.variation(picture)
    (gradient,) = torch.autograd.grad(value, picture)
    return float(value.detach()), gradient.flatten()


NETS: dict[str, Callable[[], torch.nn.Module]] = {
    "residual": small_residual,
    "lenet": lambda: zoo.build("lenet"),
    "alexnet-mo21": lambda: zoo.build("alexnet-mo21"),
}


def pictures(name: str) -> tuple[Tensor, Tensor]:
    """Of CIFAR-10 with their classes, or faces with their gender."""
    if name == "cifar10":
        records = cifar10()
        return records.inputs.float(), records.labels
    faces = stored("utkface_32.npz")
    return scaled(faces["images"]).float(), torch.from_numpy(faces["gender"]).long()


def scenes(given: argparse.Namespace) -> Iterator[tuple[str, torch.nn.Module, list[Records]]]:
    for name, net in product(("cifar10", "faces"), given.nets):
        inputs, labels = pictures(name)
        for seed, epochs in enumerate(given.epochs):
            torch.manual_seed(seed)
            model = NETS[net]()
            adam = torch.optim.Adam(model.parameters(), lr=1e-3)
            model = fit(
                model, inputs[100:3100], labels[100:3100], adam, epochs_of(3000, 64, epochs)
            )
            for size in given.batch:
                parts = torch.split(torch.arange(given.batches * size), size)
                batches = [Records(inputs[rows], labels[rows]) for rows in parts]
                yield f"{net} on {name}, {epochs} epochs, batches of {size}", model, batches


def main() -> None:
    given = arguments(__doc__)
    for title, model, batches in scenes(given):
        found = [psnr(model, batch, given, seed) for seed, batch in enumerate(batches)]
        print(title)
        for name, value in zip(given.settings, torch.stack(found).mean(dim=0), strict=True):
            print(f"    {name:20}{float(value):7.2f} dB", flush=True)


if __name__ == "__main__":
    main()
