"""Finds records that a fully connected layer gives away: rows with equal quotients."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reading.base import (
    LinearUpdate,
    Reading,
    ReadingUnit,
    ReadingValue,
    head_of,
    linear_of,
    size_of,
    untold,
)
from gradaudit.sharing.named import NamedUpdate

_PROBES = 3
_DEVIATIONS = 6.0
_RELATIVE = 1e-3
"""How far rounding may move a quotient, over the quotients' size, for the row to be of use."""
_OTHER = "the closed form is for fully connected layers with bias"
_FEW = (
    "with one or two outputs of the model, rows agree whoever is behind them; the closed form "
    "solves for the mean record alone"
)
_ROUNDED = "rounding hides what its rows would tell"


class AgreeingRows(Reading):
    """A record for itself alone: rows k of a fully connected layer with the same ∇_{W_k} / ∇_{b_k}.

    The quotient of a row is a mean of the layer's inputs with weights δ_ik (Fan et al. 2020,
    theorem 2.1). Where two rows agree in it, their δ are proportional over the records, and with
    three outputs or more that is so of a single record (or of records that the model treats
    alike), which the quotient then is. Rows are compared by random projections of their quotients,
    within what rounding moves them.
    """

    name: ClassVar[str] = "rows"
    summary: ClassVar[str] = "Records that rows of a fully connected layer give away."
    priority: ClassVar[int] = 10

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make one unit of work for each layer."""
        head = head_of(update)
        few = head is not None and len(update.after[head[1].bias]) < 3 and update.records != 1
        for layer, names in update.layers().items():
            linear = linear_of(update, names)
            if linear is None or few:
                yield untold("record_share", layer, _OTHER if linear is None else _FEW)
                continue
            look, elements = partial(_agreeing, update, layer, linear), size_of(update, names)
            yield ReadingUnit(("record_share",), layer, 2 * elements, look, cut=True)


def _agreeing(
    update: NamedUpdate, layer: str, linear: LinearUpdate, share: float
) -> Iterator[ReadingValue]:
    weight, bias = linear.changes(update)
    if share < 1:
        rows = bias.abs().topk(max(2, int(share * len(bias)))).indices
        weight, bias = weight[rows], bias[rows]
    if not bool(weight.any()):
        yield ReadingValue("record_share", layer, None, "it did not move")
        return
    lengths = weight.norm(dim=1)
    errors = update.rounding(linear.weight), update.rounding(linear.bias)
    quotients = _quotients(weight, bias)
    # How far rounding moves the quotients' projections, (rows, probes).
    eps = torch.finfo(lengths.dtype).eps
    moved = errors[0] + 2 * eps * lengths[:, None] + quotients.abs() * errors[1]
    tolerances = _DEVIATIONS * moved / bias.abs().clamp(min=torch.finfo(bias.dtype).tiny)[:, None]
    usable = _usable(quotients, tolerances, (bias != 0) & (lengths > 0))
    details: dict[str, JsonValue] = {"rows": int(usable.sum()), "of_rows": len(usable)}
    if share < 1:
        details["rows_looked_at"] = f"{len(bias)} of the largest bias gradients"
    if not bool(usable.any()):
        yield ReadingValue("record_share", layer, None, _ROUNDED, details)
        return
    groups = _groups(quotients[usable], tolerances[usable])
    sizes = torch.bincount(groups)
    energies = torch.zeros(len(sizes)).index_add(0, groups, lengths[usable].square().cpu().float())
    alone = sizes > 1
    value = float(energies[alone].max() / lengths.square().sum()) if bool(alone.any()) else 0.0
    details["records_alone"] = int(alone.sum())
    yield ReadingValue("record_share", layer, min(value, 1.0), details=details)


def _quotients(weight: Tensor, bias: Tensor) -> Tensor:
    """Projections of rows' quotients, (rows, probes); of a row without bias gradient nothing."""
    draws = torch.Generator().manual_seed(0)
    probes = torch.randn(weight.shape[1], _PROBES, generator=draws, dtype=torch.float64)
    projected: Tensor = weight @ (probes / probes.norm(dim=0)).to(weight)
    return projected / torch.where(bias != 0, bias, 1)[:, None]


def _usable(quotients: Tensor, tolerances: Tensor, moved: Tensor) -> Tensor:
    """Mask of the rows that moved by more than rounding, (rows,)."""
    if not bool(moved.any()):
        return moved
    scale = quotients[moved].square().mean().sqrt()
    return moved & (tolerances.amax(dim=1) < _RELATIVE * scale)


def _groups(quotients: Tensor, tolerances: Tensor) -> Tensor:
    """The number of the group that each row is in, (rows,): neighbours that agree."""
    order = quotients[:, 0].argsort()
    near = quotients[order].diff(dim=0).abs() <= tolerances[order][1:] + tolerances[order][:-1]
    numbers = torch.cat([torch.zeros(1, dtype=torch.long), (~near.all(dim=1)).cpu().cumsum(0)])
    groups = torch.empty(len(order), dtype=torch.long)
    groups[order.cpu()] = numbers
    return groups
