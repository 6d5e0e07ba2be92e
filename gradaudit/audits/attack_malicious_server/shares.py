"""How much of a batch's gradient is one record's."""

import torch
from torch import Tensor

DOMINATED = 0.9
"""Share of a row's gradient from which it is one record's."""


def record_shares(norms: Tensor, batch: int) -> Tensor:
    """max_i ‖g_i‖ / Σ_i ‖g_i‖ of each batch: 1/records where all weigh the same, 1 of one alone.

    Args:
        norms: (records, …) ‖g_i‖, of a layer or of each of its rows.
        batch: records in a batch; those that make no whole batch are left out.

    Returns:
        (batches, …); NaN where no record has a gradient.
    """
    kept = norms[: len(norms) // batch * batch]
    batches = kept.reshape(-1, batch, *norms.shape[1:])
    return batches.amax(dim=1) / batches.sum(dim=1)


def dominated(rows: Tensor, batch: int) -> float | None:
    """The share of rows whose gradient of a batch is one record's, of all that have a gradient.

    Args:
        rows: (records, rows) of each row's norm.
        batch: records in a batch.

    Returns:
        The mean over batches and rows; None where no row has a gradient.
    """
    shares = record_shares(rows, batch)
    known = shares[~torch.isnan(shares)]
    return float((known >= DOMINATED).double().mean()) if len(known) else None
