"""torch's own losses as modules, with weights, smoothing or an ignored label.

torch's losses of class labels as modules have the mean Σ w ℓ / Σ w over a batch: the weight of a
record is its class's, and 0 for the label ``ignore_index``. Its binary cross-entropy as a module
weighs outputs and positive labels, and records alike.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    LabelWeights,
    Loss,
    classes_second,
    softplus,
)

Module = nn.CrossEntropyLoss | nn.NLLLoss


class WeightedCrossEntropy(CrossEntropy):
    """``nn.CrossEntropyLoss`` without smoothing, as exact as ``CrossEntropy``."""

    def __init__(self, module: nn.CrossEntropyLoss, name: str) -> None:
        self.name = name
        self.counting = LabelWeights(module.weight, module.ignore_index)
        self.ignored = module.ignore_index

    def weights(self, targets: Tensor) -> Tensor | None:
        """Weight of each record's labels; None for probabilities, which torch averages."""
        return None if targets.is_floating_point() else self.counting.of_records(targets)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Raise an error where outputs, weights and labels that are not ignored do not fit."""
        super().check(outputs, labels if labels.is_floating_point() else self.counting.kept(labels))
        given, classes = self.counting.of_class, classes_second(outputs, labels).shape[1]
        if given is not None and len(given) != classes:
            raise AuditError(
                f"--loss {self.name}: has {len(given)} class weights, "
                f"but the model has {classes} classes"
            )


class WeightedModule(CustomLoss):
    """``nn.NLLLoss``, or ``nn.CrossEntropyLoss`` with smoothing."""

    def __init__(self, module: Module, name: str) -> None:
        super().__init__(module, name)
        self._each = copy.deepcopy(module)
        self._each.reduction = "none"
        self.smoothing = float(getattr(module, "label_smoothing", 0.0))
        self._counting = LabelWeights(module.weight, module.ignore_index)
        self.ignored = module.ignore_index

    def weights(self, targets: Tensor) -> Tensor | None:
        """Weight of each record's labels; None for probabilities, of which torch takes the mean."""
        return None if targets.is_floating_point() else self._counting.of_records(targets)

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each record as a batch of one; 0 where its weight is 0."""
        losses, weights = self._called(outputs, targets), self.weights(targets)
        if weights is None:
            return losses.reshape(len(losses), -1).mean(dim=1)
        together = losses.reshape(len(losses), -1).sum(dim=1)
        return together / torch.where(weights > 0, weights, 1).to(together)

    def _called(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns weighted losses (records, …); weights are cast to the outputs' precision."""
        if self._counting.of_class is not None:
            self._each.weight = self._counting.of_class.to(outputs.device, outputs.dtype)
        return self._each(outputs, targets)  # type: ignore[no-any-return]

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of a batch: Σ w ℓ / Σ w."""
        return Loss.of_batch(self, outputs, targets)

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Returns None: these losses are weighted means over records."""
        return None


class WeightedBinaryCrossEntropy(BinaryCrossEntropy):
    """``nn.BCEWithLogitsLoss``, with weights of outputs and of positive labels."""

    def __init__(self, module: nn.BCEWithLogitsLoss, name: str) -> None:
        self.name = name
        self._weights = {"weight": module.weight, "pos_weight": module.pos_weight}

    def of_outputs(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """Returns the loss of every output, w (p y log(1 + e⁻ᵒ) + (1 − y) log(1 + eᵒ))."""
        weight, positive = self._of("weight", outputs), self._of("pos_weight", outputs)
        return weight * (positive * soft * softplus(-outputs) + (1 - soft) * softplus(outputs))

    def _of(self, name: str, outputs: Tensor) -> Tensor | float:
        given = self._weights[name]
        return 1.0 if given is None else given.to(outputs.device, outputs.dtype)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Raise an error where outputs, labels and weights do not fit each other."""
        super().check(outputs, labels)
        for name, given in self._weights.items():
            if given is not None and not _fits(given.shape, outputs[:1].shape):
                raise AuditError(
                    f"--loss {self.name}: has a {name} of shape {tuple(given.shape)} for outputs "
                    f"of shape {tuple(outputs.shape)}; give one number, or one for each output of "
                    "a record"
                )


def _fits(shape: torch.Size, record: torch.Size) -> bool:
    """Whether a tensor of that shape broadcasts over the outputs of every record alike."""
    try:
        return bool(torch.broadcast_shapes(shape, record) == record)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False


def user_loss(
    function: Callable[..., Tensor], name: str
) -> CustomLoss | CrossEntropy | BinaryCrossEntropy:
    """Returns the loss of a user's function or module."""
    if isinstance(function, nn.BCEWithLogitsLoss) and function.reduction == "mean":
        return WeightedBinaryCrossEntropy(function, name)
    if isinstance(function, Module) and function.reduction == "mean":
        if isinstance(function, nn.CrossEntropyLoss) and not function.label_smoothing:
            return WeightedCrossEntropy(function, name)
        return WeightedModule(function, name)
    return CustomLoss(function, name)
