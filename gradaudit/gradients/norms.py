"""The norms a Jacobian is measured by: F, the sum of absolute entries, the largest entry.

They are accumulated over parts of a Jacobian (parameters, columns), so F is held squared.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["f", "1", "inf"]
Norms = dict[Norm, Tensor]
"""F squared and sums of each direction, (records, directions); the largest of all, (records, 1)."""

_JOIN: dict[Norm, Callable[[Tensor, Tensor], Tensor]] = {
    "f": torch.add,
    "1": torch.add,
    "inf": torch.maximum,
}


def norms_of(tangents: Tensor, wanted: Collection[Norm]) -> Norms:
    """The norms of tangents (records, directions, …), which are overwritten."""
    entries = tuple(range(2, tangents.dim()))
    found: Norms = {}
    if "1" in wanted or "inf" in wanted:
        tangents.abs_()
    if "1" in wanted:
        found["1"] = tangents.sum(entries)
    if "inf" in wanted:
        found["inf"] = tangents.amax((1, *entries)).unsqueeze(1)
    if "f" in wanted:
        found["f"] = tangents.square_().sum(entries)
    return found


def joined(parts: Iterable[Norms]) -> Norms:
    """The norms of several parts' elements together."""
    return reduce(lambda a, b: {norm: _JOIN[norm](a[norm], b[norm]) for norm in a}, parts)


def over_directions(norms: Norms) -> Norms:
    """The norms of all directions' tangents together, (records, 1)."""
    return {
        norm: found if norm == "inf" else found.sum(1, keepdim=True)
        for norm, found in norms.items()
    }


def side_by_side(chunks: Sequence[Norms]) -> Norms:
    """The norms of several chunks of directions, one after the other."""
    return {
        norm: torch.cat([chunk[norm] for chunk in chunks], dim=1)
        if norm != "inf"
        else torch.stack([chunk[norm] for chunk in chunks]).amax(0)
        for norm in chunks[0]
    }
