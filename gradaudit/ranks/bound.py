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
    def _merged(self) -> list[Tensor]:
        """For every pattern of reads, the filters (rank, inputs) on the distinct inputs read."""
        geometry, filters = self.operator.geometry, self.operator.filters.rows
        by_tap = filters.view(len(filters), geometry.taps, geometry.channels)
        return [_merge(by_tap, first) for first in geometry.patterns[0]]

    @cached_property
    def ranks(self) -> Tensor:
        """(output positions,) rank of the filters on the inputs read there."""
        by_pattern = torch.tensor([numerical_rank(merged) for merged in self._merged])
        return by_pattern.to(self.operator.geometry.sources.device)[
            self.operator.geometry.patterns[1]
        ]

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
        for number, merged in enumerate(self._merged):
            at = operator.geometry.patterns[1] == number
            if int(self.ranks[at][0]) < operator.filters.rank:
                basis = row_basis(merged.T).rows
                by_filter[:, at] = by_filter[:, at] @ basis.T @ basis
        by_channel.copy_(operator.beside_filters(by_channel * operator.live))
        return outputs


def _merge(by_tap: Tensor, first: Tensor) -> Tensor:
    """Filters (rank, taps, channels) with the taps added up that read one input."""
    merged = torch.zeros_like(by_tap[:, :1]).repeat(1, len(first) + 1, 1)
    merged.index_add_(1, first, by_tap)
    return merged[:, torch.unique(first[first < len(first)])].flatten(1)
