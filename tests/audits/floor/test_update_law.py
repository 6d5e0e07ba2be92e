"""What the law of updates says of attackers where gradients jump too, against exact errors."""

from typing import Any

import numpy as np
import pytest
import torch
from subjects import rows_by, subject_of
from torch import Tensor, nn

from gradaudit.audits.floor import Floor
from gradaudit.audits.floor.functionals import nats, share
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import UpdateLaw, nats_shown, update_laws
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.data.records import Records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.report import Measurement


def test_numbers_are_those_of_dense_covariances() -> None:
    """E ln p(y | x)/q(y) over the noise, with q of the other folds' records, by full matrices."""
    generator = torch.Generator().manual_seed(0)
    sent = torch.randn(80, 6, generator=generator, dtype=torch.float64) @ torch.randn(
        6, 6, generator=generator, dtype=torch.float64
    )
    labels, folds = torch.arange(80) % 2, torch.arange(80) // 40
    found = UpdateLaw(sent @ sent.mT, labels).nats(folds)
    for j in (0, 1, 50):
        known = folds != folds[j]
        alike = known & (labels == labels[j])
        means = torch.stack([sent[known & (labels == c)].mean(dim=0) for c in (0, 1)])
        apart = sent - means[labels]
        for row, of in enumerate((known, alike)):
            whole = torch.eye(6) + apart[of].mT @ apart[of] / int(of.sum())
            square = apart[j] @ torch.linalg.inv(whole) @ apart[j]
            noise = torch.linalg.inv(whole).trace() - 6
            expected = (torch.logdet(whole) + noise + square) / 2
            assert float(found[row, j]) == pytest.approx(float(expected))


def test_a_linear_update_has_its_own_information_and_a_floor_below_its_error() -> None:
    """G = z under σ: d/2 ln(1 + 1/σ²) nats, and the error σ²/(1 + σ²) in every direction."""
    generator = torch.Generator().manual_seed(0)
    prior = GaussianPrior.of_covariance(torch.zeros(3), torch.eye(3))
    sent = torch.randn(600, 3, generator=generator, dtype=torch.float64)
    for sigma in (0.3, 1.0):
        law = UpdateLaw(sent @ sent.mT / sigma**2, torch.zeros(600))
        told = van_trees_bound(nats, None, prior, law)
        exact = 1.5 * np.log1p(1 / sigma**2)
        assert told.value == pytest.approx(exact, rel=0.05)
        assert told.safe > told.value
        floor = van_trees_bound(share, None, prior, law)
        assert floor.value == pytest.approx(sigma**2 / (1 + sigma**2), rel=0.06)
        assert floor.safe < sigma**2 / (1 + sigma**2)


def relu() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)).double()


def gradients(model: nn.Module, records: Tensor, labels: Tensor) -> Tensor:
    names, values = zip(*model.named_parameters(), strict=True)

    def gradient(record: Tensor, label: Tensor) -> Tensor:
        def loss(parameters: tuple[Tensor, ...]) -> Tensor:
            state = dict(zip(names, parameters, strict=True))
            outputs = torch.func.functional_call(model, state, record[None])
            return nn.functional.cross_entropy(outputs, label[None])

        parts = torch.func.grad(loss)(tuple(value.detach() for value in values))
        return torch.cat([part.flatten() for part in parts])

    return torch.func.vmap(gradient)(records, labels)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_a_network_with_kinks_has_bounds_that_its_exact_posterior_keeps(sigma: float) -> None:
    """The posterior of a ReLU network's update on a grid of 81 × 81: its variance, its nats."""
    model, prior = relu(), GaussianPrior.of_covariance(torch.zeros(2), torch.eye(2))
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(-4, 4, 81, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    blind = torch.softmax(-grid.square().sum(dim=1) / 2, 0)
    sent = [gradients(model, grid, torch.full((len(grid),), label)) for label in (0, 1)]
    errors, told = [], []
    for n in range(120):
        z = torch.randn(1, 2, generator=generator, dtype=torch.float64)
        label = n % 2
        clean = gradients(model, z, torch.tensor([label]))[0]
        noise = torch.randn(len(clean), generator=generator, dtype=torch.float64)
        seen = clean + sigma * noise
        likely = -(seen - sent[label]).square().sum(dim=1) / sigma**2 / 2
        posterior = torch.softmax(likely + blind.log(), 0)
        errors.append(float((posterior @ grid.square() - (posterior @ grid) ** 2).sum()) / 2)
        evidence = torch.logsumexp(likely + blind.log(), 0)
        told.append(float(-noise.square().sum() / 2 - evidence))
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    names = tuple(name for layer in layers for name in layer.parameter_names)
    laws = update_laws(
        target,
        layers,
        prior,
        torch.arange(400) % 2,
        (Release(names, 1, sigma),),
        shape=(2,),
        seed=0,
        memory=1 << 28,
    )
    law = laws["0"] + laws["2"]
    floor, most = (van_trees_bound(each, None, prior, law) for each in (share, nats))
    spread = float(np.std(errors)) / 120**0.5
    assert floor.safe < np.mean(errors) + 2 * spread
    assert most.safe > np.mean(told) - 2 * np.std(told) / 120**0.5
    assert most.value < 3 * np.mean(told)
    assert nats_shown(float(np.mean(errors)), prior.spectrum) < most.safe


def rows(records: int, **more: Any) -> dict[tuple[str, str | None], Measurement]:
    model = relu()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, 2, generator=generator)
    held = Records(inputs, torch.arange(records) % 2, classes=("a", "b"))
    subject = subject_of(Target(model.float(), CrossEntropy()), held, samples=64, **more)
    found = rows_by(Floor)(subject, sigma=0.5, attacked=0)
    return {(row.metric, row.layer): row for row in found}


def test_a_kink_leaves_the_bounds_of_the_update_s_law() -> None:
    found = rows(60)
    assert found["nats", "0"].status == "measured"
    assert "ReLU 1 has a kink" in str(found["mse_share", "0"].details["by_law_alone"])
    assert "by_law_alone" not in found["mse_share", "2"].details
    value = found["mse_share", None].value
    assert value is not None
    assert 0 < value < 1


def test_inner_products_are_of_what_leaves_clipped_over_the_noise() -> None:
    model = relu()
    prior = GaussianPrior.of_covariance(torch.zeros(2), torch.eye(2))
    layers, labels = layers_of(model, with_bias=True), torch.arange(20) % 2
    names = tuple(name for layer in layers for name in layer.parameter_names)
    target, how = Target(model, CrossEntropy()), {"shape": (2,), "seed": 0, "memory": 1 << 28}
    plain, clipped = (
        update_laws(target, layers, prior, labels, (Release(names, 2, 0.5, clip=clip),), **how)  # type: ignore[arg-type]
        for clip in (None, 0.3)
    )
    view = FunctionalModel.of(target, dtype=torch.float64)
    assert view.parameters.keys() == set(names)
    norms = (plain["0"] + plain["2"]).gram.diagonal().sqrt()
    left = (0.3 / norms).clamp(max=1)
    assert 0 < int((left < 1).sum()) <= 20
    torch.testing.assert_close(clipped["2"].gram, plain["2"].gram * left[:, None] * left)
    laplace = Release(names, 2, 0.5, "laplace")
    assert update_laws(target, layers, prior, labels, (laplace,), **how) == {}  # type: ignore[arg-type]
    little = {**how, "memory": 1000}
    assert update_laws(target, layers, prior, labels, (Release(names, 2, 0.5),), **little) == {}  # type: ignore[arg-type]
