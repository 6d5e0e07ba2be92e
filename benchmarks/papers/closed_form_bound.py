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

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, cifar10, heading, line, seen_of
from gradaudit.attacks.layerwise.fully_connected import inversion_bound, least_squares_bound
from gradaudit.attacks.layerwise.layer_chain import invert_linear

RATIOS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.5, 0.3, 0.1)
SLACK = 1 + 1e-9


def trial(weight: Tensor, bias: Tensor, x: Tensor, ratio: float, seed: int) -> dict[str, float]:
    """Errors of one picture under one draw of noise, and whether conditions and bounds hold."""
    generator = torch.Generator().manual_seed(seed)
    e_b = torch.randn(bias.shape, generator=generator, dtype=torch.float64)
    e_w = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    sigma = bias.norm() / (ratio * e_b.norm())
    e_b, e_w = sigma * e_b, sigma * e_w
    seen_w, seen_b = weight + e_w, bias + e_b
    best = int(seen_b.abs().argmax())
    square = seen_b.square().sum()
    found = invert_linear(seen_w, seen_b)
    known = found * square / (square - len(bias) * sigma**2).clamp_min(0.25 * square)
    ways = {"least squares": found, "best row": seen_w[best] / seen_b[best], "σ known": known}
    errors = {name: float((way - x).norm() / x.norm()) for name, way in ways.items()}
    every = inversion_bound(weight, bias, e_w, e_b)
    one = inversion_bound(weight, bias, e_w, e_b, [best])
    own = least_squares_bound(weight, bias, e_w, e_b)
    return {
        **errors,
        "correlation": float(torch.corrcoef(torch.stack([found, x]))[0, 1]),
        "r < 1, all rows": every.r < 1,
        "r < 1, best row": one.r < 1,
        "(3) exceeded, all rows": errors["least squares"] > every.bound * SLACK,
        "(3) exceeded, best row": errors["best row"] > one.bound * SLACK,
        "own bound holds": math.isfinite(own),
        "own bound exceeded": errors["least squares"] > own * SLACK,
    }


def main() -> None:
    given = arguments(__doc__)
    records = cifar10().take(np.arange(given.pictures))
    torch.manual_seed(0)
    layers = [nn.Linear(3072, given.rows), nn.Sigmoid(), nn.Linear(given.rows, 10)]
    model = nn.Sequential(nn.Flatten(), *layers).double()
    flat = records.inputs.flatten(1)
    constant = (flat - flat.mean(dim=1, keepdim=True)).norm(dim=1) / flat.norm(dim=1)
    print(f"best constant picture: relative error {float(constant.mean()):.3f}")
    alone = (records.take(np.array([n])) for n in range(len(records)))
    seen = [seen_of(model, one, dtype=torch.float64).update for one in alone]
    for ratio in RATIOS:
        trials = [
            trial(of["1.weight"], of["1.bias"], flat[number], ratio, 1000 * number + draw)
            for number, of in enumerate(seen)
            for draw in range(given.draws)
        ]
        means = {name: float(np.mean([t[name] for t in trials])) for name in trials[0]}
        if ratio == RATIOS[0]:
            heading("‖B‖/‖E_B‖", *means)
        line(f"{ratio:g}", *(f"{mean:.4f}" for mean in means.values()))


if __name__ == "__main__":
    main()
