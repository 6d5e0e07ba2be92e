"""The prototypical network: distances by hand, users it never saw, the same numbers again."""

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.audits.attack_inference.user import (
    BATCH,
    DIMENSIONS,
    EPOCHS,
    HIDDEN,
    Encoder,
    candidate_posterior,
)
from gradaudit.core.randomness import torch_rng
from gradaudit.families.base import Scale


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


def by_autograd(features: np.ndarray, codes: np.ndarray, seed: int) -> torch.Tensor:
    """What an encoder makes of the features that ``torch.optim`` trained."""
    generator = torch_rng(seed, "encoder")
    inputs, labels = torch.from_numpy(Scale.of(features)(features)).float(), torch.from_numpy(codes)
    hidden = nn.Linear(inputs.shape[1], HIDDEN)
    encoder = nn.Sequential(hidden, nn.ReLU(), nn.Linear(HIDDEN, DIMENSIONS))
    model = nn.Sequential(encoder, nn.Linear(DIMENSIONS, int(codes.max()) + 1))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        else:
            nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(inputs), generator=generator), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
    embedded: torch.Tensor = encoder(inputs).detach().double()
    return embedded


@pytest.mark.slow
def test_the_encoder_is_that_of_autograd_and_torchs_optimiser() -> None:
    features, codes = users(5, 20, 4)
    theirs = by_autograd(features, codes, 0)
    torch.testing.assert_close(
        Encoder.trained(features, codes, 0)(features), theirs, rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_users_it_never_saw_are_told_apart() -> None:
    encoder = Encoder.trained(*users(20, 60, 0), seed=0)
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
    before = torch.get_rng_state()
    first, again, other = (Encoder.trained(features, codes, seed)(features) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_constant_features_do_no_harm() -> None:
    features, codes = users(3, 10, 3)
    features[:, 5] = 7.0
    assert torch.isfinite(Encoder.trained(features, codes, 0)(features)).all()
