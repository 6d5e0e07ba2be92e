"""The protocol by which a client makes an update of a batch, and its visible part.

How a FedAvg client comes to its update: steps of an optimizer over minibatches of its records.

The client runs it, and so does the attacker who tries to explain what was shared.

Optimizer steps as plain functions of gradients, which attacks differentiate.

Each begins anew in every round, as clients do that keep nothing between rounds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gradaudit.core.randomness import rng
from gradaudit.defenses import Chain, Defense
from gradaudit.errors import UsageError
from gradaudit.models.target import Layer, layers_of, shared_parameters
from gradaudit.sharing.reduction import Reduction, reduction_for

Update = dict[str, Tensor]
OptimizerName = Literal["sgd", "adam", "adamw"]
_FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8
B = TypeVar("B")


class Optimizer(Protocol):
    """The optimizer of one client in one round."""

    def directions(self, gradients: Update) -> Update:
        """The direction against which the weights move by one learning rate."""


class Momentum:
    """b_t = μ b_{t−1} + g_t, with b_1 = g_1: SGD where μ is 0 (``torch.optim.SGD``)."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._kept: Update = {}

    def directions(self, gradients: Update) -> Update:
        """Compute the direction b_t."""
        kept = self._kept if self._momentum else {}
        self._kept = {
            name: g + self._momentum * kept[name] if name in kept else g
            for name, g in gradients.items()
        }
        return self._kept


class Adam:
    """m̂_t / (√v̂_t + ε) with β₁ = 0.9, β₂ = 0.999 and ε = 1e-8 (``torch.optim.Adam``).

    Source: D. Kingma and J. Ba, "Adam: A method for stochastic optimization" (2015), algorithm 1.
    """

    def __init__(self) -> None:
        self._step = 0
        self._means: Update = {}
        self._squares: Update = {}

    def directions(self, gradients: Update) -> Update:
        """Compute the direction m̂_t / (√v̂_t + ε)."""
        self._step += 1
        self._means = _averaged(self._means, gradients, _FIRST)
        squared = {name: g.square() for name, g in gradients.items()}
        self._squares = _averaged(self._squares, squared, _SECOND)
        first, second = 1 - _FIRST**self._step, 1 - _SECOND**self._step
        return {
            name: mean / first / (_root(self._squares[name] / second) + _LEAST)
            for name, mean in self._means.items()
        }


def mean_update(updates: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of several updates; a single one itself."""
    if len(updates) == 1:
        return updates[0]
    return {
        name: torch.stack([update[name] for update in updates]).mean(dim=0) for name in updates[0]
    }


def _averaged(kept: Update, new: Update, decay: float) -> Update:
    return {
        name: (1 - decay) * x + (decay * kept[name] if name in kept else 0.0)
        for name, x in new.items()
    }


def _root(squares: Tensor) -> Tensor:
    """Compute √x with slope 0 at 0, where 0 · ∞ would give a NaN."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)


@dataclass(frozen=True)
class LocalTraining:
    """A client's training in a round, whose update is (w_0 − w_E)/rate.

    One step of SGD over all records gives their gradient.

    Attributes:
        epochs: passes over the client's records.
        rate: learning rate.
        local_batch: records in a minibatch; None is all of them.
        steps: how many minibatches, whatever the epochs say; None is what they come to.
        optimizer: begins anew in every round.
        momentum: of SGD.
        weight_decay: λ of AdamW, which adds λ w to its direction (Loshchilov and Hutter 2019,
            algorithm 2).
        warmup: first steps n, of which the t-th has the rate · t/n.
        accumulate: minibatches whose gradients are averaged for a step; the last step takes what
            is left.
    """

    epochs: int = 1
    rate: float = 0.1
    local_batch: int | None = None
    steps: int | None = None
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.01
    warmup: int = 0
    accumulate: int = 1

    def batches(self, records: int) -> list[slice]:
        """The records of every minibatch, where each epoch takes them in their order."""
        size = self.local_batch or records
        once = [slice(start, min(start + size, records)) for start in range(0, records, size)]
        return (once * self._passes(records))[: self._most]

    def count(self, records: int) -> int:
        """The number of steps."""
        return ceil(len(self.batches(records)) / self.accumulate)

    def drawn(self, records: int, generator: torch.Generator) -> list[Tensor]:
        """The records of every minibatch, where each epoch takes them in a new random order.

        In the given order where one minibatch holds them all (McMahan et al. 2017, algorithm 1).
        """
        size = self.local_batch or records
        minibatches: list[Tensor] = []
        for _ in range(self._passes(records)):
            if size >= records:
                order = torch.arange(records, device=generator.device)
            else:
                order = torch.randperm(records, generator=generator, device=generator.device)
            minibatches.extend(torch.split(order, size))
        return minibatches[: self._most]

    def gives_gradient(self, records: int) -> bool:
        """Whether the update is the gradient of the records' mean loss."""
        plain = self.optimizer == "sgd" and self.warmup < 2
        return plain and self.batches(records) == [slice(0, records)]

    def update(
        self,
        start: Mapping[str, Tensor],
        batches: Iterable[B],
        gradient: Callable[[Update, B], Update],
    ) -> Update:
        """Compute (w_0 − w_E)/rate, the sum of the optimizer's directions.

        Args:
            start: w_0, every parameter that is trained.
            batches: every minibatch, see ``batches`` and ``drawn``.
            gradient: of the mean loss of a minibatch, by every parameter, at these weights.
        """
        optimizer: Optimizer = Momentum(self.momentum) if self.optimizer == "sgd" else Adam()
        decay = self.weight_decay if self.optimizer == "adamw" else 0.0
        sums = {name: torch.zeros_like(weight) for name, weight in start.items()}
        minibatches, size = list(batches), self.accumulate
        for step, first in enumerate(range(0, len(minibatches), size), start=1):
            here = {name: start[name] - self.rate * sums[name] for name in start}
            some = minibatches[first : first + size]
            moves = optimizer.directions(mean_update([gradient(here, batch) for batch in some]))
            share = min(1.0, step / self.warmup) if self.warmup else 1.0
            sums = {n: sums[n] + share * (moves[n] + decay * here[n]) for n in start}
        return sums

    def words(self, records: int) -> str:
        """The attacker's knowledge of the training, for the report."""
        decayed = f" of AdamW (weight decay {self.weight_decay:g})"
        optimizer = {"adam": " of Adam", "adamw": decayed}.get(self.optimizer, "")
        momentum = f" with momentum {self.momentum:g}" if self.momentum else ""
        times = f"{self.epochs} epochs" if self.steps is None else f"{self.steps} steps"
        warmup = f" after {self.warmup} steps of warm-up" if self.warmup else ""
        together = f", {self.accumulate} a step" if self.accumulate > 1 else ""
        return (
            f"FedAvg: {times}{optimizer} at rate {self.rate:g}{warmup}{momentum}, minibatches of "
            f"{self.local_batch or records}{together}, their order unknown"
        )

    @property
    def _most(self) -> int | None:
        """The number of minibatches that the steps take; None where epochs say it."""
        return None if self.steps is None else self.steps * self.accumulate

    def _passes(self, records: int) -> int:
        if self._most is None:
            return self.epochs
        return ceil(self._most / ceil(records / (self.local_batch or records)))


Algorithm = Literal["fedsgd", "fedavg"]


@dataclass(frozen=True)
class SharingProtocol:
    """A protocol of how an update is made, defended, mixed with others and seen.

    Attributes:
        defenses: applied in order to each client's update.
        algorithm: ``fedsgd`` shares the gradient of the batch's mean loss; ``fedavg`` the
            difference (w_0 − w_E)/rate that local training makes.
        epochs, rate, local_batch, local_steps, optimizer, momentum, weight_decay, warmup,
            accumulate: of FedAvg, see ``LocalTraining``.
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
    weight_decay: float = 0.01
    warmup: int = 0
    accumulate: int = 1
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
        how = self.epochs, self.rate, self.local_batch, self.local_steps, self.optimizer
        return LocalTraining(
            *how, self.momentum, self.weight_decay, warmup=self.warmup, accumulate=self.accumulate
        )

    @property
    def clients(self) -> int:
        """The number of clients whose mean update is visible."""
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
        """Count the visible elements of a layer."""
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
        """Choose the elements that are seen: the same for the same seed, whatever else is asked.

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
        """The number of features, at most."""
        return self.reduction.features(self.elements)

    def seen(self, rows: Tensor) -> Tensor:
        """The elements that are seen, (rows, elements)."""
        return rows if self.columns is None else rows[:, self.columns.to(rows.device)]

    def pooled(self, rows: Tensor) -> Tensor:
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
