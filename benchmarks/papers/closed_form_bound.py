"""The closed form under noise: relative error against ‖B‖/‖E_B‖, and bound (3) of Fan et al. 2020.

One fully connected first layer of ``--rows`` sigmoid units reads CIFAR-10 pictures in [0, 1]; the
gradient of one picture, cross-entropy, gets Gaussian noise of one deviation on weight and bias so
that ‖B‖_F/‖E_B‖_F is as stated. For every ratio, over all pictures and ``--draws`` of noise: mean
relative error ‖x̂ − x‖/‖x‖ by least squares over all rows, by the row with the largest observed
bias gradient, and by least squares whose denominator has the noise's share subtracted (an attacker
who knows its deviation: Σ b̄w̄ / max(Σ b̄² − mσ², 0.25 Σ b̄²)); the mean correlation of x̂'s
pixels with x's; how often condition (2) holds for all rows and for the best row, and how often
bound (3) is then exceeded, and how often our own bound for least squares is. The best constant
picture has the relative error printed first: below that something is recovered.

    python -m benchmarks.papers.closed_form_bound [--pictures 10] [--draws 10] [--rows 128]
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, cifar10
from gradaudit.attacks.layerwise.fully_connected import conditions, least_squares_bound
from gradaudit.attacks.layerwise.layer_chain import fully_connected_input
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

RATIOS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.5, 0.3, 0.1)
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Trial:
    """One picture under one draw of noise; errors by way, bounds and what they stand against."""

    errors: dict[str, float]
    correlation: float
    holds: tuple[bool, bool]
    violated: tuple[bool, bool]
    own: tuple[bool, bool]


def gradients(model: FunctionalModel, picture: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return model.losses(parameters, picture, label).mean()

    update = torch.func.grad(loss)(model.parameters)
    return update["1.weight"], update["1.bias"]


def trial(weight: Tensor, bias: Tensor, x: Tensor, ratio: float, seed: int) -> Trial:
    generator = torch.Generator().manual_seed(seed)
    e_b = torch.randn(bias.shape, generator=generator, dtype=torch.float64)
    e_w = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    sigma = bias.norm() / (ratio * e_b.norm())
    e_b, e_w = sigma * e_b, sigma * e_w
    seen_w, seen_b = weight + e_w, bias + e_b
    best = int(seen_b.abs().argmax())
    square = seen_b.square().sum()
    found = fully_connected_input(seen_w, seen_b)
    known = found * square / (square - len(bias) * sigma**2).clamp_min(0.25 * square)
    ways = {"least squares": found, "best row": seen_w[best] / seen_b[best], "σ known": known}
    errors = {name: float((way - x).norm() / x.norm()) for name, way in ways.items()}
    every = conditions(weight, bias, e_w, e_b)
    one = conditions(weight, bias, e_w, e_b, [best])
    own = least_squares_bound(weight, bias, e_w, e_b)
    return Trial(
        errors,
        float(torch.corrcoef(torch.stack([found, x]))[0, 1]),
        (every.r < 1, one.r < 1),
        (
            errors["least squares"] > every.bound * SLACK,
            errors["best row"] > one.bound * SLACK,
        ),
        (math.isfinite(own), errors["least squares"] > own * SLACK),
    )


def show(ratio: float, trials: list[Trial]) -> None:
    def share(flags: list[bool]) -> str:
        return f"{sum(flags)}/{len(flags)}"

    region = "red" if ratio >= 10 else "white" if ratio >= 1 else "green"
    errors = "  ".join(
        f"{name} {np.mean([t.errors[name] for t in trials]):7.4f}" for name in trials[0].errors
    )
    print(
        f"{ratio:>6g} {region:<5} {errors}  correlation "
        f"{np.mean([t.correlation for t in trials]):6.3f} | r<1: all rows "
        f"{share([t.holds[0] for t in trials])}, best row {share([t.holds[1] for t in trials])}"
        f" | (3) exceeded: {sum(t.violated[0] for t in trials)}, "
        f"{sum(t.violated[1] for t in trials)} | own bound holds "
        f"{share([t.own[0] for t in trials])}, exceeded {sum(t.own[1] for t in trials)}",
        flush=True,
    )


def main() -> None:
    given = arguments(__doc__)
    records = cifar10().take(np.arange(given.pictures))
    inputs, labels = records.inputs, records.labels
    torch.manual_seed(0)
    layers = [nn.Linear(3072, given.rows), nn.Sigmoid(), nn.Linear(given.rows, 10)]
    model = FunctionalModel.of(
        Target(nn.Sequential(nn.Flatten(), *layers).double(), CrossEntropy())
    )
    flat = inputs.flatten(1)
    constant = (flat - flat.mean(dim=1, keepdim=True)).norm(dim=1) / flat.norm(dim=1)
    print(f"best constant picture: relative error {float(constant.mean()):.3f}")
    shared = [gradients(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(len(inputs))]
    for ratio in RATIOS:
        trials = [
            trial(*pair, flat[number], ratio, 1000 * number + draw)
            for number, pair in enumerate(shared)
            for draw in range(given.draws)
        ]
        show(ratio, trials)


if __name__ == "__main__":
    main()
