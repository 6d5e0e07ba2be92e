"""The upper bound against dense ranks, and whether coordinate filters confirm it."""

from collections.abc import Sequence

import pytest
import torch
from ranks.reference import HAND_MADE, Case, plain, system_of
from torch import Tensor, nn

from gradaudit.ranks import bound
from gradaudit.ranks.bound import _CoordinatePoint, _free, _independent, confirmed, rank_bound
from gradaudit.ranks.observe import geometry_of

UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1]
SPREADS = ([0, 0], [1, 0], [2, 1], [3, 3])


def named(name: str) -> Case:
    return next(case for case in HAND_MADE if case.name == name)


def filters_of(case: Case) -> Tensor:
    """(output channels, taps · input channels), input channels fastest."""
    return case.layer.weight.detach().flatten(2).transpose(1, 2).flatten(1)


def dense_w(case: Case) -> Tensor:
    """W by automatic differentiation: (output channels, positions, input channels, size)."""
    zero = torch.zeros(1, case.layer.in_channels, *case.shape, dtype=torch.float64)
    jacobian: Tensor = torch.func.jacrev(case.layer)(zero)
    return jacobian.reshape(len(case.deltas), case.deltas[0].numel(), zero.shape[1], -1).detach()


def connected(reads: Tensor) -> list[Tensor]:
    """Positions by the part of the input that they share, of (positions, size) reads."""
    together = (reads.double() @ reads.T.double()) > 0
    while not torch.equal(together, wider := (together.double() @ together.double()) > 0):
        together = wider
    return list(torch.unique(together, dim=0))


def bound_by_hand(case: Case) -> int:
    """The bound by dense ranks position by position."""
    geometry, w = geometry_of(case.layer, case.shape), dense_w(case)
    reads = torch.stack([(geometry.sources == at).any(dim=1) for at in range(geometry.size)], dim=1)
    ranks = torch.linalg.matrix_rank(w.transpose(0, 1).flatten(2), rtol=1e-10)
    of_filters = sum(
        min(case.layer.in_channels * int(reads[part].any(dim=0).sum()), int(ranks[part].sum()))
        for part in connected(reads)
        if reads[part].any()
    )
    live = geometry.live.repeat_interleave(case.layer.in_channels)
    rank = int(torch.linalg.matrix_rank(filters_of(case) * live, rtol=1e-10))
    beside = (int(live.sum()) - rank) * int(
        torch.linalg.matrix_rank(_of_unit_length(case.deltas.flatten(1)), rtol=1e-10)
    )
    touched = case.layer.in_channels * int(reads.any(dim=0).sum())
    return min(touched, of_filters + beside)


def _of_unit_length(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-300)


@pytest.mark.parametrize(
    "case", [case for case in UNGROUPED if case.name != "filters-of-all-sizes"], ids=str
)
def test_the_bound_is_that_of_dense_ranks(case: Case) -> None:
    assert rank_bound(system_of(case)) == bound_by_hand(case)


@pytest.mark.parametrize("case", [named("narrowing"), named("untouched-rest")], ids=str)
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_the_rank_at_coordinate_filters_is_that_of_u_with_them(
    case: Case, spread: Sequence[int]
) -> None:
    """A filter for each entry that is passed, in a convolution of as many output channels."""
    channels, geometry = case.layer.in_channels, geometry_of(case.layer, case.shape)
    spread = [*spread, *[0] * (channels - 2)]
    deltas = system_of(case).deltas.rows
    point = _CoordinatePoint(geometry, deltas)
    filters = torch.zeros(max(sum(spread), len(deltas)), geometry.taps * channels).double()
    for row, column in enumerate(point.columns(spread)):
        filters[row, column] = 1
    layer = nn.Conv2d(channels, len(filters), 3, case.layer.stride)
    with torch.no_grad():
        layer.double().weight.copy_(filters.unflatten(1, (3, 3, channels)).permute(0, 3, 1, 2))
    padded = torch.zeros(len(filters), geometry.positions).double()
    padded[: len(deltas)] = deltas
    dense = Case("coordinates", layer, case.shape, padded.unflatten(1, case.deltas.shape[1:]))
    assert point.rank(spread) == dense.true_rank


def test_taps_come_by_what_they_read_beyond_those_before() -> None:
    def order(layer: nn.Conv1d, size: int) -> list[int]:
        return _CoordinatePoint(geometry_of(layer, (size,)), torch.zeros(0, 1)).order

    assert order(nn.Conv1d(1, 1, 3, padding=1), 3) == [1]
    assert order(nn.Conv1d(1, 1, 3, stride=2), 7) == [0, 1, 2]
    assert order(nn.Conv1d(1, 1, 3, stride=2, padding=1), 4) == [1, 2]
    assert order(nn.Conv1d(1, 1, 2, stride=9, padding=1), 3) == [1]


def test_filters_are_spread_evenly_as_far_as_taps_go() -> None:
    point = _CoordinatePoint(geometry_of(nn.Conv1d(3, 1, 3, stride=2), (7,)), torch.zeros(0, 3))
    spreads = {filters: point.spread(filters) for filters in (0, 2, 5, 9, 11)}
    assert spreads == {0: [0] * 3, 2: [1, 1, 0], 5: [2, 2, 1], 9: [3] * 3, 11: [3] * 3}
    assert point.columns([2, 0, 1]) == [0 * 3 + 0, 1 * 3 + 0, 0 * 3 + 2]


def test_free_entries_are_neither_zero_nor_tied() -> None:
    filters = torch.tensor([[1.0, 2.0, 0.0], [2.0, 3.0, -1.0]])
    assert _free(filters).tolist() == [[True, False, False], [False, True, True]]


def test_of_dependent_filters_as_many_are_picked_as_have_full_rank() -> None:
    filters = torch.tensor([[1.0, 0, 0], [1e-9, 0, 0], [0, 0, 0], [0, 1e-6, 0]]).double()
    picked = _independent(filters, 2)
    assert len(picked) == 2
    assert torch.linalg.matrix_rank(_of_unit_length(picked)) == 2
    assert torch.equal(_independent(picked, 2), picked)
    aslant = torch.tensor([[3.0, 1.0], [6.0, 2.0], [9.0, 3.0], [1.0, 3.0]]).double()
    assert torch.linalg.matrix_rank(_independent(aslant, 2)) == 2


@pytest.mark.parametrize(
    ("name", "generic"),
    [("narrowing", True), ("tied-taps", False), ("constant-filters", False), ("widening", True)],
)
def test_the_bound_is_confirmed_for_free_filters_only(name: str, generic: bool) -> None:
    case = named(name)
    system = system_of(case)
    assert confirmed(filters_of(case), system, rank_bound(system)) is generic


def test_what_is_too_large_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 49 inputs a tap that reads 25 leaves 24, in 8 equations of two gradients each."""
    case = plain("one", nn.Conv2d(1, 1, 3), 7, 7)
    point = _CoordinatePoint(geometry_of(case.layer, (7, 7)), torch.randn(2, 25).double())
    monkeypatch.setattr(bound, "MOST_ELEMENTS", 24 * 8 * 2)
    assert point.rank([1]) == 25 + 2 * 8
    monkeypatch.setattr(bound, "MOST_ELEMENTS", 24 * 8 * 2 - 1)
    assert point.rank([1]) == 0
