"""What the attacker sees of a client's update, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel

Update = dict[str, Tensor]
"""A shared update by parameter name, in the shapes of the parameters."""


@dataclass(frozen=True)
class LocalTraining:
    """How a FedAvg client came to its update, as the attacker knows it.

    The update of E epochs over batches of ``local_batch`` records, in their order, is
    (w_0 − w_E) / rate, so that one step of the whole batch gives its gradient.
    """

    epochs: int = 1
    rate: float = 0.1
    local_batch: int | None = None

    def batches(self, records: int) -> list[slice]:
        """The records of every local step, in order."""
        size = self.local_batch or records
        once = [slice(start, min(start + size, records)) for start in range(0, records, size)]
        return once * self.epochs


@dataclass(frozen=True)
class AttackerView:
    """An update as the attacker has it before them.

    The truth is not in it: attacks cannot look, and only the audit scores.

    Attributes:
        model: the shared model as a pure function, all its parameters and buffers; in the
            precision that the attack computes in.
        update: what was shared, by parameter; a parameter that is not in it was hidden.
        batch: k, how many records are behind the update.
        shape: of one record.
        classes: number of classes, 0 where targets are real numbers.
        label_shape: of one record's target where targets are real numbers.
        discrete: whether records are tokens.
        labels: the batch's labels where the attacker knows them, in any order.
        bounds: smallest and largest value of an input where the attacker knows them, as for
            pictures in [0, 1].
        training: local training between the model and the update; None for a plain gradient.
        start: (k, …) a starting point that the attacker brings along.
        length_known: whether the update is known, or its direction alone.
        knowledge: all of this in words, for the report.
    """

    model: FunctionalModel
    update: Update
    batch: int
    shape: tuple[int, ...]
    classes: int = 0
    label_shape: tuple[int, ...] = ()
    discrete: bool = False
    labels: Tensor | None = None
    bounds: tuple[float, float] | None = None
    training: LocalTraining | None = None
    start: Tensor | None = None
    length_known: bool = True
    knowledge: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def visible(self) -> tuple[str, ...]:
        """Names of the parameters whose update was shared."""
        return tuple(self.update)

    def in_precision(self, dtype: torch.dtype) -> AttackerView:
        """The same view in another floating-point precision."""
        if dtype == self.dtype:
            return self
        return replace(
            self,
            model=replace(
                self.model,
                parameters=_cast(self.model.parameters, dtype),
                constants=_cast(self.model.constants, dtype),
                dtype=dtype,
            ),
            update=_cast(self.update, dtype),
        )

    @property
    def pictures(self) -> bool:
        """Whether a record is a picture: channels, height and width."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def elements(self) -> int:
        """Unknown numbers in the records of the batch."""
        return self.batch * prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the attack computes in."""
        return self.model.dtype

    def simulated(self, inputs: Tensor, targets: Tensor, *, taped: bool = False) -> Update:
        """The visible update that these records would have caused; differentiable in both.

        Args:
            inputs: (k, …) records.
            targets: (k,) classes, or real or soft targets, as ``Loss.per_record`` takes them.
            taped: record it for ``torch.autograd``, which is faster for a single candidate, and
                cannot be used inside ``torch.func``.
        """
        gradient = self._taped_gradient if taped else self._gradient
        if self.training is None:
            return gradient(self.model.parameters, self.visible, inputs, targets)
        weights = dict(self.model.parameters)
        everything = tuple(weights)
        for rows in self.training.batches(len(inputs)):
            step = gradient(weights, everything, inputs[rows], targets[rows])
            weights = {n: w - self.training.rate * step[n] for n, w in weights.items()}
        before = self.model.parameters
        return {n: (before[n] - weights[n]) / self.training.rate for n in self.visible}

    def _gradient(
        self, weights: Mapping[str, Tensor], names: tuple[str, ...], inputs: Tensor, targets: Tensor
    ) -> Update:
        def loss(chosen: Update) -> Tensor:
            return self.model.batch_loss({**weights, **chosen}, inputs, targets)

        update: Update = torch.func.grad(loss)({name: weights[name] for name in names})
        return update

    def _taped_gradient(
        self, weights: Mapping[str, Tensor], names: tuple[str, ...], inputs: Tensor, targets: Tensor
    ) -> Update:
        with torch.enable_grad():
            chosen = {
                name: weights[name]
                if weights[name].requires_grad
                else weights[name].detach().requires_grad_()
                for name in names
            }
            loss = self.model.batch_loss({**weights, **chosen}, inputs, targets)
            gradients = torch.autograd.grad(
                loss,
                list(chosen.values()),
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return dict(zip(names, gradients, strict=True))

    def clipped(self, inputs: Tensor) -> Tensor:
        """Inputs inside the known range of values; as they are where none is known."""
        return inputs if self.bounds is None else inputs.clamp(*self.bounds)

    def without(self, hidden: set[str]) -> AttackerView:
        """The same view where these parameters' updates were not shared."""
        return replace(self, update={n: g for n, g in self.update.items() if n not in hidden})


def _cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Update:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
