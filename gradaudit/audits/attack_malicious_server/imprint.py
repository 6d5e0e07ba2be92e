"""Rows of a linear layer that were made to hold single records: bins and traps."""

import torch
from torch import Tensor

ALIGNED = 0.9
"""Cosine from which two rows ask the same question of what comes in."""
MIDDLE = (0.1, 0.9)
"""Shares of units that a row is active for, between which it can be one of several bins."""
RARE = 0.05
"""Share of units up to which a row is active only rarely."""
FEWEST_INPUTS = 4
"""Of fewer inputs, rows are alike by themselves."""


def bins(active: Tensor, weight: Tensor) -> int | None:
    """How many rows alike, each active for fewer units than the one before and for none beside.

    Such rows are cumulative bins: what the gradients of two of them differ by is that of the units
    between, and one of several dozen bins holds a single record. Trained layers have rows that
    are alike, or nested, but hardly one after the other that is both: in honest rounds no chain
    had more than 2, where 8 bins give 6 (benchmarks/malicious_server.py).

    Source: L. Fowl et al., "Robbing the Fed: directly obtaining private data in federated learning
    with modified models" (2022), section 4.

    Args:
        active: (units, rows), whether a unit's loss moves with what the row gives out.
        weight: (rows, inputs).

    Returns:
        The longest chain; None where the rows have too few inputs to be told apart.
    """
    if weight.shape[1] < FEWEST_INPUTS:
        return None
    share = active.double().mean(dim=0)
    kept = (share >= MIDDLE[0]) & (share <= MIDDLE[1])
    if not kept.any():
        return 0
    order = share[kept].argsort()
    sets, rows = active[:, kept][:, order].double(), weight[kept][order].double()
    return _longest_chain(_nested(sets) & _alike(rows))


def _nested(sets: Tensor) -> Tensor:
    """(rows, rows), whether row j's units are some, not all, of row k's."""
    sizes, common = sets.sum(dim=0), sets.mT @ sets
    return (common == sizes[:, None]) & (sizes[:, None] < sizes)


def _alike(rows: Tensor) -> Tensor:
    directions = torch.nn.functional.normalize(rows, dim=1)
    return directions @ directions.mT >= ALIGNED


def _longest_chain(before: Tensor) -> int:
    """Over rows in an order in which only earlier ones come before."""
    lengths = torch.ones(len(before), dtype=torch.long)
    for row in range(1, len(before)):
        lengths[row] += (lengths[:row] * before[:row, row]).max()
    return int(lengths.max())


def traps(active: Tensor) -> float | None:
    """The share of the rows that are active for hardly any unit, of those active at all.

    A row that one record of a batch is active for has that record's input as its gradient. Half of
    what untrained rows see turns them on; trap weights are drawn so that hardly anything does.

    Source: F. Boenisch et al., "When the curious abandon honesty: federated learning is not
    private" (2023), section 5.

    Args:
        active: (units, rows), whether a unit's loss moves with what the row gives out.

    Returns:
        The share; None where no row is active for any unit.
    """
    share = active.double().mean(dim=0)
    live = share[share > 0]
    return float((live <= RARE).double().mean()) if len(live) else None
