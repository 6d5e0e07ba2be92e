"""What a genie tells, against quadrature of a curved channel, and how the better bound is found."""

from functools import partial

import numpy as np
import pytest
import torch
from audits.floor.dense import Floats, dense_covariance, network
from torch import Tensor, nn

from gradaudit.audits.floor.drawn import Genie, PriorSample, slopes_of
from gradaudit.audits.floor.functionals import Functional, nats, share
from gradaudit.audits.floor.information import Information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

ONE = GaussianPrior.of_covariance(torch.zeros(1), torch.eye(1))


def steep(z: Floats) -> Floats:
    """A channel that tells much of few."""
    return np.exp(2 * z)


def exact(sigma: float) -> tuple[float, float]:
    """Least mean squared error and mutual information of z ~ N(0, 1) and g(z) + σn, on a grid."""
    z = np.linspace(-5, 5, 401)
    prior = np.exp(-(z**2) / 2)
    prior /= prior.sum()
    error = told = 0.0
    noise = np.linspace(-5, 5, 61)
    normal = np.exp(-(noise**2) / 2)
    normal /= normal.sum()
    for y, weight in zip(steep(z), prior, strict=True):
        seen = y + sigma * noise
        exponent = -((seen[:, None] - steep(z)) ** 2) / (2 * sigma**2)
        likely = prior * np.exp(exponent)
        law = likely / likely.sum(axis=1, keepdims=True)
        spread = law @ z**2 - (law @ z) ** 2
        error += weight * normal @ spread
        told += weight * normal @ (-(noise**2) / 2 - np.log(likely.sum(axis=1)))
    return error, told


def bound(functional: Functional, sigma: float, precision: float) -> float:
    """E_u F(1/t + E_v g′(u + v)²/σ²), by Gauss and Hermite; g′ = 2 exp(2z)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights /= weights.sum()
    t = 1 / precision
    total = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        u = np.sqrt(1 - t) * node
        information = 4 * np.exp(4 * u + 8 * t) / sigma**2
        value, _ = functional(
            torch.tensor([[information]]), ONE, torch.tensor([[precision]], dtype=torch.float64)
        )
        total += weight * value
    return total


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_who_is_told_more_has_bounds_that_hold_and_may_say_more(sigma: float) -> None:
    error, told = exact(sigma)
    floors = [bound(share, sigma, p) for p in (1, 2, 5, 20)]
    ceilings = [bound(nats, sigma, p) for p in (1, 2, 5, 20)]
    assert max(floors) <= error
    assert min(ceilings) >= told
    assert max(floors) > 5 * floors[0]
    assert min(ceilings) < ceilings[0] - 0.3
    assert max(floors) > 0.2 * error


def test_a_genie_tells_where_gradients_grow() -> None:
    prior = GaussianPrior.of_covariance(torch.zeros(3), torch.diag(torch.tensor([4.0, 1.0, 0.0])))
    slopes = torch.tensor([[1.0, 0.0, 5.0], [-1.0, 0.0, 5.0]])
    genie = Genie.of(slopes, prior)
    expected = torch.diag(torch.tensor([1 + 3 * 4.0, 1, 1], dtype=torch.float64))
    torch.testing.assert_close(genie.precision, expected)
    torch.testing.assert_close(genie.hidden @ genie.hidden, torch.linalg.inv(expected))
    unit = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(genie.given @ genie.given + genie.hidden @ genie.hidden, unit)


def energy(model: nn.Module, record: Tensor, label: Tensor) -> float:
    loss = nn.functional.cross_entropy(model(record[None]), label[None])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return float(sum(gradient.square().sum() for gradient in gradients))


def test_slopes_are_those_of_differences() -> None:
    model = network(4, 6, 3)
    view = FunctionalModel.of(Target(model, CrossEntropy()))
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    labels, step = torch.arange(3), 1e-5 * torch.eye(4, dtype=torch.float64)
    slopes = slopes_of(view, list(view.parameters), records, labels)
    for record, label, slope in zip(records, labels, slopes, strict=True):
        at = partial(energy, model, label=label)
        ahead, behind = ([at(record=record + sign * one) for one in step] for sign in (1, -1))
        expected = np.log(np.array(ahead) / np.array(behind)) / 2e-5
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8)


def test_records_are_of_the_prior_and_those_of_a_unit_differ_by_what_is_untold() -> None:
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    prior = GaussianPrior.of_covariance(torch.ones(5), factor @ factor.mT, leading=4)
    view = FunctionalModel.of(Target(network(5, 6, 3), CrossEntropy()))
    names, labels = list(view.parameters), torch.arange(8000) % 3
    sample = PriorSample.of(view, names, prior, labels, shape=(5,), seed=0, most=4000)
    centred = sample.records - prior.mean
    covariance = dense_covariance(prior)
    whole = centred.mT @ centred / len(centred)
    assert float((whole - covariance).norm() / covariance.norm()) < 0.08
    assert int(sample.cells[-1]) == 2 * 2000 - 1
    assert (sample.labels.reshape(-1, 4) == sample.labels[::4, None]).all()
    leading = (centred @ prior.axes[:4].mT / prior.variances[:4].sqrt()).reshape(-1, 4, 4)
    apart = (leading - leading.mean(dim=1, keepdim=True)).reshape(-1, 4)
    untold = torch.linalg.inv(sample.genie.precision)
    assert float(torch.linalg.eigvalsh(untold)[0]) < 0.9
    assert float((apart.mT @ apart / 6000 - untold).norm()) < 0.06


@pytest.mark.parametrize("functional", [share, nats])
def test_the_better_bound_is_found_and_is_on_the_safe_side(functional: Functional) -> None:
    """Half of the units tell 300 times as much; all of a unit's records tell as much."""
    prior = GaussianPrior.of_covariance(torch.zeros(2), torch.eye(2))
    level = torch.tensor([1.0, 300.0] * 8, dtype=torch.float64)[:, None, None, None]
    halves = (level * torch.eye(2)).expand(-1, 2, -1, -1)
    for precision, best in ((1.5, 1), (1e6, 0)):
        told = Information(halves, precision * torch.eye(2, dtype=torch.float64))
        bounds = [functional(told.mean, prior)[0]]
        of_units = [functional(unit, prior, told.precision)[0] for unit in told.units]
        bounds.append(sum(of_units) / len(of_units))
        assert functional.sign * bounds[best] == max(functional.sign * each for each in bounds)
        found = van_trees_bound(functional, told, prior)
        assert functional.sign * found.value <= functional.sign * bounds[best] + 1e-12
        assert abs(found.value - bounds[best]) < 0.7 * abs(bounds[0] - bounds[1])
        assert functional.sign * found.safe <= functional.sign * found.value
