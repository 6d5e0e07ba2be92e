"""Rank of U = [W; ∇_Z J] of a whole convolution, the sum over its groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradaudit.ranks.geometry import Geometry
from gradaudit.ranks.group import GroupRank, Method, group_rank


@dataclass(frozen=True)
class LayerRank:
    """Rank of U of a convolution: U is block diagonal over its groups."""

    groups: tuple[GroupRank, ...]

    @property
    def low(self) -> int:
        """The rank is not smaller."""
        return sum(group.low for group in self.groups)

    @property
    def high(self) -> int:
        """The rank is not larger."""
        return sum(group.high for group in self.groups)


def convolution_rank(
    weight: Tensor,
    deltas: Tensor,
    geometry: Geometry,
    groups: int = 1,
    *,
    method: Method = "auto",
    flops: float = 1e12,
    seed: Sequence[int] = (0,),
) -> LayerRank:
    """Rank of U = [W; ∇_Z J] (Chen & Campbell 2021, eq. 4).

    Args:
        weight: (output channels, input channels of a group, *kernel) float64.
        deltas: ∂J/∂Z at the convolution's output, (output channels, output positions) float64.
        geometry: of each group.
        groups: of the convolution.
        method: how; ``auto`` takes what suits the layer.
        flops: floating-point operations that may be spent, over all groups, before a bracket is
            given; the same on every machine, unlike a time limit.
        seed: entropy of the probes.

    Raises:
        NotApplicable: Û is too large for ``dense``.
    """
    by_filter = (
        weight.flatten(2).transpose(1, 2).reshape(groups, -1, geometry.taps * geometry.channels)
    )
    by_group = deltas.reshape(groups, -1, geometry.positions)
    return LayerRank(
        tuple(
            group_rank(
                by_filter[group],
                by_group[group],
                geometry,
                method=method,
                flops=flops / groups,
                generator=_generator(*seed, group),
            )
            for group in range(groups)
        )
    )


def _generator(*entropy: int) -> torch.Generator:
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))
