"""Networks, their releases, and the exact computations that the tests of floors compare with."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from subjects import seeded
from torch import Tensor, nn

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.models.target import Layer

Gradient = Callable[[Tensor, Tensor], Tensor]
Floats = NDArray[np.float64]


def network(*sizes: int, kind: type[nn.Module] = nn.Tanh, seed: int = 0) -> nn.Sequential:
    """Two fully connected layers in float64 with an activation between them."""
    with seeded(seed):
        return nn.Sequential(nn.Linear(*sizes[:2]), kind(), nn.Linear(*sizes[1:])).double()


def gradient_of(model: nn.Module) -> Gradient:
    """What gives one record's gradient of the cross-entropy, (elements,), under ``vmap`` too."""
    names, values = zip(*model.named_parameters(), strict=True)

    def gradient(record: Tensor, label: Tensor) -> Tensor:
        def loss(parameters: tuple[Tensor, ...]) -> Tensor:
            state = dict(zip(names, parameters, strict=True))
            outputs = torch.func.functional_call(model, state, record[None])
            return nn.functional.cross_entropy(outputs, label[None])

        parts = torch.func.grad(loss)(tuple(value.detach() for value in values))
        return torch.cat([part.flatten() for part in parts])

    return gradient


def released(
    layers: Sequence[Layer], records: int = 1, scale: float = 1.0, *how: Any, **more: Any
) -> Release:
    """The release of all parameters of some layers together."""
    names = tuple(name for layer in layers for name in layer.parameter_names)
    return Release(names, records, scale, *how, **more)


def prior_of(mean: Tensor, covariance: Tensor) -> GaussianPrior:
    """The law with this mean (d,) and covariance (d, d), which may be singular."""
    variances, axes = torch.linalg.eigh(covariance.double())
    return GaussianPrior(mean.double(), axes.mT.flip(0), variances.flip(0).clamp(min=0))


def posteriors(
    model: nn.Module,
    prior: GaussianPrior,
    labels: Tensor,
    sigma: float,
    side: int,
    generator: torch.Generator,
) -> tuple[Floats, Floats]:
    """Shares of the variance and nats left by updates of two-dimensional records, (records,) each.

    By the exact posterior on a grid of ``side`` × ``side`` points; labels are 0 or 1.
    """
    axis = torch.linspace(-4.5, 4.5, side, dtype=torch.float64)
    grid, gradients = torch.cartesian_prod(axis, axis), torch.func.vmap(gradient_of(model))
    at = prior.mean + grid @ prior.leaders
    sent = torch.stack([gradients(at, torch.full((len(at),), label)) for label in (0, 1)])
    blind = torch.log_softmax(-grid.square().sum(dim=1) / 2, 0)
    z = torch.randn(len(labels), 2, generator=generator, dtype=torch.float64)
    errors, told = [], []
    for clean, label in zip(gradients(prior.mean + z @ prior.leaders, labels), labels, strict=True):
        noise = torch.randn(len(clean), generator=generator, dtype=torch.float64)
        apart = (clean + sigma * noise - sent[label]).square().sum(dim=1)
        likely = blind - apart / sigma**2 / 2
        law = torch.softmax(likely, 0)
        variance = law @ grid.square() - (law @ grid).square()
        errors.append(float(variance @ prior.variances / prior.variance))
        told.append(float(-noise.square().sum() / 2 - torch.logsumexp(likely, 0)))
    return np.array(errors), np.array(told)
