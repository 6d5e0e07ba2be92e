"""The floor with weights: against dense derivatives, closed forms and exact Bayes errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.floor.drawn import PriorSample, WeightedAverages, levels_of
from gradaudit.audits.floor.functionals import share
from gradaudit.audits.floor.information import Information, layer_information, sum_of_layers
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import floor_of
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def gradient(model: nn.Module, record: Tensor, label: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(record[None]), label[None])
    parts = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return torch.cat([part.flatten() for part in parts])


def test_averages_are_those_of_dense_derivatives() -> None:
    """∇q by differentiating 1/(1 + ‖G‖²/c) itself, with respect to z."""
    model, labels = network(), torch.arange(16) % 2
    factor = torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.3, 0.0]]).double()
    prior = GaussianPrior.of_covariance(torch.ones(3), factor @ factor.mT)  # of rank two
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    found = sum_of_layers(
        layer_information(target, layers, prior, labels, shape=(3,), seed=3).values()
    )
    names = [name for layer in layers for name in layer.parameter_names]
    view = FunctionalModel.of(target, seed=3)
    sample = PriorSample.of(view, names, prior, labels, shape=(3,), seed=3, most=99)
    root = (prior.variances.sqrt()[:, None] * prior.axes).mT
    weighted = found.weighted
    assert weighted is not None
    for k, level in enumerate(sample.genie.levels):
        told, known, shares = torch.zeros(4, 3, 3), torch.zeros(4, 3, 3), torch.zeros(4)
        for n, (record, label) in enumerate(zip(sample.records, sample.labels, strict=True)):
            z = torch.zeros(3, dtype=torch.float64)
            z[:2] = ((record - prior.mean) @ prior.axes.mT / prior.variances.sqrt())[:2]

            def weight(x: Tensor, label: Tensor = label, level: Tensor = level) -> Tensor:
                return 1 / (1 + gradient(model, x, label).square().sum() / level)

            jacobian = torch.autograd.functional.jacobian(
                lambda x, label=label: gradient(model, x, label), record
            )
            q = weight(record).detach()
            slope = torch.autograd.functional.jacobian(weight, record)
            score = slope @ root - q * z
            still = torch.diag(torch.tensor([0.0, 0.0, float(q) ** 2]))
            told[n // 4] += (q * jacobian @ root).mT.mm(q * jacobian @ root).detach() / 4
            known[n // 4] += (score.outer(score) + still).detach() / 4
            shares[n // 4] += float(q) / 4
        for ours, dense in zip(
            (weighted.measured[k], weighted.known[k], weighted.shares[k]),
            (told, known, shares),
            strict=True,
        ):
            torch.testing.assert_close(ours, dense.double(), rtol=1e-5, atol=1e-6)


def test_equal_weights_are_van_trees() -> None:
    generator = torch.Generator().manual_seed(0)
    prior = GaussianPrior.of_covariance(torch.zeros(2), torch.diag(torch.tensor([3.0, 1.0])))
    factors = torch.randn(6, 2, 2, generator=generator, dtype=torch.float64)
    units = factors @ factors.mT
    known = torch.eye(2, dtype=torch.float64).expand(1, 6, 2, 2)
    weighted = WeightedAverages(units[None], known, torch.ones(1, 6, dtype=torch.float64))
    held = torch.arange(6) < 2
    expected = share.tangent(units[~held].mean(dim=0), units[held], prior)
    torch.testing.assert_close(weighted.floors(held, prior)[0], expected)


def test_tangents_lie_below_what_they_touch() -> None:
    """m² tr C M⁻¹ of any mean and matrix, at those themselves it is met."""
    generator = torch.Generator().manual_seed(0)
    prior = GaussianPrior.of_covariance(torch.zeros(2), torch.diag(torch.tensor([3.0, 1.0])))
    factors = torch.randn(40, 2, 2, generator=generator, dtype=torch.float64)
    known = (factors @ factors.mT + 0.1 * torch.eye(2))[None]
    shares = torch.rand(1, 40, generator=generator, dtype=torch.float64)
    weighted = WeightedAverages(torch.zeros_like(known), known, shares)
    held = torch.arange(40) < 20
    exact = [
        float(m) ** 2 * share.of(k, prior)[0] for m, k in zip(shares[0], known[0], strict=True)
    ]
    assert (weighted.floors(held, prior)[0].numpy() <= np.array(exact)[:20] + 1e-12).all()
    alike = WeightedAverages(
        torch.zeros(1, 4, 2, 2), known[:, :1].expand(1, 4, 2, 2), shares[:, :1].expand(1, 4)
    )
    touched = alike.floors(torch.arange(4) < 1, prior)[0]
    assert float(touched[0]) == pytest.approx(exact[0])


def test_levels_are_quantiles_of_what_is_positive() -> None:
    assert levels_of(torch.tensor([0.0, torch.inf])).shape == (0,)
    found = levels_of(torch.tensor([1.0, 0.0, 100.0]))
    assert found.tolist() == pytest.approx([10**0.2, 10**0.6, 10**1.2])


def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """Two inputs, eight units and two classes of Gaussian records, 92 % of them told apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (500,), generator=generator)
    records = 0.8 * torch.randn(500, 2, generator=generator, dtype=torch.float64)
    records += 0.8 * (2.0 * labels - 1)[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        adam.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(records), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return model, records, labels


@pytest.mark.slow
def test_the_floor_of_a_trained_network_is_near_the_exact_bayes_error() -> None:
    """The posterior on a grid of 201 × 201; van Trees without weights lies ten times lower."""
    model, records, labels = trained()
    prior = GaussianPrior.of_covariance(records.mean(dim=0), torch.cov(records.mT))
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    generator = torch.Generator().manual_seed(1)
    chosen = labels[torch.randint(500, (1024,), generator=generator)]
    parts = layer_information(target, layers, prior, chosen, shape=(2,), seed=0)
    told = sum_of_layers(parts.values())
    one = torch.func.vmap(lambda x, y: by_func(model, x, y))
    axis = torch.linspace(-4.5, 4.5, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    at = prior.mean + grid @ prior.leaders
    sent = torch.stack([one(at, torch.full((len(at),), label)) for label in (0, 1)])
    z = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    classes = labels[torch.randint(500, (200,), generator=generator)]
    clean = one(prior.mean + z @ prior.leaders, classes)
    sigma = 0.03 * float(told.mean.diagonal().mean()) ** 0.5
    errors = []
    for seen, label in zip(clean, classes, strict=True):
        noisy = seen + sigma * torch.randn(len(seen), generator=generator, dtype=torch.float64)
        apart = (noisy - sent[label]).square().sum(dim=1) / sigma**2 + grid.square().sum(dim=1)
        posterior = torch.softmax(-apart / 2, 0)
        variance = posterior @ grid.square() - (posterior @ grid).square()
        errors.append(float(variance @ prior.variances / prior.variance))
    bayes, spread = float(np.mean(errors)), float(np.std(errors)) / len(errors) ** 0.5
    floor = floor_of([told / sigma**2], prior)
    plain = floor_of([replace(told, weighted=None) / sigma**2], prior)
    assert floor.safe < bayes + 2 * spread
    assert floor.safe > bayes / 4
    assert plain.safe < floor.safe / 2


def by_func(model: nn.Module, record: Tensor, label: Tensor) -> Tensor:
    """A record's gradient, (elements,), for ``vmap``."""
    names, values = zip(*model.named_parameters(), strict=True)

    def loss(parameters: tuple[Tensor, ...]) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        outputs = torch.func.functional_call(model, state, record[None])
        return nn.functional.cross_entropy(outputs, label[None])

    parts = torch.func.grad(loss)(tuple(value.detach() for value in values))
    return torch.cat([part.flatten() for part in parts])


def test_information_without_weights_adds_up_as_before() -> None:
    plain = Information(torch.ones(2, 2, 1, 1), torch.eye(1))
    assert (plain + plain).weighted is None
    assert (plain * 3).weighted is None
    assert float((plain / 4).mean) == 0.25
