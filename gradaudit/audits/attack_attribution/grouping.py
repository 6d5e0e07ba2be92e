"""Groups of recovered rows that belong to one client, by the units that they share."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gradaudit.audits.attack_attribution.recovery import RoundSum, taking_part

_NEAR = 1e-4
"""Pre-activations, over the largest, from which on a row is surely on one side of a unit."""


def groups(rounds: Sequence[RoundSum], rows: Tensor) -> NDArray[np.int64]:
    """Number the group of each row, (rows,); a row that shares no unit is a group alone.

    A unit of which ``rows`` explain the whole update links those that activated it from the start
    and those that came in later, as soon as the former are of one group.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    found = [_units(each, rows) for each in rounds]
    first, later = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    group, links = np.arange(len(rows), dtype=np.int64), np.zeros((0, 2), np.int64)
    while len(first):
        owner = np.where(first, group, -1).max(axis=1)
        single = (np.where(first, group, owner[:, None]) == owner[:, None]).all(axis=1)
        unit, row = np.nonzero(later[single])
        starts = first[single].argmax(axis=1)
        new = np.stack([starts[unit], row], axis=1)
        links, first, later = np.concatenate([links, new]), first[~single], later[~single]
        graph = coo_array((np.ones(len(links)), links.T), shape=(len(rows),) * 2)
        before, group = group, connected_components(graph, directed=False)[1].astype(np.int64)
        if len(np.unique(before)) == len(np.unique(group)):
            break
    return group


def _units(seen: RoundSum, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split the units that link rows into those active from the start and those active later."""
    part, whole = taking_part(seen, rows)
    active = seen.active(rows).T
    near = active.abs() < _NEAR * active.abs().amax()
    first, later = part & (active > 0), part & (active <= 0)
    usable = whole & first.any(dim=1) & later.any(dim=1) & ~(part & near).any(dim=1)
    return first[usable], later[usable]
