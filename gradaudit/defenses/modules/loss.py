"""Losses of models that append a term of the loss to their outputs."""

from abc import abstractmethod

import torch
from torch import Tensor

from gradaudit.models.losses import Loss


class PenalisedLoss(Loss):
    """The task's loss on a model's outputs, plus a term on the columns appended to them.

    Attributes:
        task: the loss of the outputs proper, (records, outputs).
        extra: how many columns a defense appended behind them.
        weight: factor on the term.
    """

    def __init__(self, task: Loss, extra: int, weight: float) -> None:
        self.task = task
        self.extra = extra
        self.weight = weight
        self.name = task.name

    @abstractmethod
    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """The added term of each record, (records,), from its columns (records, extra)."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """The outputs without what was appended."""
        return self.task.predictions(outputs[:, : -self.extra])

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's loss plus the weighted term."""
        own = self.task.per_record(outputs[:, : -self.extra], targets)
        return own + self.weight * self.term(outputs[:, -self.extra :], targets)

    def weights(self, targets: Tensor) -> Tensor | None:
        """The task's weights, which hold for the term too."""
        return self.task.weights(targets)

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weighted mean; of a task that couples records, its loss plus the term's mean."""
        if self.task.weights(targets) is not None:
            return super().of_batch(outputs, targets)
        term = self.term(outputs[:, -self.extra :], targets).mean()
        return self.task.of_batch(outputs[:, : -self.extra], targets) + self.weight * term

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """The task's reason; the term is of each record alone."""
        return self.task.coupling(outputs[:, : -self.extra], targets)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether the outputs proper and the labels fit each other."""
        self.task.check(outputs[:, : -self.extra], labels)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The task's real-valued labels."""
        return self.task.soft(outputs[:, : -self.extra], labels)

    @property
    def seen(self) -> Loss:
        """The loss as an adversary knows it who does not know of the term."""
        return _TaskOnly(self.task, self.extra)


class _TaskOnly(PenalisedLoss):
    """The task's loss alone, on outputs that carry something behind them."""

    def __init__(self, task: Loss, extra: int) -> None:
        super().__init__(task, extra, 0.0)

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.task.per_record(outputs[:, : -self.extra], targets)

    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        return extra.sum(dim=1) * 0


class ChosenColumn(PenalisedLoss):
    """The term is the column of the record's class (of soft labels, their mixture)."""

    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """(records, classes) at the true classes."""
        if targets.is_floating_point():
            if targets.shape == extra.shape:
                return (targets * extra).sum(dim=1)
            second = targets.reshape(len(extra))
            return (1 - second) * extra[:, 0] + second * extra[:, 1]
        return extra.gather(1, targets.unsqueeze(1)).squeeze(1)


class SummedColumns(PenalisedLoss):
    """The term is the sum of the appended columns."""

    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """(records, extra) summed."""
        return torch.sum(extra, dim=1)
