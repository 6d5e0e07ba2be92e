"""Which elements of a layer's update are seen, and what they are reduced to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.models.target import Layer
from gradaudit.randomness import rng
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.reduction import Reduction, reduction_for
from gradaudit.sharing.rows import GradientRows


@dataclass(frozen=True)
class Visibility:
    """What the adversary makes of one layer's update.

    Attributes:
        columns: the elements that are seen, ascending; None is all of them.
        elements: how many they are.
        reduction: what they are reduced by; a random subset is in ``columns`` already.
    """

    columns: Tensor | None
    elements: int
    reduction: Reduction

    @classmethod
    def of(
        cls,
        layer: Layer,
        sharing: SharingProtocol,
        asked: Reduction | None,
        seed: int,
        memory: int = 1 << 30,
    ) -> Visibility:
        """The same elements for the same seed, whatever else is asked.

        Args:
            layer: whose update is seen.
            sharing: what of it is shared.
            asked: the reduction, or None for the default.
            seed: of the elements.
            memory: bytes that gradients may take.
        """
        count = sharing.visible(layer.parameters)
        columns = _chosen(layer.parameters, count, seed, "visible", layer)
        reduction = reduction_for(count, asked, memory)
        if reduction.kind == "subset":
            chosen = _chosen(count, min(reduction.size, count), seed, "subset", layer)
            columns, count, reduction = columns[chosen], len(chosen), Reduction()
        whole = count == layer.parameters
        return cls(None if whole else torch.from_numpy(columns), count, reduction)

    @property
    def features(self) -> int:
        """At most how many features there are."""
        return self.reduction.features(self.elements)

    def seen(self, rows: GradientRows) -> Tensor:
        """The elements that are seen, (rows, elements)."""
        if self.columns is None:
            return rows.dense()
        return rows.columns(self.columns.to(rows.device))

    def pooled(self, rows: GradientRows) -> Tensor:
        """What is seen, reduced by anything but principal components: (rows, features)."""
        seen = self.seen(rows)
        if self.reduction.kind == "maxpool":
            seen = F.max_pool1d(seen[:, None], self.reduction.size, ceil_mode=True)[:, 0]
        return seen


def _chosen(elements: int, count: int, seed: int, use: str, layer: Layer) -> NDArray[np.int64]:
    if count == elements:
        return np.arange(elements)
    chosen = rng(seed, "sharing", use, layer.name).choice(elements, count, replace=False)
    return np.sort(chosen)
