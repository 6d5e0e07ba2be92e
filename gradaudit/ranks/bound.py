"""The upper bound on rank U that follows from the ranks of filters and output gradients.

Every row of U lies in one of two families, and each family has a dimension of its own:

- Q_w P(x): at each output position at most the rank of the filters on the inputs read there, and
  in each connected part of the input at most as many as it has inputs;
- Π P(x) Q_dᵀ: at most (live taps − rank of filters) · rank of output gradients.

This is rank W + rank ∇_Z J − relations, sharpened at padding edges and in unconnected parts. It is
a theorem and no more than a bound: only ``exact`` and a computation tell whether it is met.

Whether almost all weights that share the zeros and ties of the real ones meet it can be seen at a
point: the rank of U at almost all points of a linear family of weights is the largest one in the
family, so that a single well-chosen point proves a lower bound on it. Here the family is: the same
filters, free where an entry is neither zero nor equal to another; the output gradients are the real
ones. The chosen point has coordinate filters, each passing one tap of one input channel. It makes
those inputs known and leaves, channel by channel, only gradient equations on the inputs in between.
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

from gradaudit.ranks.geometry import Geometry
from gradaudit.ranks.operator import MOST_ELEMENTS, ReducedU, numerical_rank, row_basis


@dataclass(frozen=True)
class RowSpace:
    """The space that the outputs of Û lie in, by position and by channel."""

    operator: ReducedU

    @cached_property
    def ranks(self) -> Tensor:
        """(output positions,) rank of the filters on the inputs read there."""
        kinds, pattern = self.operator.geometry.patterns
        ranks = [numerical_rank(self._merged(first)) for first in kinds]
        return torch.tensor(ranks, device=pattern.device)[pattern]

    def _merged(self, first: Tensor) -> Tensor:
        """The filters (rank, inputs) on the distinct inputs of a pattern, repeated reads added."""
        geometry, filters = self.operator.geometry, self.operator.filters.rows
        by_tap = filters.view(len(filters), geometry.taps, geometry.channels)
        merged = by_tap.new_zeros(len(filters), geometry.taps + 1, geometry.channels)
        merged.index_add_(1, first, by_tap)
        return merged[:, torch.unique(first[first < geometry.taps])].flatten(1)

    @cached_property
    def beside(self) -> int:
        """Dimension of what Π P(x) Q_dᵀ can be."""
        operator = self.operator
        return (int(operator.live.sum()) - operator.filters.rank) * operator.deltas.rank

    @cached_property
    def dimension(self) -> int:
        """Number of rows of Û without those that depend on others whatever the values are."""
        return int(self.ranks.sum()) + self.beside

    @cached_property
    def bound(self) -> int:
        """The upper bound on the rank."""
        return min(self.operator.geometry.touched, self._filters_bound + self.beside)

    @property
    def filters_suffice(self) -> bool:
        """Whether there are filters enough to determine all touched inputs by themselves."""
        return self._filters_bound == self.operator.geometry.touched

    @cached_property
    def _filters_bound(self) -> int:
        geometry = self.operator.geometry
        inputs, positions = geometry.parts
        read = (geometry.reads > 0).cpu().numpy()
        parts = 1 + max(inputs.max(), positions.max())
        available = np.bincount(inputs, weights=read, minlength=parts)
        wanted = np.bincount(positions, weights=self.ranks.cpu(), minlength=parts)
        return int(np.minimum(geometry.channels * available, wanted).sum())

    def project(self, outputs: Tensor) -> Tensor:
        """Orthogonal projection of (vectors, height) onto the space, in place."""
        operator = self.operator
        by_filter, by_channel = operator.split(outputs)
        kinds, pattern = operator.geometry.patterns
        for number, first in enumerate(kinds):
            at = pattern == number
            if int(self.ranks[at][0]) < operator.filters.rank:
                range_ = row_basis(self._merged(first).T).rows
                by_filter[:, at] = by_filter[:, at] @ range_.T @ range_
        by_channel.copy_(operator.beside_filters(by_channel * operator.live))
        return outputs


def confirmed(filters: Tensor, rows: RowSpace) -> bool:
    """Whether coordinate filters that fit the real zeros and ties reach the bound.

    They fit where every entry that they pass can be given a filter of its own that is free there.
    ``filters`` are those of the rows' group, (output channels, taps · input channels).
    """
    geometry = rows.operator.geometry
    point = _CoordinatePoint(geometry, rows.operator.deltas.rows)
    rank = rows.operator.filters.rank
    spread = point.spread(rank)
    free = _free(_independent(filters, rank))[:, point.columns(spread)]
    matched = maximum_bipartite_matching(csr_array(free), perm_type="row")
    return bool((matched >= 0).all()) and point.rank(spread) == rows.bound


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
        """(taps, size) which inputs a tap reads."""
        size, sources = self.geometry.size, self.geometry.sources
        hit = sources.new_zeros(self.geometry.taps, size + 1, dtype=torch.bool)
        return hit.scatter_(1, sources.T, value=True)[:, :size]

    def spread(self, filters: int) -> list[int]:
        """How many taps each input channel gets, as even as can be."""
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
        """(size, gradients): the gradient equations of one tap on one channel's inputs."""
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
    """As many filters as have full rank, among (filters, width)."""
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
