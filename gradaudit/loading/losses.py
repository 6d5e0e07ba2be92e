"""The training losses, record by record, differentiable in outputs and in real-valued targets.

Cross-entropy is written from the largest logit z_t as −log p_c = (z_t − z_c) + log(1 + Σ_{j≠t}
exp(z_j − z_t)): its derivatives keep their relative accuracy as p_c → 1, where softmax(z) − 1 has
none left.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gradaudit.errors import AuditError, one_line


class Loss(ABC):
    """A loss that is a mean over records of a loss of each record."""

    name: str

    @abstractmethod
    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each record.

        Args:
            outputs: (records, …) of the model.
            targets: labels as the data set holds them, or the real-valued targets of ``soft``.

        Returns:
            (records,) losses.
        """

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether outputs and labels fit each other and this loss.

        Raises:
            AuditError: they do not; the message names the shapes or the labels at fault.
        """
        self.soft(outputs, labels)

    def predictions(self, outputs: Tensor) -> Tensor:
        """What of the model's outputs are its predictions (a defense may append more)."""
        return outputs

    @abstractmethod
    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The labels as real numbers that the loss can be differentiated by.

        Raises:
            AuditError: the labels do not fit the outputs, or this loss has no real-valued labels.
        """


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits (records, classes); soft labels need not sum to one."""

    name = "cross-entropy"

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with class indices (records,) or soft labels (records, classes)."""
        losses = self.negative_log_probabilities(outputs)
        if targets.is_floating_point():
            return (targets * losses).sum(dim=1)
        return losses.gather(1, targets.unsqueeze(1)).squeeze(1)

    def negative_log_probabilities(self, outputs: Tensor) -> Tensor:
        """−log p_c of every class, (records, classes)."""
        top = outputs.argmax(dim=1, keepdim=True)
        is_top = torch.arange(outputs.shape[1], device=outputs.device) == top
        behind = outputs.gather(1, top) - outputs
        odds = (-behind).exp().masked_fill(is_top, 0).sum(dim=1, keepdim=True)
        return behind.masked_fill(is_top, 0) + odds.log1p()

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One-hot labels (records, classes)."""
        _expect_classes(outputs, labels)
        return _one_hot(labels, outputs)


class MeanSquaredError(Loss):
    """Mean over a record's outputs of the squared error; class labels are compared one-hot."""

    name = "mse"

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of each record."""
        targets = targets if targets.shape == outputs.shape else self.soft(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(dim=1)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Targets in the shape of the outputs."""
        return _targets_like(outputs, labels, self.name)


class BinaryCrossEntropy(Loss):
    """Mean over a record's logits of the binary cross-entropy."""

    name = "bce"

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy of each record, from logits."""
        soft = self.soft(outputs, targets)
        losses = soft * _softplus(-outputs) + (1 - soft) * _softplus(outputs)
        return losses.flatten(1).mean(dim=1)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Targets in the shape of the logits."""
        return _targets_like(outputs, labels, self.name)


class CustomLoss(Loss):
    """A loss from the user's file: ``f(outputs, targets)`` giving a mean or one loss a record."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
        self.function = function
        self.name = name

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each record's loss; a function that reduces is called on one record at a time (vmap)."""
        losses = self.function(outputs, targets)
        if losses.shape == outputs.shape[:1]:
            return losses
        if losses.dim() != 0:
            raise AuditError(
                f"--loss {self.name}: returned shape {tuple(losses.shape)} for "
                f"{len(outputs)} records; return their mean, or one loss a record"
            )
        return torch.func.vmap(lambda o, t: self.function(o[None], t[None]))(outputs, targets)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Call the user's function once on these outputs and labels."""
        try:
            self.per_record(outputs, labels)
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(
                f"--loss {self.name}: fails on outputs of shape {tuple(outputs.shape)} and labels "
                f"of shape {tuple(labels.shape)} ({labels.dtype}): {one_line(error)}"
            ) from error

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The labels themselves, where they are real numbers."""
        if not labels.is_floating_point():
            raise AuditError(
                f"--loss {self.name}: integer labels cannot be differentiated by; a loss of real "
                "targets has a sensitivity to them, as the built-in ones have"
            )
        return labels.to(outputs.dtype)


BUILT_IN: dict[str, type[Loss]] = {
    loss.name: loss for loss in (CrossEntropy, MeanSquaredError, BinaryCrossEntropy)
}


def _softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ), of which every derivative is as accurate as the value."""
    positive = x > 0
    return torch.where(positive, x, 0) + torch.where(positive, -x, x).exp().log1p()


def _one_hot(labels: Tensor, outputs: Tensor) -> Tensor:
    """Unlike ``F.one_hot`` it reads no value, so it can be mapped over."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return (labels.unsqueeze(1) == classes).to(outputs.dtype)


def _expect_classes(outputs: Tensor, labels: Tensor) -> None:
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise AuditError(
            f"cross-entropy needs outputs (records, classes ≥ 2), the model gives "
            f"{tuple(outputs.shape)}; try --loss bce or --loss mse"
        )
    if labels.is_floating_point() or labels.dim() != 1:
        raise AuditError("cross-entropy needs one integer class label a record; try --loss mse")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < outputs.shape[1]:
        raise AuditError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, "
            f"but the model has {outputs.shape[1]} classes"
        )


def _targets_like(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    if labels.numel() == outputs.numel():
        return labels.reshape(outputs.shape).to(outputs.dtype)
    if not labels.is_floating_point() and labels.dim() == 1 and outputs.dim() == 2:
        return _one_hot(labels, outputs)
    raise AuditError(
        f"--loss {loss}: labels of shape {tuple(labels.shape)} do not fit outputs of shape "
        f"{tuple(outputs.shape)}"
    )
