"""The floor against closed forms and dense float64 Jacobians."""

import numpy as np
import pytest
import torch
from audits.floor.dense import gradient_of, released
from torch import Tensor, nn

from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.functionals import nats, share
from gradaudit.audits.floor.information import layer_information, sum_of_layers
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import Layer, Target, layers_of


def covariance(size: int, rank: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    factor = torch.randn(size, rank or size, generator=generator, dtype=torch.float64)
    return factor @ factor.mT / size


def convolutional() -> Target:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 6, 3),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(6, 5),
        nn.LayerNorm(5),
        nn.Sigmoid(),
        nn.Linear(5, 4),
    )
    return Target(model.double(), CrossEntropy())


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 1.5])
def test_information_is_that_of_dense_jacobians(clip: float | None) -> None:
    """Of every layer's gradient, weight and bias, after all are clipped together."""
    target, labels, shape = convolutional(), torch.arange(8) % 4, (1, 6, 6)
    prior = GaussianPrior.of_covariance(torch.zeros(36), covariance(36))
    layers = layers_of(target.model, with_bias=True)
    clips = () if clip is None else (released(layers, clip=clip),)
    found = layer_information(target, layers, prior, labels, shape=shape, seed=3, clips=clips)
    root = (prior.variances.sqrt()[:, None] * prior.axes).mT
    view, names = FunctionalModel.of(target, seed=3), list(clips[0].parameters if clips else ())
    names = names or [name for layer in layers for name in layer.parameter_names]
    sample = PriorSample.of(view, names, prior, labels, shape=shape, seed=3, most=9)
    whole, beyond = gradient_of(target.model), 0
    sizes = [layer.parameters for layer in layers]
    expected = [torch.zeros(4, 36, 36, dtype=torch.float64) for _ in layers]
    for k, (record, label) in enumerate(zip(sample.records, sample.labels, strict=True)):

        def clipped(x: Tensor, label: Tensor = label) -> Tensor:
            gradient = whole(x, label)
            return gradient * (clip / gradient.norm()).clamp(max=1) if clip else gradient

        beyond += int(clip is not None and whole(record, label).norm() > clip)
        jacobian = torch.func.jacfwd(clipped)(record).flatten(1) @ root
        for sums, part in zip(expected, torch.split(jacobian, sizes), strict=True):
            sums[k // 2] += part.mT @ part / 2
    assert clip is None or 0 < beyond < 8
    for layer, sums in zip(layers, expected, strict=True):
        halves = sums.reshape(2, 2, 36, 36)
        torch.testing.assert_close(found[layer.name].halves, halves, rtol=1e-8, atol=1e-12)


def test_a_linear_gaussian_update_has_its_least_squares_error_and_its_information() -> None:
    """The bias of y = w·x under squared error: g = 2 (w·x + b − y), linear in x."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    mixing, sigma = covariance(4), 0.7
    prior = GaussianPrior.of_covariance(torch.ones(4), mixing)
    labels, bias = torch.zeros(8, 1, dtype=torch.float64), Layer("", "Linear", 0, ("bias",), 1)
    target = Target(model, MeanSquaredError())
    parts = layer_information(target, [bias], prior, labels, shape=(4,), seed=0)[""] / sigma**2
    slope = 2 * model.weight.detach()[0]
    seen = float(slope @ mixing @ slope) + sigma**2
    error = float(mixing.trace() - (mixing @ slope).square().sum() / seen)
    for functional, exact in (
        (share, error / prior.variance),
        (nats, np.log(seen / sigma**2) / 2),
    ):
        found = van_trees_bound(functional, parts, prior)
        np.testing.assert_allclose([found.value, found.safe], exact, rtol=1e-9)


def test_more_noise_raises_the_floor_and_more_layers_lower_it() -> None:
    target, labels = convolutional(), torch.arange(8) % 4
    prior = GaussianPrior.of_covariance(torch.zeros(36), covariance(36, rank=20))
    layers = layers_of(target.model, with_bias=True)
    parts = layer_information(target, layers, prior, labels, shape=(1, 6, 6), seed=0)
    whole = sum_of_layers(parts.values())
    noises = (1e-4, 1e-3, 1e-2, 1e-1, 1, 1e3)
    floors = [van_trees_bound(share, whole / s**2, prior).value for s in noises]
    assert floors == sorted(floors)
    assert floors[-1] > 0.999
    alone = [van_trees_bound(share, part, prior).value for part in parts.values()]
    assert min(alone) >= floors[4]


@pytest.mark.slow
def test_groups_of_directions_only_lower_the_floor_and_raise_the_information() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    records = torch.randn(18, 12, generator=generator, dtype=torch.float64) @ factor.mT
    whole, few = (GaussianPrior.fitted(records, leading) for leading in (30, 6))
    jacobian = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    full = whole.axes.mT @ torch.diag(whole.variances) @ whole.axes
    full += whole.rest * (torch.eye(30, dtype=torch.float64) - whole.axes.mT @ whole.axes)
    exact = GaussianPrior.of_covariance(whole.mean, full)

    def information(prior: GaussianPrior, draws: int) -> Tensor:
        moved = torch.stack([prior.probes(generator) @ jacobian.mT for _ in range(draws)])
        return prior.kept((moved @ moved.mT).mean(dim=0))

    assert float(few.counts.sum()) == 30
    assert share(information(few, 500), few)[0] < share(information(exact, 1), exact)[0] * 1.01
    assert nats(information(few, 500), few)[0] > nats(information(exact, 1), exact)[0] * 0.99
