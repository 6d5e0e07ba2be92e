"""The upper bound against dense ranks."""

import pytest
import torch
from ranks.reference import HAND_MADE, Case, system_of
from torch import Tensor

from gradaudit.ranks.bound import rank_bound
from gradaudit.ranks.observe import geometry_of

UNGROUPED = [case for case in HAND_MADE if case.layer.groups == 1]


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
