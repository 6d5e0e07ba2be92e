"""The floor against closed forms and dense float64 Jacobians."""

import numpy as np
import pytest
import torch
from audits.floor.dense import gradient_of, prior_of, released
from torch import Tensor, nn

from gradaudit.audits.floor.information import layer_information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import (
    Functional,
    gaussian_nats,
    van_trees,
    van_trees_bound,
)
from gradaudit.core.randomness import torch_rng
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
    prior = prior_of(torch.zeros(36), covariance(36))
    layers = layers_of(target.model, with_bias=True)
    clips = () if clip is None else (released(layers, clip=clip),)
    found = layer_information(target, layers, prior, labels, shape=shape, seed=3, clips=clips)
    root = (prior.variances.sqrt()[:, None] * prior.axes).mT
    records = prior.draw(8, torch_rng(3, "floor", "records")).reshape(8, *shape)
    whole, beyond = gradient_of(target.model), 0
    sizes = [layer.parameters for layer in layers]
    expected = [torch.zeros(2, 36, 36, dtype=torch.float64) for _ in layers]
    for k, (record, label) in enumerate(zip(records, labels, strict=True)):

        def clipped(x: Tensor, label: Tensor = label) -> Tensor:
            gradient = whole(x, label)
            return gradient * (clip / gradient.norm()).clamp(max=1) if clip else gradient

        beyond += int(clip is not None and whole(record, label).norm() > clip)
        jacobian = torch.func.jacfwd(clipped)(record).flatten(1) @ root
        for sums, part in zip(expected, torch.split(jacobian, sizes), strict=True):
            sums[k // 4] += part.mT @ part / 4
    assert clip is None or 0 < beyond < 8
    for layer, sums in zip(layers, expected, strict=True):
        torch.testing.assert_close(found[layer.name], sums, rtol=1e-8, atol=1e-12)


def test_a_linear_gaussian_update_has_its_least_squares_error_and_its_information() -> None:
    """The bias of y = w·x under squared error: g = 2 (w·x + b − y), linear in x."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    mixing, sigma = covariance(4), 0.7
    prior = prior_of(torch.ones(4), mixing)
    labels, bias = torch.zeros(8, 1, dtype=torch.float64), Layer("", "Linear", 0, ("bias",), 1)
    target = Target(model, MeanSquaredError())
    parts = layer_information(target, [bias], prior, labels, shape=(4,), seed=0)[""] / sigma**2
    slope = 2 * model.weight.detach()[0]
    seen = float(slope @ mixing @ slope) + sigma**2
    error = float(mixing.trace() - (mixing @ slope).square().sum() / seen)
    found = van_trees_bound("mse_share", parts, prior)
    np.testing.assert_allclose(found, error / prior.variance, rtol=1e-9)
    found = van_trees_bound("nats", parts, prior)
    np.testing.assert_allclose(found, np.log(seen / sigma**2) / 2, rtol=1e-9)


def test_more_noise_raises_the_floor_and_more_layers_lower_it() -> None:
    target, labels = convolutional(), torch.arange(8) % 4
    prior = prior_of(torch.zeros(36), covariance(36, rank=20))
    layers = layers_of(target.model, with_bias=True)
    parts = layer_information(target, layers, prior, labels, shape=(1, 6, 6), seed=0)
    whole = torch.stack([*parts.values()]).sum(dim=0)
    noises = (1e-4, 1e-3, 1e-2, 1e-1, 1, 1e3)
    floors = [van_trees_bound("mse_share", whole / s**2, prior).value for s in noises]
    assert floors == sorted(floors)
    assert floors[-1] > 0.999
    alone = [van_trees_bound("mse_share", part, prior).value for part in parts.values()]
    assert min(alone) >= floors[4]


def test_van_trees_is_the_least_squares_error_of_a_linear_channel() -> None:
    """Y = Hx + σn with x ~ N(0, C): E‖x̂ − x‖² is tr(C − CHᵀ(HCHᵀ + σ²I)⁻¹HC), by NumPy."""
    rng = np.random.default_rng(0)
    channel, factor = rng.normal(size=(3, 5)), rng.normal(size=(5, 5))
    variances, axes = np.linalg.eigh(covariance := factor @ factor.T)
    moved = channel @ axes * np.sqrt(variances) / 0.3
    gram = channel @ covariance @ channel.T + 0.09 * np.eye(3)
    gained = covariance @ channel.T @ np.linalg.solve(gram, channel @ covariance)
    information = moved.T @ moved
    assert float(van_trees(information, variances)) == pytest.approx(
        float(np.trace(covariance - gained))
    )
    exact = np.linalg.slogdet(gram)[1] / 2 - 3 * np.log(0.3)
    assert float(gaussian_nats(torch.as_tensor(information))) == pytest.approx(exact)


@pytest.mark.parametrize("functional", ["mse_share", "nats"])
def test_units_that_differ_leave_the_number_on_the_safe_side(functional: Functional) -> None:
    """Half of the units tell 300 times as much."""
    prior = prior_of(torch.zeros(2), torch.eye(2))
    level = torch.tensor([1.0, 300.0] * 8, dtype=torch.float64)[:, None, None]
    units = level * torch.eye(2, dtype=torch.float64)
    found, mean = van_trees_bound(functional, units, prior), 1 + 301 / 2
    exact, sign = (1 / mean, 1) if functional == "mse_share" else (np.log(mean), -1)
    assert sign * found.safe < sign * found.value <= sign * exact + 1e-12


def test_records_are_of_the_prior() -> None:
    generator = torch.Generator().manual_seed(2)
    records = torch.randn(40, 9, generator=generator, dtype=torch.float64)
    prior = GaussianPrior.fitted(records * torch.arange(1, 10), leading=4)
    centred = prior.draw(20_000, generator) - prior.mean
    full = prior.axes.mT @ torch.diag(prior.variances - prior.rest) @ prior.axes
    full += prior.rest * torch.eye(9, dtype=torch.float64)
    torch.testing.assert_close(torch.trace(full), torch.tensor(prior.variance).double())
    assert float((centred.mT @ centred / 20_000 - full).norm() / full.norm()) < 0.05
    whole = GaussianPrior.fitted(records * torch.arange(1, 10))
    torch.testing.assert_close(whole.variances[:4], prior.variances)
    assert prior.variance == pytest.approx(whole.variance)


@pytest.mark.slow
def test_a_group_of_directions_only_lowers_the_floor_and_raises_the_information() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    records = torch.randn(18, 12, generator=generator, dtype=torch.float64) @ factor.mT
    few = GaussianPrior.fitted(records, 6)
    jacobian = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    full = few.axes.mT @ torch.diag(few.variances - few.rest) @ few.axes
    exact = prior_of(few.mean, full + few.rest * torch.eye(30, dtype=torch.float64))

    def information(prior: GaussianPrior, draws: int) -> Tensor:
        moved = torch.stack([prior.probes(generator) @ jacobian.mT for _ in range(draws)])
        return prior.kept((moved @ moved.mT).mean(dim=0))

    assert float(few.counts.sum()) == 30
    grouped, alone = information(few, 500), information(exact, 1)
    assert van_trees(grouped, few.weights) < 1.01 * van_trees(alone, exact.weights)
    assert gaussian_nats(grouped, few.counts) > 0.99 * gaussian_nats(alone)
