"""Spans against dense decompositions, and their noise against the laws of random matrices."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gradaudit.audits.attack_text.span import Span, alignment, is_void, noise_level


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def gradient(rows: int, inputs: Tensor, *, seed: int = 1) -> Tensor:
    """Σ_t δ_t a_tᵀ of what came in, (tokens, width)."""
    return normal(len(inputs), rows, seed=seed).T @ inputs


def projector(rows: Tensor) -> Tensor:
    return rows.T @ rows


@pytest.mark.parametrize(("rows", "width", "tokens"), [(60, 40, 9), (30, 50, 9), (33, 33, 1)])
def test_rows_span_what_came_in(rows: int, width: int, tokens: int) -> None:
    inputs = normal(tokens, width)
    made = gradient(rows, inputs)
    span = Span.of([made.float()], tokens)
    assert span is not None
    assert span.rank == tokens
    assert span.whole
    assert span.clear
    _, values, vectors = torch.linalg.svd(made)
    expected = projector(vectors[:tokens])
    torch.testing.assert_close(projector(span.rows.double()), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(span.values[:tokens], values[:tokens], rtol=1e-5, atol=0)
    assert float(span.energy(inputs.float()).max()) < 1e-10
    other = normal(5, width, seed=9)
    outside = other - other @ expected
    share = outside.square().sum(1) / other.square().sum(1)
    torch.testing.assert_close(span.energy(other), share, rtol=1e-4, atol=0)


def test_maps_that_share_what_came_in_count_as_one() -> None:
    inputs = normal(6, 40)
    parts = [gradient(rows, inputs, seed=rows) for rows in (20, 30, 25)]
    apart, stacked = Span.of(parts, 6), Span.of([torch.cat(parts)], 6)
    assert apart is not None
    assert stacked is not None
    torch.testing.assert_close(apart.values, stacked.values)
    torch.testing.assert_close(projector(apart.rows), projector(stacked.rows))


def test_rounding_does_not_fill_the_rank_where_inputs_repeat() -> None:
    """Texts that share tokens at their positions fill fewer dimensions than positions."""
    for seed in range(10):
        inputs = normal(12, 48, seed=seed).float()
        inputs[6:9] = inputs[:3]
        errors = normal(12, 144, seed=seed + 50).float() * torch.logspace(0, -2, 12)[:, None]
        span = Span.of([errors.T @ inputs], 12)
        assert span is not None
        assert span.rank == 9
        assert span.clear


def test_rank_is_at_most_the_tokens() -> None:
    span = Span.of([normal(80, 60)], 5)
    assert span is not None
    assert span.rank <= 5
    assert not span.clear


def test_nothing_is_told_by_a_space_that_tokens_may_fill_or_by_no_gradient() -> None:
    assert is_void(16, 9)
    assert not is_void(16, 8)
    assert Span.of([normal(60, 16)], 9) is None
    assert Span.of([torch.zeros(60, 40)], 4) is None


def test_few_outputs_leave_a_part_of_the_span() -> None:
    """As in an adapter of low rank: no value is noise alone, and what came in is partly outside."""
    inputs = normal(20, 60)
    span = Span.of([gradient(8, inputs)], 20)
    assert span is not None
    assert not span.whole
    assert not span.clear
    assert span.rank == 8
    assert float(span.energy(inputs).mean()) < float(span.energy(normal(99, 60, seed=5)).mean())


@pytest.mark.parametrize(("shape", "tokens"), [((300, 100), 10), ((80, 200), 0), ((150, 150), 30)])
@pytest.mark.parametrize("level", [1e-3, 7.0])
def test_level_of_noise_is_read_from_the_spectrum(
    shape: tuple[int, int], tokens: int, level: float
) -> None:
    signal = 100 * level * normal(shape[0], tokens) @ normal(tokens, shape[1], seed=1)
    values = torch.linalg.svdvals(signal + level * normal(*shape, seed=2))
    assert noise_level(values, tokens, shape) == pytest.approx(level, rel=0.02)


@pytest.mark.parametrize("shape", [(400, 200), (200, 400), (300, 300)])
def test_alignment_is_the_share_that_noise_leaves_of_a_direction(shape: tuple[int, int]) -> None:
    """Spikes of known direction in noise of known level, mean over draws; and none under it."""
    spikes, found, told = torch.tensor([60.0, 40.0, 30.0, 25.0]).double(), [], []
    for seed in range(4):
        true = torch.linalg.qr(normal(shape[1], 4, seed=seed)).Q
        left = torch.linalg.qr(normal(shape[0], 4, seed=seed + 10)).Q
        made = left * spikes @ true.T + normal(*shape, seed=seed + 20)
        _, values, rows = torch.linalg.svd(made, full_matrices=False)
        found.append((rows[:4] @ true).square().diagonal())
        told.append(alignment(values[:4], 1.0, shape))
    means = torch.stack(found).mean(0), torch.stack(told).mean(0)
    torch.testing.assert_close(*means, rtol=0, atol=0.08)
    edge = shape[0] ** 0.5 + shape[1] ** 0.5
    assert not alignment(torch.tensor([0.9 * edge]).double(), 1.0, shape).any()
    assert alignment(torch.tensor([3.0]), 0.0, shape).all()


def test_misfit_is_one_of_what_came_in_under_noise() -> None:
    inputs = normal(10, 200)
    noisy = gradient(300, inputs) + 0.5 * normal(300, 200, seed=3)
    span = Span.of([noisy], 10)
    assert span is not None
    assert span.clear
    assert float(span.misfit(inputs).mean()) == pytest.approx(1, abs=0.15)
    assert float(span.misfit(normal(50, 200, seed=4)).min()) > 20
    assert float(span.energy(inputs).mean()) < 0.05


def test_noise_above_all_that_came_in_leaves_no_rank() -> None:
    span = Span.of([0.001 * gradient(100, normal(4, 80)) + normal(100, 80, seed=3)], 4)
    assert span is not None
    assert span.rank == 0
    assert not span.clear
    torch.testing.assert_close(span.energy(normal(3, 80)), torch.ones(3).double())


@pytest.mark.parametrize(("positions", "rank"), [(40, 24), (20, 20)])
def test_the_strongest_directions_are_the_first_right_singular_vectors(
    positions: int, rank: int
) -> None:
    """At most three quarters of 32 dimensions, and no more than there are positions."""
    generator = torch.Generator().manual_seed(0)
    came_in = torch.randn(positions, 32, generator=generator)
    gradient = torch.randn(50, positions, generator=generator) @ came_in
    found = Span.strongest([gradient[:20], gradient[20:]], positions)
    assert found is not None
    assert (found.rank, found.whole, found.clear) == (rank, False, False)
    _, _, rows = np.linalg.svd(gradient.double().numpy())
    expected = 1 - np.square(came_in.double().numpy() @ rows[:rank].T).sum(1) / np.square(
        came_in.double().numpy()
    ).sum(1)
    np.testing.assert_allclose(found.energy(came_in), expected, atol=1e-5)
    assert Span.strongest([torch.zeros(5, 32)], positions) is None
