"""The upper bound on rank U that follows from the ranks of filters and output gradients.

Every row of U lies in one of two families, and each family has a dimension of its own:

- Q_w P(x): at each output position at most the rank of the filters on the inputs read there, and
  in each connected part of the input at most as many as it has inputs;
- Π P(x) Q_dᵀ: at most (live taps − rank of filters) · rank of output gradients,

with P(x) = im2col(x), orthonormal bases Q_w and Q_d of the filters and of the output gradients, and
the projection Π onto what Q_w leaves of the taps. This is rank W + rank ∇_Z J − relations,
sharpened at padding edges and in unconnected parts.
"""

import numpy as np
import torch
from torch import Tensor

from gradaudit.ranks.linear_system import ConvolutionSystem, numerical_rank


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
