"""Thousands of shared updates at once, layer by layer, reduced to features."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.loading.records import Records
from gradaudit.target import Layer, Target
from gradaudit.updates.reduction import Reduction, parse_reduction, reduction_for
from gradaudit.updates.share import share
from gradaudit.updates.sharing import Sharing

Indices = NDArray[np.int64]


class Observer:
    """What an adversary sees of many batches of records.

    Attributes:
        note: what the report should say of how the updates were computed; empty if nothing.
    """

    def __init__(
        self,
        target: Target,
        records: Records,
        layers: Sequence[Layer],
        *,
        sharing: Sharing | None = None,
        reduce: str | None = None,
        memory: int = 1 << 30,
        seed: int = 0,
    ) -> None:
        self.target, self.records, self.layers = target, records, tuple(layers)
        self.sharing = sharing or Sharing()
        self.reduction: Reduction | None = parse_reduction(reduce)
        self.memory, self.seed = memory, seed
        self.note = ""

    def features(
        self,
        batches: Indices,
        *,
        fit: Indices | None = None,
        seed: int = 0,
        others: Indices | None = None,
    ) -> Iterator[tuple[Layer, Tensor]]:
        """Each layer's features (batches, features), float32, one layer after the other."""
        generator = torch.Generator().manual_seed(seed)
        updates = [
            share(
                self.target,
                self.records.inputs[batch],
                self.records.labels[batch],
                self.sharing,
                generator,
            )
            for batch in torch.from_numpy(batches)
        ]
        for layer in self.layers:
            rows = torch.stack(
                [torch.cat([u[name].flatten() for name in layer.parameter_names]) for u in updates]
            )
            yield layer, _reduced(rows, reduction_for(rows.shape[1], self.reduction))

    def whole(
        self,
        batches: Indices,
        *,
        fit: Indices | None = None,
        seed: int = 0,
        others: Indices | None = None,
    ) -> Tensor:
        """All layers' features side by side, (batches, features), float32."""
        found = self.features(batches, fit=fit, seed=seed, others=others)
        return torch.cat([features for _, features in found], dim=1)


def _reduced(rows: Tensor, reduction: Reduction) -> Tensor:
    if reduction.kind == "maxpool":
        pooled: Tensor = torch.nn.functional.max_pool1d(
            rows[:, None], reduction.size, ceil_mode=True
        )
        return pooled[:, 0]
    if reduction.kind == "pca":
        centred = rows - rows.mean(dim=0)
        return centred @ torch.linalg.svd(centred, full_matrices=False).Vh[: reduction.size].T
    if reduction.kind == "subset":
        order = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(0))
        return rows[:, order[: reduction.size]]
    return rows
