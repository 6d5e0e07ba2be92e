"""A client's update as a function of one record, where all its other records are known.

An update after several local steps, of records that weigh differently, or clipped as a whole is no
mean of what each record adds: what one does to it depends on those beside it. With these and the
order of every step known it is a function of the one record, through the weights of every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.trace import Gradients, Trace
from gradaudit.sharing.protocol import LocalTraining, Update


@dataclass(frozen=True)
class Companions:
    """The other records that a client may have, and its training.

    Attributes:
        inputs: (others, …), as ``FunctionalModel.cast`` gives them.
        labels: (others, …).
        records: in the client's update, the one asked about among them.
        training: of the client; None where it shares a gradient.
    """

    inputs: Tensor
    labels: Tensor
    records: int
    training: LocalTraining | None = None

    def drawn(self, updates: int, generator: torch.Generator) -> Tensor:
        """Draw the other records of each update and their order, (updates, numbers) of integers.

        First the others' places in ``inputs``, drawn with replacement; then the rows of every local
        step, in which the record that is asked about has the number 0.
        """
        shape = updates, self.records - 1
        others = torch.randint(len(self.inputs), shape, generator=generator)
        if self.training is not None:
            steps = (self.training.drawn(self.records, generator) for _ in range(updates))
            others = torch.cat([others, torch.stack([torch.cat(each) for each in steps])], dim=1)
        return others.to(self.inputs.device)

    def update(
        self, view: FunctionalModel, record: Tensor, target: Tensor, drawn: Tensor
    ) -> Update:
        """Compute the client's update with this record in it, by every trainable parameter.

        Args:
            view: the model that the server sent.
            record: without a batch dimension; ``vmap`` and forward mode may go over it.
            target: its label.
            drawn: who else is in the update, and when: a row of what ``drawn`` gives.
        """
        others, *steps = torch.split(drawn, [self.records - 1, *self._sizes])
        records = torch.cat([record.unsqueeze(0), self.inputs[others]])
        targets = torch.cat([target.unsqueeze(0), self.labels[others]])
        gradient: Callable[..., Update] = torch.func.grad(view.batch_loss)
        if self.training is None:
            return gradient(view.parameters, records, targets)

        def of_step(weights: Update, rows: Tensor) -> Update:
            return gradient(weights, records[rows], targets[rows])

        return self.training.update(view.parameters, steps, of_step)

    @property
    def several(self) -> bool:
        """Whether the weights of some step depend on what an earlier one made of the record."""
        return self.training is not None and self.training.count(self.records) > 1

    @cached_property
    def _sizes(self) -> list[int]:
        """Records of every local step."""
        steps = self.training.batches(self.records) if self.training else []
        return [step.stop - step.start for step in steps]


@dataclass(frozen=True)
class CompanionTrace(Trace):
    """Gives updates to what differentiates the gradients of single records.

    What it takes for a record are the numbers that ``Companions.drawn`` gives, beside the record as
    a point; nothing of an update is taken apart.
    """

    companions: Companions

    @classmethod
    def among(cls, view: FunctionalModel, names: Sequence[str], companions: Companions) -> Self:
        """The updates of the named parameters."""
        return cls(view, (), {}, tuple(names), {}, companions)

    def gradients(self, point: Tensor, target: Tensor, record: Tensor) -> Gradients:
        """One client's update; see ``Companions.update``."""
        update = self.companions.update(self.view, point, target, record)
        return Gradients((), {}, {name: update[name] for name in self.whole})

    connected = gradients
