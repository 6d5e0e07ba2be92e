"""The upper bound on rank U that follows from the ranks of filters and output gradients.

Every row of U lies in one of two families, and each family has a dimension of its own:

- Q_w P(x): at each output position at most the rank of the filters on the inputs read there, and
  in each connected part of the input at most as many as it has inputs;
- Π P(x) Q_dᵀ: at most (live taps − rank of filters) · rank of output gradients.

This is rank W + rank ∇_Z J − relations, sharpened at padding edges and in unconnected parts. It is
a theorem and no more than a bound: only ``exact`` and a computation tell whether it is met.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gradaudit.ranks.bases import numerical_rank, row_basis
from gradaudit.ranks.operator import ReducedU


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
