"""The upper bound on rank U that follows from the ranks of filters and output gradients.

Every row of U lies in one of two families, and each family has a dimension of its own:

- Q_w P(x): at each output position at most the rank of the filters on the inputs read there, and
  in each connected part of the input at most as many as it has inputs;
- Π P(x) Q_dᵀ: at most (live taps − rank of filters) · rank of output gradients.

This is rank W + rank ∇_Z J − relations, sharpened at padding edges and in unconnected parts. It is
a theorem and no more than a bound: only ``exact`` and a computation show whether it is met.

Whether almost all weights that share the zeros and ties of the real ones meet it can be seen at a
point: the rank of U at almost all points of a linear family of weights is the largest one in the
family, so that a single well-chosen point proves a lower bound on it. Here the family is: the same
filters, free where an entry is neither zero nor equal to another; the output gradients are the real
ones. The chosen point has coordinate filters, each passing one tap of one input channel. It makes
those inputs known and leaves, channel by channel, only gradient equations on the inputs in between.

Û can be seen to have full rank from either of two sides, its inputs, or its rows. Thin layers need
a preconditioner, W's Gram matrix on the inputs factored as a band: few input channels (and
depthwise convolutions, one to a group) make W almost square, badly conditioned and narrow.
Conjugate gradients need thousands of iterations where the band Cholesky factor of WᵀW + εI costs
less than a hundred of them. Of other layers the output gradients' own equations are eliminated
first, and no more than what they leave of the inputs is W's to span.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_solve_banded, cholesky_banded, qr
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from gradaudit.ranks.observe import Geometry
from gradaudit.ranks.operator import (
    MOST_ELEMENTS,
    Equations,
    ReducedU,
    equations_of,
    numerical_rank,
    row_basis,
)

Map = Callable[[Tensor], Tensor]
Maps = tuple[Map, Map, Map]

_SHIFT = 1e-10
"""ε over ‖im2col‖₂²: the solve must not lose more digits than the probes need."""
_WORTH_ITERATIONS = 100
_MOST_IN_BAND = 32_000_000


@dataclass(frozen=True)
class RowSpace:
    """The space that the outputs of Û lie in, by position and by channel."""

    operator: ReducedU

    @cached_property
    def ranks(self) -> Tensor:
        """The rank of the filters on the inputs read at each output position, (positions,)."""
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
        """The largest possible dimension of Π P(x) Q_dᵀ."""
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
    """Whether coordinate filters with the same zeros and ties as the weights reach the bound.

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


@dataclass(frozen=True)
class Side:
    """A space in which B = Ûᵀ or B = Û spans a part; what is left over is its nullity.

    Of every row, ``span`` gives B, ``against`` Bᵀ, ``confine`` the orthogonal projection onto the
    space, whose vectors have so many elements as ``length``, and ``precondition`` about (B Bᵀ)⁻¹,
    symmetric and positive definite. ``equations`` are those of the output gradients where they are
    eliminated: the space is what they leave of the inputs.
    """

    name: str
    operator: ReducedU
    dimension: int
    length: int
    span: Map
    against: Map
    confine: Map
    precondition: Map
    equations: Equations | None = None

    @property
    def known(self) -> int:
        """Rank of Û beside what it has in this space."""
        return self.equations.determined if self.equations else 0

    @property
    def flops(self) -> float:
        """Floating-point operations of B and Bᵀ together, of one vector."""
        eliminating = self.equations.projection_flops if self.equations else 0.0
        return 2.0 * self.operator.flops + eliminating

    @property
    def rounding(self) -> float:
        """The relative error of the space."""
        return self.equations.rounding if self.equations else 0.0

    @property
    def spent(self) -> float:
        """Floating-point operations that the preparation took."""
        return self.equations.flops if self.equations else 0.0

    def of_whole(self, singular: float) -> float:
        """Lower bound of Û's least singular value, from that of B, both over ‖im2col‖₂."""
        return self.equations.of_whole(singular) if self.equations else singular

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw standard Gaussian vectors of the space, (count, length)."""
        drawn = torch.randn(count, self.length, dtype=torch.float64, generator=generator)
        return self.confine(drawn.to(self.operator.geometry.sources.device))


def input_side(rows: RowSpace, flops: float = math.inf) -> Side:
    """The inputs that are read at all, spanned by the rows of Û.

    (WᵀW + εI)⁻¹ preconditions where W can determine the inputs and is thin. Elsewhere the output
    gradients' equations are eliminated where that takes no more than half of ``flops``.
    """
    inverse = gram_inverse(rows.operator) if rows.filters_suffice else None
    equations = None if inverse else equations_of(rows.operator, flops / 2)
    return _beside(equations) if equations else _inputs(rows.operator, inverse or _identity)


def _inputs(operator: ReducedU, precondition: Map) -> Side:
    read = _read(operator)
    maps: Maps = operator.apply_transposed, operator.apply, lambda vectors: vectors * read
    space = operator.geometry.touched, operator.columns
    return Side("inputs", operator, *space, *maps, precondition)


def _beside(equations: Equations) -> Side:
    """The inputs that the output gradients' equations leave, spanned by projected Wᵀ."""
    operator, read = equations.operator.filters_alone, _read(equations.operator)

    def span(vectors: Tensor) -> Tensor:
        return equations.project(operator.apply_transposed(vectors))

    def confine(vectors: Tensor) -> Tensor:
        return equations.project(vectors * read)

    space = operator.geometry.touched - equations.determined, operator.columns
    return Side("inputs", operator, *space, span, operator.apply, confine, _identity, equations)


def _read(operator: ReducedU) -> Tensor:
    """Which inputs are read at all, (columns,)."""
    return (operator.geometry.reads > 0).repeat_interleave(operator.geometry.channels)


def row_side(rows: RowSpace) -> Side:
    """The rows of Û, without relations that hold for all inputs, spanned by its columns."""
    operator = rows.operator
    maps: Maps = operator.apply, operator.apply_transposed, rows.project
    return Side("rows", operator, rows.dimension, operator.height, *maps, _identity)


def smaller_side(rows: RowSpace, flops: float = math.inf) -> Side:
    """The side of the smaller dimension, which has the smaller nullity, for so many operations."""
    by_inputs = rows.operator.geometry.touched <= rows.dimension
    return input_side(rows, flops) if by_inputs else row_side(rows)


def _identity(vectors: Tensor) -> Tensor:
    return vectors


def gram_inverse(operator: ReducedU) -> Map | None:
    """Make (WᵀW + εI)⁻¹ for rows of (vectors, columns); None where it costs too much."""
    band = _bandwidth(operator)
    gram_flops = 2.0 * operator.geometry.positions * operator.filters.rank * operator.width**2
    flops = gram_flops + operator.columns * float(band) ** 2
    if flops > 2 * _WORTH_ITERATIONS * operator.flops or operator.columns * band > _MOST_IN_BAND:
        return None
    factor = cholesky_banded(_gram_band(operator, band), overwrite_ab=True, check_finite=False)

    def solve(vectors: Tensor) -> Tensor:
        solved = cho_solve_banded((factor, False), vectors.cpu().numpy().T, check_finite=False)
        return torch.from_numpy(np.ascontiguousarray(solved.T)).to(vectors.device)

    return solve


def _bandwidth(operator: ReducedU) -> int:
    """Diagonals of WᵀW, the main one included."""
    geometry = operator.geometry
    read = geometry.sources < geometry.size
    last = torch.where(read, geometry.sources, 0).amax(dim=1)
    first = torch.where(read, geometry.sources, geometry.size).amin(dim=1)
    return (int((last - first).clamp_min(0).max()) + 1) * geometry.channels


def _gram_band(operator: ReducedU, band: int) -> NDArray[np.float64]:
    """The upper diagonals of WᵀW + εI as LAPACK wants them: (band, columns), the main one last."""
    filters = _filters_matrix(operator)
    gram = (filters.T @ filters).tocoo()
    row, column = gram.coords
    upper = row <= column
    diagonals = np.zeros((band, operator.columns))
    diagonals[band - 1 + row[upper] - column[upper], column[upper]] = gram.data[upper]
    diagonals[-1] += _SHIFT * operator.geometry.scale**2
    return diagonals


def _filters_matrix(operator: ReducedU) -> csr_array:
    """W as a sparse matrix of (output position · filter, spatial position · channel)."""
    geometry, filters = operator.geometry, operator.filters.rows.cpu().numpy()
    sources = geometry.sources.cpu().numpy()
    at, tap = np.nonzero(sources < geometry.size)
    filter_, channel = np.indices((len(filters), geometry.channels))
    rows = at[:, None, None] * len(filters) + filter_
    columns = sources[at, tap][:, None, None] * geometry.channels + channel
    values = filters.reshape(len(filters), geometry.taps, geometry.channels)[:, tap]
    entries = np.moveaxis(values, 1, 0), (rows, columns)
    shape = (geometry.positions * len(filters), operator.columns)
    return csr_array(coo_array((entries[0].ravel(), (rows.ravel(), columns.ravel())), shape=shape))
