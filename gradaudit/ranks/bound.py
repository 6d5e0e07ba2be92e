"""The upper bound on rank U that follows from the ranks of filters and output gradients.

Every row of U lies in one of two families, and each family has a dimension of its own:

- Q_w P(x): at each output position at most the rank of the filters on the inputs read there, and
  in each connected part of the input at most as many as it has inputs;
- Π P(x) Q_dᵀ: at most (live taps − rank of filters) · rank of output gradients,

with P(x) = im2col(x), orthonormal bases Q_w and Q_d of the filters and of the output gradients, and
the projection Π onto what Q_w leaves of the taps. This is rank W + rank ∇_Z J − relations,
sharpened at padding edges and in unconnected parts.

Whether almost all weights that share the zeros and ties of the real ones meet the bound is seen at
a point: the rank of U at almost all points of a linear family of weights is the largest one in the
family, so that a single point proves a lower bound on it. Here the family is: the same filters,
free where an entry is neither zero nor equal to another; the output gradients are the real ones.
The chosen point has coordinate filters, each passing one tap of one input channel. It makes those
inputs known and leaves, channel by channel, only gradient equations on the inputs in between.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from gradaudit.ranks.linear_system import MOST_ELEMENTS, ConvolutionSystem, numerical_rank
from gradaudit.ranks.observe import Geometry


def rank_bound(system: ConvolutionSystem) -> int:
    """Bound rank U from above by the ranks of filters and output gradients."""
    beside = (int(system.live.sum()) - system.filters.rank) * system.deltas.rank
    return min(system.geometry.touched, _filters_bound(system) + beside)


def _filters_bound(system: ConvolutionSystem) -> int:
    """Bound the rank of W: by output positions, and by inputs in each connected part."""
    geometry = system.geometry
    kinds, pattern = geometry.patterns
    by_pattern = np.array([numerical_rank(_merged(system, first)) for first in kinds])
    inputs, positions = geometry.parts
    read = (geometry.reads > 0).cpu().numpy()
    parts = 1 + max(inputs.max(), positions.max())
    available = np.bincount(inputs, weights=read, minlength=parts)
    wanted = np.bincount(positions, weights=by_pattern[pattern.cpu().numpy()], minlength=parts)
    return int(np.minimum(geometry.channels * available, wanted).sum())


def _merged(system: ConvolutionSystem, first: Tensor) -> Tensor:
    """Merge the filters (rank, inputs) on a pattern's distinct inputs, repeated reads added."""
    geometry, filters = system.geometry, system.filters.rows
    by_tap = filters.view(len(filters), geometry.taps, geometry.channels)
    merged = by_tap.new_zeros(len(filters), geometry.taps + 1, geometry.channels)
    merged.index_add_(1, first, by_tap)
    return merged[:, torch.unique(first[first < geometry.taps])].flatten(1)


def confirmed(filters: Tensor, system: ConvolutionSystem, bound: int) -> bool:
    """Whether coordinate filters with the same zeros and ties as the weights reach the bound.

    They fit where every entry that they pass can be given a filter of its own that is free there.
    ``filters`` are those of the group, (output channels, taps · input channels).
    """
    point = _CoordinatePoint(system.geometry, system.deltas.rows)
    rank = system.filters.rank
    spread = point.spread(rank)
    free = _free(_independent(filters, rank))[:, point.columns(spread)]
    matched = maximum_bipartite_matching(csr_array(free), perm_type="row")
    return bool((matched >= 0).all()) and point.rank(spread) == bound


@dataclass(frozen=True)
class _CoordinatePoint:
    """Coordinate filters over a group's taps, in the order in which taps cover most inputs."""

    geometry: Geometry
    deltas: Tensor

    @cached_property
    def order(self) -> list[int]:
        """Taps by how many inputs they read that none before them reads, until all are covered."""
        hit = self._hits.clone()
        order = []
        while hit.any():
            tap = int(hit.sum(dim=1).argmax())
            order.append(tap)
            hit &= ~hit[tap]
        return order

    @cached_property
    def _hits(self) -> Tensor:
        """Which inputs each tap reads, (taps, size)."""
        size, sources = self.geometry.size, self.geometry.sources
        hit = sources.new_zeros(self.geometry.taps, size + 1, dtype=torch.bool)
        return hit.scatter_(1, sources.T, value=True)[:, :size]

    def spread(self, filters: int) -> list[int]:
        """Divide the taps among the input channels as evenly as possible."""
        share, rest = divmod(filters, self.geometry.channels)
        channels = range(self.geometry.channels)
        return [min(share + (channel < rest), len(self.order)) for channel in channels]

    def rank(self, spread: list[int]) -> int:
        """Rank of U at this point; 0 where it is too large to compute."""
        return sum(count * self._channel_rank(taps) for taps, count in Counter(spread).items())

    def _channel_rank(self, taps: int) -> int:
        known = self._hits[self.order[:taps]].any(dim=0)
        asked = ~known & (self.geometry.reads > 0)
        others = [tap for tap in range(self.geometry.taps) if tap not in self.order[:taps]]
        if int(asked.sum()) * len(others) * len(self.deltas) > MOST_ELEMENTS:
            return 0
        equations = [self._equations(tap)[asked] for tap in others]
        unknown = numerical_rank(torch.cat(equations, dim=1)) if equations else 0
        return int(known.sum()) + unknown

    def _equations(self, tap: int) -> Tensor:
        """Form the gradient equations of one tap on one channel's inputs, (size, gradients)."""
        placed = self.deltas.new_zeros(self.geometry.size + 1, len(self.deltas))
        return placed.index_add_(0, self.geometry.sources[:, tap], self.deltas.T)[:-1]

    def columns(self, spread: list[int]) -> list[int]:
        """The entries of a filter, over (tap, channel), that the coordinate filters pass."""
        return [
            tap * self.geometry.channels + channel
            for channel, taps in enumerate(spread)
            for tap in self.order[:taps]
        ]


def _independent(filters: Tensor, rank: int) -> Tensor:
    """Choose as many of the filters (filters, width) as have full rank."""
    if len(filters) == rank:
        return filters
    lengths = filters.norm(dim=1, keepdim=True).clamp_min(torch.finfo(filters.dtype).tiny)
    _, pivots = qr((filters / lengths).T.cpu().numpy(), mode="r", pivoting=True)
    return filters[torch.as_tensor(pivots[:rank], device=filters.device, dtype=torch.long)]


def _free(filters: Tensor) -> NDArray[np.bool_]:
    """Which entries are neither zero nor equal to another entry."""
    _, which, counts = torch.unique(filters, return_inverse=True, return_counts=True)
    free: NDArray[np.bool_] = ((counts[which] == 1) & (filters != 0)).cpu().numpy()
    return free
