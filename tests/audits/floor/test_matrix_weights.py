"""The floor with weights: against dense derivatives, closed forms and exact Bayes errors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from audits.floor.dense import gradient_of, network, posteriors, released
from audits.floor.test_genie import exact
from torch import Tensor, nn

from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.functionals import share
from gradaudit.audits.floor.information import Information, layer_information, sum_of_layers
from gradaudit.audits.floor.matrix_weights import LocalInformation
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.smoothness import bends
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

FACTOR = torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.3, 0.0]]).double()


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1e9, 2.0])
def test_local_information_is_that_of_dense_derivatives(bound: float) -> None:
    """A by the clipped gradient's Jacobian; B's slopes by forward mode through the Jacobian."""
    model, labels = network(3, 5, 2), torch.arange(16) % 2
    prior = GaussianPrior.of_covariance(torch.ones(3), FACTOR @ FACTOR.mT)  # of rank two
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    clips = (released(layers, clip=bound),)
    parts = layer_information(target, layers, prior, labels, shape=(3,), seed=3, clips=clips)
    local = sum_of_layers(parts.values()).local
    assert local is not None
    view = FunctionalModel.of(target, seed=3)
    names, shape = clips[0].parameters, (3,)
    sample = PriorSample.of(view, names, prior, labels, shape=shape, seed=3, most=99)
    chosen = sample.first(2)
    assert chosen.tolist() == [True, True, False, False] * 4
    assert local.units.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    root = (prior.variances.sqrt()[:, None] * prior.axes).mT
    beyond = 0
    for n, record in enumerate(sample.records[chosen]):
        plain = partial(gradient_of(model), label=sample.labels[chosen][n])

        def clipped(x: Tensor, plain: Callable[[Tensor], Tensor] = plain) -> Tensor:
            return plain(x) * (bound / plain(x).norm()).clamp(max=1)

        def smooth(x: Tensor, plain: Callable[[Tensor], Tensor] = plain) -> Tensor:
            jacobian = torch.func.jacfwd(plain)(x) @ root
            shrunk = (bound / plain(x).norm()).clamp(max=1) ** 2
            return shrunk * jacobian.mT @ jacobian

        jacobian = torch.func.jacfwd(clipped)(record) @ root
        torch.testing.assert_close(local.exact[n], jacobian.mT @ jacobian)
        torch.testing.assert_close(local.smooth[n], smooth(record))
        for p in range(2):
            slope = torch.func.jvp(smooth, (record,), (root @ local.signs[n, p],))[1]
            torch.testing.assert_close(local.slopes[n, p], slope, rtol=1e-4, atol=1e-5)
        beyond += float(plain(record).norm()) > bound
    assert bound > 1e6 or 0 < beyond < 8


def test_terms_are_those_of_dense_derivatives_of_the_weights() -> None:
    """(H A H)ᵢᵢ + |hᵢ|² + tr(∇hᵢ ∇hᵢ) of three directions, on average over all signs."""
    generator = torch.Generator().manual_seed(0)
    bend = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)

    def told(z: Tensor) -> Tensor:
        jacobian = bend[0] + torch.einsum("kij,k->ij", bend[1:], z) + torch.diag(z**2)
        return jacobian.mT @ jacobian

    z = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6)
    signs = every.reshape(-1, 2, 3)
    here = told(z[0]).expand(len(signs), 3, 3)
    slopes = torch.func.vmap(lambda sign: torch.func.jvp(told, (z[0],), (sign,))[1])
    moved = slopes(signs.reshape(-1, 3)).reshape(len(signs), 2, 3, 3)
    other = told(z[1])[None]
    local = LocalInformation(
        torch.cat([2 * here, other]),
        torch.cat([here, other]),
        torch.cat([moved, moved[:1]]),
        torch.cat([signs, signs[:1]]),
        torch.arange(len(signs) + 1).clamp(min=len(signs) - 1) - len(signs) + 1,
    )
    means, squares = local.terms(torch.tensor([True, False]), 0.5, 0.3)

    def weights(z: Tensor) -> Tensor:
        return torch.linalg.inv(torch.eye(3) + 0.5 * told(z) + 0.3 * other[0])

    at, turned = weights(z[0]), torch.func.jacfwd(weights)(z[0])
    traces = torch.einsum("jik,kij->i", turned, turned)
    expected = (at @ (2 * told(z[0])) @ at).diagonal() + at.square().sum(dim=0) + traces
    torch.testing.assert_close(means[0], at.diagonal())
    torch.testing.assert_close(squares[0], expected)


def curved(records: int, sigma: float) -> LocalInformation:
    """Records z ~ N(0, 1) and updates exp(2z) + σn: A = 4 exp(4z)/σ², a unit each."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(records, 1, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (records, 2, 1), generator=generator) * 2.0 - 1
    told = 4 * (4 * z).exp()[:, :, None] / sigma**2
    slopes = 4 * told[:, None] * signs[:, :, :, None]
    return LocalInformation(told, told, slopes, signs.double(), torch.arange(records))


@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_a_curved_channel_has_a_floor_near_its_exact_error(sigma: float) -> None:
    """By quadrature of the posterior; van Trees alone, 1/(1 + 4 e⁸/σ²), is 1e-5 and 3e-4."""
    error, _ = exact(sigma)
    local = curved(40_000, sigma)
    one = GaussianPrior.of_covariance(torch.zeros(1), torch.eye(1))
    folds = torch.arange(40_000) % 8
    floors = local.floors(folds, torch.zeros(40_000, 1, dtype=torch.float64), one)
    best = floors[floors.mean(dim=1).argmax()]
    spread = float(best.std()) / 200
    assert float(best.mean()) - 2 * spread < error
    assert float(best.mean()) > 0.5 * error


def test_what_jumps_a_derivative_later_has_no_local_information() -> None:
    """ELU's second derivative jumps at zero, and with it H would."""
    inputs, labels = torch.randn(8, 3), torch.arange(8) % 2
    prior = GaussianPrior.of_covariance(torch.zeros(3), torch.eye(3))
    for activation, known in ((nn.Tanh, True), (nn.ELU, False), (nn.CELU, False)):
        model = network(3, 4, 2, kind=activation)
        target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
        view = FunctionalModel.of(target)
        assert bends(view, view.cast(inputs), labels) != known
        found = layer_information(target, layers, prior, labels, shape=(3,), seed=0)
        assert (sum_of_layers(found.values()).local is not None) == known


def test_information_without_weights_adds_up_as_before() -> None:
    plain = Information(torch.ones(2, 2, 1, 1), torch.eye(1))
    assert (plain + plain).local is None
    assert (plain * 3).local is None
    assert float((plain / 4).mean) == 0.25


@pytest.mark.slow
def test_the_floor_of_a_trained_network_is_near_the_exact_bayes_error() -> None:
    """Two classes of which 92 % are told apart; van Trees without weights lies ten times lower."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (500,), generator=generator)
    records = 0.8 * torch.randn(500, 2, generator=generator, dtype=torch.float64)
    records += 0.8 * (2.0 * labels - 1)[:, None]
    model = network(2, 8, 2)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        adam.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(records), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    prior = GaussianPrior.of_covariance(records.mean(dim=0), torch.cov(records.mT))
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    chosen = labels[torch.randint(500, (512,), generator=generator)]
    parts = layer_information(target, layers, prior, chosen, shape=(2,), seed=0)
    told = sum_of_layers(parts.values())
    sigma = 0.03 * float(told.mean.diagonal().mean()) ** 0.5
    errors, _ = posteriors(model, prior, labels[:100], sigma, 101, generator)
    bayes, spread = errors.mean(), errors.std() / 100**0.5
    floor = van_trees_bound(share, told / sigma**2, prior)
    plain = van_trees_bound(share, replace(told, local=None) / sigma**2, prior)
    assert floor.safe < bayes + 2 * spread
    assert floor.safe > bayes / 2.5
    assert plain.safe < floor.safe / 2
