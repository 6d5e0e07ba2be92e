"""torch's losses of class labels as modules, whose mean over a batch is Σ w ℓ / Σ w.

The weight of a record is its class's, and 0 for the label ``ignore_index``.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError
from gradaudit.models.losses import CrossEntropy, CustomLoss

Module = nn.CrossEntropyLoss | nn.NLLLoss


@dataclass(frozen=True)
class ClassWeights:
    """What the records of each class count.

    Attributes:
        of_class: (classes,), None where all count alike.
        ignored: the label that counts nothing.
    """

    of_class: Tensor | None
    ignored: int

    @classmethod
    def of(cls, module: Module) -> "ClassWeights":
        """Those of a module."""
        return cls(module.weight, module.ignore_index)

    def kept(self, targets: Tensor) -> Tensor:
        """The labels with 0 for those that are ignored, which have the weight 0."""
        return torch.where(targets != self.ignored, targets, 0)

    def __call__(self, targets: Tensor) -> Tensor | None:
        """(records,) float64; None for probabilities, of which torch takes the plain mean."""
        if targets.is_floating_point():
            return None
        counted = (targets != self.ignored).double()
        if self.of_class is None:
            return counted
        return counted * self.of_class.to(targets.device, torch.float64)[self.kept(targets)]


class WeightedCrossEntropy(CrossEntropy):
    """``nn.CrossEntropyLoss`` without smoothing, as exact as ``CrossEntropy``."""

    def __init__(self, module: nn.CrossEntropyLoss, name: str) -> None:
        self.name = name
        self._weights = ClassWeights.of(module)

    def weights(self, targets: Tensor) -> Tensor | None:
        """The weight of each record's class."""
        return self._weights(targets)

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each record as a batch of its own, without a weight."""
        soft = targets.is_floating_point()
        return super().per_record(outputs, targets if soft else self._weights.kept(targets))

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether outputs, weights and the labels that are not ignored fit each other."""
        super().check(outputs, labels if labels.is_floating_point() else self._weights.kept(labels))
        given = self._weights.of_class
        if given is not None and len(given) != outputs.shape[1]:
            raise AuditError(
                f"--loss {self.name}: has {len(given)} class weights, "
                f"but the model has {outputs.shape[1]} classes"
            )


class WeightedModule(CustomLoss):
    """``nn.NLLLoss``, or ``nn.CrossEntropyLoss`` with smoothing."""

    def __init__(self, module: Module, name: str) -> None:
        super().__init__(module, name)
        self._each = copy.deepcopy(module)
        self._each.reduction = "none"
        self._weights = ClassWeights.of(module)

    def weights(self, targets: Tensor) -> Tensor | None:
        """The weight of each record's class."""
        return self._weights(targets)

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record as a batch of its own; 0 where it has no weight."""
        losses, weights = self._called(outputs, targets), self.weights(targets)
        if weights is None:
            return losses
        return losses / torch.where(weights > 0, weights, 1).to(losses)

    def _called(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(records,), each times its weight; the module's own weights have another precision."""
        if self._weights.of_class is not None:
            self._each.weight = self._weights.of_class.to(outputs.device, outputs.dtype)
        losses: Tensor = self._each(outputs, targets)
        return losses

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Σ w ℓ / Σ w."""
        return super(CustomLoss, self).of_batch(outputs, targets)


def user_loss(function: Callable[[Tensor, Tensor], Tensor], name: str) -> CustomLoss | CrossEntropy:
    """The loss that a user's function or module is."""
    if isinstance(function, Module) and function.reduction == "mean":
        if isinstance(function, nn.CrossEntropyLoss) and not function.label_smoothing:
            return WeightedCrossEntropy(function, name)
        return WeightedModule(function, name)
    return CustomLoss(function, name)
