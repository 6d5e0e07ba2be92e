"""Floors of networks of two inputs beside the exact Bayes error, with and without weights.

    python -m benchmarks.coverage.bayes_floors [--records 1024] [--audits 20]

2-8-2 networks of tanh, trained by 0, 300 and 2,000 steps of Adam on two Gaussian classes and on two
half-moons; noise of 0.01 to 1 times what a direction tells on average. The best attacker's error is
the variance of the posterior on a grid of 301 × 301, on average over 200 updates. The audits draw
records anew: their median floor, how many of them lie beyond the Bayes error, and the same for van
Trees and the genie alone. Minutes on one thread.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, fit
from gradaudit.audits.floor.functionals import share
from gradaudit.audits.floor.information import Information, layer_information, sum_of_layers
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0)
UPDATES = 200
Data = tuple[Tensor, Tensor]


def gauss(generator: torch.Generator) -> Data:
    labels = torch.randint(2, (500,), generator=generator)
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    return 0.8 * noise + 0.8 * (2.0 * labels - 1)[:, None], labels


def moons(generator: torch.Generator) -> Data:
    labels = torch.randint(2, (500,), generator=generator)
    angles = math.pi * torch.rand(500, generator=generator, dtype=torch.float64)
    side = 1.0 - 2 * labels
    across, along = angles.cos() * side + labels - 0.5, angles.sin() * side + 0.5 * labels - 0.25
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    return torch.stack([across, along], dim=1) + 0.15 * noise, labels


def trained(data: Data, steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    return fit(model, *data, adam, [torch.arange(500)] * steps)


def gradients_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Records' gradients, (records, elements)."""
    names, values = zip(*model.named_parameters(), strict=True)
    weights = tuple(value.detach() for value in values)

    def gradient(record: Tensor, label: Tensor) -> Tensor:
        def loss(parameters: tuple[Tensor, ...]) -> Tensor:
            state = dict(zip(names, parameters, strict=True))
            outputs = torch.func.functional_call(model, state, record[None])
            return nn.functional.cross_entropy(outputs, label[None])

        return torch.cat([part.flatten() for part in torch.func.grad(loss)(weights)])

    return torch.func.vmap(gradient)


class Attacker:
    """The best there is: who takes the mean of the posterior."""

    def __init__(self, model: nn.Module, prior: GaussianPrior, labels: Tensor) -> None:
        axis = torch.linspace(-4.5, 4.5, 301, dtype=torch.float64)
        self.grid = torch.cartesian_prod(axis, axis)
        self.shares = prior.variances / prior.variance
        generator = torch.Generator().manual_seed(1)
        gradients, at = gradients_of(model), prior.mean + self.grid @ prior.leaders
        self.sent = [gradients(at, torch.full((len(at),), label)) for label in (0, 1)]
        z = torch.randn(UPDATES, 2, generator=generator, dtype=torch.float64)
        self.classes = labels[torch.randint(500, (UPDATES,), generator=generator)]
        self.clean = gradients(prior.mean + z @ prior.leaders, self.classes)
        self.noise = torch.randn(self.clean.shape, generator=generator, dtype=torch.float64)

    def error(self, sigma: float) -> tuple[float, float]:
        """Mean squared error over the prior's variance, and its standard error."""
        errors = []
        for seen, label in zip(self.clean + sigma * self.noise, self.classes, strict=True):
            apart = (seen - self.sent[label]).square().sum(dim=1) / sigma**2
            posterior = torch.softmax(-(apart + self.grid.square().sum(dim=1)) / 2, 0)
            variance = posterior @ self.grid.square() - (posterior @ self.grid).square()
            errors.append(float(variance @ self.shares))
        return float(np.mean(errors)), float(np.std(errors)) / len(errors) ** 0.5


def main() -> None:
    given = arguments(__doc__)
    for make in (gauss, moons):
        for steps in (0, 300, 2000):
            data = make(torch.Generator().manual_seed(0))
            model = trained(data, steps)
            prior = GaussianPrior.of_covariance(data[0].mean(dim=0), torch.cov(data[0].mT))
            told = [audited(model, prior, data[1], given.records, s) for s in range(given.audits)]
            scale = float(np.mean([float(one.mean.diagonal().mean()) for one in told])) ** 0.5
            attacker = Attacker(model, prior, data[1])
            for ratio in RATIOS:
                line = beside(told, prior, ratio * scale, *attacker.error(ratio * scale))
                print(f"{make.__name__} after {steps} steps, noise {ratio}: {line}", flush=True)


def audited(
    model: nn.Module, prior: GaussianPrior, labels: Tensor, records: int, seed: int
) -> Information:
    generator = torch.Generator().manual_seed(seed)
    chosen = labels[torch.randint(len(labels), (records,), generator=generator)]
    layers = layers_of(model, with_bias=True)
    target = Target(model, CrossEntropy())
    return sum_of_layers(
        layer_information(target, layers, prior, chosen, shape=(2,), seed=seed).values()
    )


def beside(
    told: list[Information], prior: GaussianPrior, sigma: float, bayes: float, spread: float
) -> str:
    at = [one / sigma**2 for one in told]
    safe = np.array([van_trees_bound(share, one, prior).safe for one in at])
    plain = np.array([van_trees_bound(share, replace(one, local=None), prior).safe for one in at])
    times = [bayes / max(float(np.median(one)), 1e-12) for one in (safe, plain)]
    beyond = int((safe > bayes + 2 * spread).sum())
    return (
        f"Bayes {bayes:.4g} ±{spread:.2g}, floor {np.median(safe):.4g} ({times[0]:.1f} times "
        f"below), without weights {np.median(plain):.4g} ({times[1]:.3g} times); "
        f"{beyond} of {len(safe)} beyond"
    )


if __name__ == "__main__":
    main()
