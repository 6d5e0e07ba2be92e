"""What the law of updates says of attackers where gradients jump too, against exact errors."""

import numpy as np
import pytest
import torch
from audits.floor.dense import network, posteriors, released
from torch import nn

from gradaudit.audits.floor.functionals import nats, share
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import UpdateLaw, nats_shown, update_laws
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

RELU = network(2, 6, 2, kind=nn.ReLU, seed=1)
TARGET, LAYERS = Target(RELU, CrossEntropy()), layers_of(RELU, with_bias=True)
PLANE = GaussianPrior.of_covariance(torch.zeros(2), torch.eye(2))


def laws(records: int, release: Release, memory: int = 1 << 28) -> dict[str, UpdateLaw]:
    """The laws of the ReLU network's layers from records of both labels in turn."""
    labels, how = torch.arange(records) % 2, {"shape": (2,), "seed": 0, "memory": memory}
    return update_laws(TARGET, LAYERS, PLANE, labels, (release,), **how)  # type: ignore[arg-type]


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_a_network_with_kinks_has_bounds_that_its_exact_posterior_keeps(sigma: float) -> None:
    draws = torch.Generator().manual_seed(0)
    errors, told = posteriors(RELU, PLANE, torch.arange(120) % 2, sigma, 81, draws)
    found = laws(400, released(LAYERS, 1, sigma))
    law = found["0"] + found["2"]
    floor, most = (van_trees_bound(each, None, PLANE, law) for each in (share, nats))
    assert floor.safe < errors.mean() + 2 * errors.std() / 120**0.5
    assert most.safe > told.mean() - 2 * told.std() / 120**0.5
    assert most.value < 3 * told.mean()
    assert nats_shown(float(errors.mean()), PLANE.spectrum) < most.safe


def test_inner_products_are_of_what_leaves_clipped_over_the_noise() -> None:
    plain, clipped = (laws(20, released(LAYERS, 2, 0.5, clip=clip)) for clip in (None, 0.3))
    norms = (plain["0"] + plain["2"]).gram.diagonal().sqrt()
    left = (0.3 / norms).clamp(max=1)
    assert 0 < int((left < 1).sum()) <= 20
    torch.testing.assert_close(clipped["2"].gram, plain["2"].gram * left[:, None] * left)
    assert laws(20, released(LAYERS, 2, 0.5, "laplace")) == {}
    assert laws(20, released(LAYERS, 2, 0.5), memory=1000) == {}
