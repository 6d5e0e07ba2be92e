"""The prototypical network: distances by hand, users it never saw, the same numbers again."""

import numpy as np
import pytest
import torch

from gradaudit.audits.attack_inference.user import DIMENSIONS, Encoder, candidate_posterior


def users(count: int, batches: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of users that differ in 4 of 12 directions."""
    generator = np.random.default_rng(seed)
    centres = np.zeros((count, 12))
    centres[:, :4] = 2 * generator.normal(size=(count, 4))
    codes = np.repeat(np.arange(count), batches)
    return centres[codes] + generator.normal(size=(len(codes), 12)), codes


def test_the_posterior_by_hand() -> None:
    observed = torch.tensor([[0.0, 0.0]])
    candidates = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]]])
    weights = np.exp([-5.0, -1.0, 0.0])
    found = np.exp(candidate_posterior(observed, candidates))
    np.testing.assert_allclose(found[0], weights / weights.sum(), rtol=1e-6)


@pytest.mark.slow
def test_users_it_never_saw_are_told_apart() -> None:
    encoder = Encoder.trained(*users(20, 30, 0), seed=0)
    right = []
    for seed in range(1, 6):
        embedded = encoder(users(5, 40, seed)[0]).reshape(5, 40, DIMENSIONS)
        candidates = embedded[:, 0][None].expand(5 * 39, -1, -1)
        said = candidate_posterior(embedded[:, 1:].reshape(-1, DIMENSIONS), candidates)
        right.append((said.argmax(axis=1) == np.repeat(np.arange(5), 39)).mean())
    assert np.mean(right) > 0.5  # one in five by chance


@pytest.mark.slow
def test_the_same_seed_gives_the_same_and_global_numbers_stay() -> None:
    features, codes = users(4, 10, 2)
    features[:, 5] = 7.0  # a constant feature does no harm
    before = torch.get_rng_state()
    first, again, other = (Encoder.trained(features, codes, seed)(features) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert torch.isfinite(first).all()
    assert not torch.equal(first, other)
