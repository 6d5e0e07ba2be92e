"""How a FedAvg client comes to its update: steps of an optimizer over minibatches of its records.

The client runs it, and so does the attacker who tries to explain what was shared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

import torch
from torch import Tensor

from gradaudit.sharing.optimizers import OptimizerName, Update, new_optimizer

B = TypeVar("B")


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
    """

    epochs: int = 1
    rate: float = 0.1
    local_batch: int | None = None
    steps: int | None = None
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0

    def batches(self, records: int) -> list[slice]:
        """The records of every step, where each epoch takes them in their order."""
        size = self.local_batch or records
        once = [slice(start, min(start + size, records)) for start in range(0, records, size)]
        return (once * self._passes(records))[: self.steps]

    def drawn(self, records: int, generator: torch.Generator) -> list[Tensor]:
        """The records of every step, where each epoch takes them in a new random order.

        In the given order where one minibatch holds them all (McMahan et al. 2017, algorithm 1).
        """
        size = self.local_batch or records
        steps: list[Tensor] = []
        for _ in range(self._passes(records)):
            if size >= records:
                order = torch.arange(records, device=generator.device)
            else:
                order = torch.randperm(records, generator=generator, device=generator.device)
            steps.extend(torch.split(order, size))
        return steps[: self.steps]

    def gives_gradient(self, records: int) -> bool:
        """Whether the update is the gradient of the records' mean loss."""
        return self.optimizer == "sgd" and len(self.batches(records)) == 1

    def update(
        self,
        start: Mapping[str, Tensor],
        batches: Iterable[B],
        gradient: Callable[[Update, B], Update],
    ) -> Update:
        """(w_0 − w_E)/rate: the sum of what the optimizer steps along.

        Args:
            start: w_0, every parameter that is trained.
            batches: of every step, see ``batches`` and ``drawn``.
            gradient: of the mean loss of a batch, by every parameter, at these weights.
        """
        optimizer = new_optimizer(self.optimizer, self.momentum)
        sums = {name: torch.zeros_like(weight) for name, weight in start.items()}
        for batch in batches:
            here = {name: start[name] - self.rate * sums[name] for name in start}
            moves = optimizer.directions(gradient(here, batch))
            sums = {name: sums[name] + moves[name] for name in start}
        return sums

    def words(self, records: int) -> str:
        """The attacker's knowledge of the training, for the report."""
        optimizer = {"adam": " of Adam"}.get(self.optimizer, "")
        momentum = f" with momentum {self.momentum:g}" if self.momentum else ""
        times = f"{self.epochs} epochs" if self.steps is None else f"{self.steps} steps"
        return (
            f"FedAvg: {times}{optimizer} at rate {self.rate:g}{momentum}, minibatches of "
            f"{self.local_batch or records}, their order unknown"
        )

    def _passes(self, records: int) -> int:
        if self.steps is None:
            return self.epochs
        return ceil(self.steps / ceil(records / (self.local_batch or records)))
