"""The training losses, record by record, differentiable in outputs and in real-valued targets.

Cross-entropy is written from the largest logit z_t as −log p_c = (z_t − z_c) + log(1 + Σ_{j≠t}
exp(z_j − z_t)): its derivatives keep their relative accuracy as p_c → 1, where softmax(z) − 1 has
none left.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gradaudit.errors import AuditError


class Loss(ABC):
    """A loss of records, and of a batch: their mean, weighted where records have weights."""

    name: str

    @abstractmethod
    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each record, (records,).

        Args:
            outputs: (records, …) of the model.
            targets: labels as the data set holds them, or the real-valued targets of ``soft``.
        """

    def weights(self, targets: Tensor) -> Tensor | None:
        """What each record counts in a batch, (records,); None where all count alike.

        The gradient of a batch is Σ w g / Σ w of its records' gradients.
        """
        return None

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, a scalar: Σ w ℓ / Σ w."""
        return mean_of(self.per_record(outputs, targets), self.weights(targets))

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Why the loss of these few records is no weighted mean of their losses; None if it is."""
        return None

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


def mean_of(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w ℓ / Σ w of (records,); the plain mean without weights."""
    if weights is None:
        return losses.mean()
    shares = weights.double() / weights.double().sum()
    return (shares.to(losses) * losses).sum()


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits (records, classes); soft labels need not sum to one."""

    name = "cross-entropy"
    summary = "softmax cross-entropy on logits"

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
        return _one_hot(labels, outputs)


class MeanSquaredError(Loss):
    """Mean over a record's outputs of the squared error; class labels are compared one-hot."""

    name = "mse"
    summary = "mean squared error over a record's outputs"

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
    summary = "binary cross-entropy on logits"

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy of each record, from logits."""
        soft = self.soft(outputs, targets)
        losses = soft * _softplus(-outputs) + (1 - soft) * _softplus(outputs)
        return losses.flatten(1).mean(dim=1)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Targets in the shape of the logits."""
        return _targets_like(outputs, labels, self.name)


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


def _targets_like(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    if labels.numel() == outputs.numel():
        return labels.reshape(outputs.shape).to(outputs.dtype)
    if not labels.is_floating_point() and labels.dim() == 1 and outputs.dim() == 2:
        return _one_hot(labels, outputs)
    raise AuditError(
        f"--loss {loss}: labels of shape {tuple(labels.shape)} do not fit outputs of shape "
        f"{tuple(outputs.shape)}"
    )
