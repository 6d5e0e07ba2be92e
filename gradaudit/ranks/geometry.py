"""Input position of every tap of a convolution, for any dimension and padding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from gradaudit.gradients.capture import padding_sides

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Geometry:
    """How one group of a convolution reads its input; the same for all its channels.

    ``sources``, (output positions, taps) int64, is the input position that a tap reads, ``size``
    (the number of spatial positions of the input) where it reads zero padding.
    """

    channels: int
    size: int
    sources: Tensor

    @property
    def positions(self) -> int:
        """Number of output positions."""
        return self.sources.shape[0]

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return self.sources.shape[1]

    @cached_property
    def reads(self) -> Tensor:
        """(size,) how often each input position is read."""
        return torch.bincount(self.sources.flatten(), minlength=self.size + 1)[: self.size]

    @cached_property
    def touched(self) -> int:
        """Number of inputs that are read at all."""
        return self.channels * int((self.reads > 0).sum())

    @cached_property
    def live(self) -> Tensor:
        """(taps,) whether a tap ever reads more than padding."""
        return (self.sources < self.size).any(dim=0)

    @cached_property
    def scale(self) -> float:
        """‖im2col‖₂: every patch element is one input, so its Gram matrix is diag(``reads``)."""
        return math.sqrt(self.reads.max())

    @cached_property
    def patterns(self) -> tuple[Tensor, Tensor]:
        """The distinct ways in which output positions merge their taps, and each one's positions.

        Taps of one output position that read the same input (reflection, replication) count as
        one; those that read padding drop out.

        Returns:
            (patterns, taps) int64: for every tap the first one that reads the same input, ``taps``
            for padding; and (positions,) the pattern of every output position.
        """
        first = torch.arange(self.taps, device=self.sources.device).repeat(self.positions, 1)
        for tap in reversed(range(self.taps)):
            same = self.sources == self.sources[:, tap : tap + 1]
            first = torch.where(same, tap, first)
        first = torch.where(self.sources == self.size, self.taps, first)
        kinds, pattern = torch.unique(first, dim=0, return_inverse=True)
        return kinds, pattern

    @cached_property
    def parts(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Number of the connected part, of every input position and of every output position.

        Strides beyond the kernel and dilation leave parts that share no read.
        """
        sources = self.sources.cpu().numpy()
        at, tap = np.nonzero(sources < self.size)
        nodes = self.size + self.positions
        edges = (np.ones(len(at), dtype=np.int8), (self.size + at, sources[at, tap]))
        graph = coo_array(edges, shape=(nodes, nodes))
        _, part = connected_components(graph, directed=False)
        return part[: self.size], part[self.size :]


def geometry_of(
    convolution: Convolution, shape: Sequence[int], device: torch.device | None = None
) -> Geometry:
    """The geometry of each group of a convolution.

    ``shape`` is the spatial one of its input, without batch and channels.
    """
    size, kernel, dilation = math.prod(shape), convolution.kernel_size, convolution.dilation
    mode = "constant" if convolution.padding_mode == "zeros" else convolution.padding_mode
    sides = padding_sides(convolution.padding, kernel, dilation)
    # numbers of positions, as real ones for those ways to pad that have no other
    read = torch.arange(size, dtype=torch.float64).reshape(1, 1, *shape)
    read = F.pad(
        read, tuple(chain(*reversed(sides))), mode, size if mode == "constant" else None
    ).long()
    for axis, stride in enumerate(convolution.stride, 2):
        spread = dilation[axis - 2]
        read = read.unfold(axis, spread * (kernel[axis - 2] - 1) + 1, stride)[..., ::spread]
    return Geometry(
        channels=convolution.in_channels // convolution.groups,
        size=size,
        sources=read.reshape(-1, math.prod(kernel)).to(device),
    )
