"""How a client turns a batch of records into what the adversary sees, and what he sees of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gradaudit.defenses import Chain, Defense
from gradaudit.errors import UsageError
from gradaudit.models.target import Layer, layers_of, shared_parameters
from gradaudit.randomness import rng
from gradaudit.sharing.local import LocalTraining, OptimizerName
from gradaudit.sharing.reduction import Reduction, reduction_for
from gradaudit.sharing.rows import GradientRows

Algorithm = Literal["fedsgd", "fedavg"]


@dataclass(frozen=True)
class SharingProtocol:
    """How an update is made, defended, mixed with others and seen.

    Attributes:
        defenses: applied in order to each client's update.
        algorithm: ``fedsgd`` shares the gradient of the batch's mean loss; ``fedavg`` the
            difference (w_0 − w_E)/rate that local training makes.
        epochs, rate, local_batch, local_steps, optimizer, momentum: of FedAvg, see
            ``LocalTraining``.
        others: how many other clients' updates the target's is averaged with, each on as many
            records (Mo et al. 2022, V-D).
        fraction: share of each layer's elements that is visible, at random (Mo et al. 2022, V-E).
        elements: number of each layer's elements that are visible (Mo et al. 2021: 48).
        hidden: names of layers that are never shared; they count in no norm.
    """

    defenses: tuple[Defense[Any], ...] = ()
    algorithm: Algorithm = "fedsgd"
    epochs: int = 1
    rate: float = 0.1
    local_batch: int | None = None
    local_steps: int | None = None
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    others: int = 0
    fraction: float | None = None
    elements: int | None = None
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fraction is not None and self.elements is not None:
            raise UsageError("--fraction and --elements: give one of them, not both")
        if self.algorithm == "fedavg":
            for defense in self.chain.acting:
                if defense.of_records:
                    raise UsageError(
                        f"--defense {defense}: single records cannot be clipped in FedAvg's "
                        "update, which is no mean over them; use per=release"
                    )

    @cached_property
    def chain(self) -> Chain:
        """The defenses, as they act on updates."""
        return Chain(self.defenses)

    @cached_property
    def training(self) -> LocalTraining | None:
        """Local training before clients share; None where they share a gradient."""
        if self.algorithm == "fedsgd":
            return None
        how = self.epochs, self.rate, self.local_batch, self.local_steps
        return LocalTraining(*how, self.optimizer, self.momentum)

    @property
    def clients(self) -> int:
        """How many clients' updates are seen as their mean."""
        return 1 + self.others

    def knowledge(self, records: int) -> str:
        """The attacker's knowledge of how this number of records became an update."""
        per_client = records // self.clients
        update = "gradient" if self.training is None else self.training.words(per_client)
        return (
            update
            if not self.others
            else f"mean over {self.clients} clients of {per_client}: {update}"
        )

    def visible(self, elements: int) -> int:
        """How many of a layer's elements are visible."""
        if self.fraction is not None:
            return max(1, round(self.fraction * elements))
        return elements if self.elements is None else min(self.elements, elements)

    def parameters(self, model: nn.Module) -> tuple[str, ...]:
        """The parameters whose update is shared: trainable, and of no hidden layer.

        Raises:
            UsageError: the defenses cannot be applied to them.
        """
        names = shared_parameters(model, self.hidden)
        if not names:
            every = [layer.name for layer in layers_of(model)]
            raise UsageError(f"nothing is shared: all layers are hidden ({', '.join(every)})")
        self.chain.check(names)
        return names


@dataclass(frozen=True)
class Visibility:
    """The visible, reduced part of one layer's update.

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
    ) -> Self:
        """The same elements for the same seed, whatever else is asked.

        The reduction is the default where none is asked for; it goes by the memory, in bytes.
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
        """The visible rows, reduced by anything but principal components: (rows, features)."""
        seen = self.seen(rows)
        if self.reduction.kind == "maxpool":
            seen = F.max_pool1d(seen[:, None], self.reduction.size, ceil_mode=True)[:, 0]
        return seen


def _chosen(elements: int, count: int, seed: int, use: str, layer: Layer) -> NDArray[np.int64]:
    if count == elements:
        return np.arange(elements)
    chosen = rng(seed, "sharing", use, layer.name).choice(elements, count, replace=False)
    return np.sort(chosen)
