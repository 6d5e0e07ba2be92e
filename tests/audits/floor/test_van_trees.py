"""The floor against closed forms and dense float64 Jacobians."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.functionals import nats, share
from gradaudit.audits.floor.information import layer_information, sum_of_layers
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import floor_of, van_trees_bound
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.target import Target, layers_of

RECORDS = 8


def covariance(size: int, rank: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    factor = torch.randn(size, rank or size, generator=generator, dtype=torch.float64)
    return factor @ factor.mT / size


def dense(model: nn.Module, loss: Loss, name: str, record: Tensor, label: Tensor) -> Tensor:
    """One layer's gradient, weight and bias, by plain autograd."""
    layer = model.get_submodule(name)
    losses = loss.per_record(model(record[None]), label[None])
    grads = torch.autograd.grad(losses[0], list(layer.parameters()), create_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 6, 3),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(6, 5),
        nn.LayerNorm(5),
        nn.Sigmoid(),
        nn.Linear(5, 4),
    ).double()


def shared(
    model: nn.Module, loss: Loss, layer: str, record: Tensor, label: Tensor, bound: float
) -> Tensor:
    """One layer's gradient after all are clipped together."""
    parts = {name: dense(model, loss, name, record, label) for name in LAYERS}
    norm = torch.cat(list(parts.values())).norm()
    return parts[layer] * (bound / norm).clamp(max=1)


LAYERS = ("0", "2", "5", "6", "8")


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 1.5])
def test_information_is_that_of_dense_jacobians(clip: float | None) -> None:
    model, loss, shape = convolutional(), CrossEntropy(), (1, 6, 6)
    prior = GaussianPrior.of_covariance(torch.zeros(36), covariance(36))
    labels = torch.arange(RECORDS) % 4
    layers = layers_of(model, with_bias=True)
    names = tuple(name for layer in layers for name in layer.parameter_names)
    clips = () if clip is None else (Release(names, 1, 1.0, clip=clip),)
    target = Target(model, loss)
    found = layer_information(target, layers, prior, labels, shape=shape, seed=3, clips=clips)
    root = (prior.variances.sqrt()[:, None] * prior.axes).mT
    view = FunctionalModel.of(target, seed=3)
    sample = PriorSample.of(view, names, prior, labels, shape=shape, seed=3, most=9)
    expected = {name: torch.zeros(4, 36, 36, dtype=torch.float64) for name in LAYERS}
    beyond = 0
    for k, (record, label) in enumerate(zip(sample.records, sample.labels, strict=True)):
        bound = 1e9 if clip is None else clip
        whole = [dense(model, loss, name, record, label) for name in LAYERS]
        beyond += int(torch.cat(whole).norm() > bound)
        for name in LAYERS:
            one = partial(shared, model, loss, name, label=label, bound=bound)
            jacobian = torch.autograd.functional.jacobian(
                lambda x, one=one: one(record=x), record, vectorize=True
            )
            moved = jacobian.flatten(1) @ root
            expected[name][k // 2] += moved.mT @ moved / 2
    assert clip is None or 0 < beyond < RECORDS
    for name in LAYERS:
        halves = expected[name].reshape(2, 2, 36, 36)
        torch.testing.assert_close(found[name].halves, halves, rtol=1e-8, atol=1e-12)


def test_a_linear_gaussian_update_has_its_least_squares_error_and_its_information() -> None:
    """The bias of y = w·x under squared error: g = 2 (w·x + b − y), linear in x."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    mixing, sigma = covariance(4), 0.7
    prior = GaussianPrior.of_covariance(torch.ones(4), mixing)
    labels = torch.zeros(8, 1, dtype=torch.float64)
    layer = layers_of(model, with_bias=True)[0]
    bias = type(layer)(layer.name, layer.kind, 0, ("bias",), 1)
    target = Target(model, MeanSquaredError())
    parts = (
        layer_information(target, [bias], prior, labels, shape=(4,), seed=0)[layer.name] / sigma**2
    )
    slope = 2 * model.weight.detach()[0]
    seen = float(slope @ mixing @ slope) + sigma**2
    error = float(mixing.trace() - (mixing @ slope).square().sum() / seen)
    floor, told = floor_of([parts], prior), van_trees_bound(nats, parts, prior)
    exact = error / prior.variance, np.log(seen / sigma**2) / 2
    np.testing.assert_allclose([floor.value, floor.safe], exact[0], rtol=1e-9)
    np.testing.assert_allclose([told.value, told.safe], exact[1], rtol=1e-9)


def test_more_noise_raises_the_floor_and_more_layers_lower_it() -> None:
    model = convolutional()
    prior = GaussianPrior.of_covariance(torch.zeros(36), covariance(36, rank=20))
    layers = layers_of(model, with_bias=True)
    parts = layer_information(
        Target(model, CrossEntropy()), layers, prior, torch.arange(8) % 4, shape=(1, 6, 6), seed=0
    )
    whole = sum_of_layers(parts.values())
    floors = [floor_of([whole / s**2], prior).value for s in (1e-4, 1e-3, 1e-2, 1e-1, 1e3)]
    assert floors == sorted(floors)
    assert floors[-1] > 0.999
    for part in parts.values():
        assert floor_of([part], prior).value >= floor_of(parts.values(), prior).value


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
        products = (moved @ moved.mT).mean(dim=0)
        kept = torch.arange(len(products)) < prior.leading
        return products * (kept[:, None] & kept).fill_diagonal_(True)

    assert float(few.counts.sum()) == 30
    assert share(information(few, 500), few)[0] < share(information(exact, 1), exact)[0] * 1.01
    assert nats(information(few, 500), few)[0] > nats(information(exact, 1), exact)[0] * 0.99
