"""Norms of rank-two matrices against the matrices themselves."""

import pytest
import torch
from torch import Tensor

from gradaudit.gradients import jacobian_norms
from gradaudit.gradients.jacobian_norms import Norms, rank_two_norms

RECORDS, DIRECTIONS = 2, 3


def draw(inputs: int, outputs: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    moved = normal(RECORDS, DIRECTIONS, inputs), normal(RECORDS, DIRECTIONS, outputs)
    return normal(RECORDS, inputs), normal(RECORDS, outputs), *moved


def dense(a: Tensor, d: Tensor, a_dot: Tensor, d_dot: Tensor) -> Norms:
    matrices = d[:, None, :, None] * a_dot[:, :, None] + d_dot[..., None] * a[:, None, None]
    sizes = matrices.abs()
    return {
        "f": matrices.square().sum((2, 3)),
        "1": sizes.sum((2, 3)),
        "inf": sizes.amax((1, 2, 3))[:, None],
    }


def assert_same(found: Norms, expected: Norms) -> None:
    assert set(found) == set(expected)
    for norm in expected:
        torch.testing.assert_close(found[norm], expected[norm], rtol=1e-12, atol=1e-300)


@pytest.fixture(params=[1 << 19, 20])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jacobian_norms, "_BLOCK", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 7), (40, 30)])
def test_norms(shape: tuple[int, int]) -> None:
    factors = draw(*shape)
    assert_same(rank_two_norms(*factors, ("f", "1", "inf")), dense(*factors))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("zeroed", range(4))
def test_norms_with_zeros(zeroed: int) -> None:
    factors = list(draw(6, 4))
    factors[zeroed].zero_()
    factors[(zeroed + 1) % 4][..., :2] = 0
    assert_same(rank_two_norms(*factors, ("f", "1", "inf")), dense(*factors))


@pytest.mark.usefixtures("_blocks")
def test_nothing_moves() -> None:
    a, d, _, d_dot = draw(6, 4)
    found = rank_two_norms(a, d, None, torch.zeros_like(d_dot), ("f", "1", "inf"))
    assert not any(norm.any() for norm in found.values())


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("power", [-120, -10, 10])
def test_parts_of_very_different_size(power: int) -> None:
    a, d, a_dot, d_dot = draw(30, 20)
    for factors in ((a, d, 10.0**power * a_dot, d_dot), (a, 10.0**power * d, a_dot, d_dot)):
        assert_same(rank_two_norms(*factors, ("f", "1", "inf")), dense(*factors))


@pytest.mark.usefixtures("_blocks")
def test_one_tangent_for_all_records() -> None:
    a, d, a_dot, d_dot = draw(6, 4)
    found = rank_two_norms(a, d, a_dot[:1], d_dot, ("f", "1", "inf"))
    assert_same(found, dense(a, d, a_dot[:1].expand_as(a_dot), d_dot))


def test_nearly_cancelling_parts_keep_their_accuracy() -> None:
    a, d, _, _ = draw(6, 4)
    residue = 1e-9 * draw(6, 4, seed=1)[3]
    a_dot, d_dot = a[:, None].expand(-1, DIRECTIONS, -1), residue - d[:, None]
    found = rank_two_norms(a, d, a_dot, d_dot, ("f",))["f"].sqrt()
    expected = residue.norm(dim=2) * a.norm(dim=1)[:, None]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
