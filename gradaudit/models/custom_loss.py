"""A loss from the user's file: a function or a module, reducing or not, weighted or not.

A function that reduces is taken at its word for a batch. What its records' own losses are is found
by calling it on one record at a time; whether the batch's loss is their (weighted) mean is tried.

torch's losses of class labels as modules have the mean Σ w ℓ / Σ w over a batch: the weight of a
record is its class's, and 0 for the label ``ignore_index``. Its binary cross-entropy as a module
weighs outputs and positive labels, and records alike.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradaudit.errors import AuditError, one_line
from gradaudit.models.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    LabelWeights,
    Loss,
    classes_second,
    default_dtype,
    mean_of,
    softplus,
)

_MOST_CLASSES = 64
"""Classes that a loss is tried on."""


class CustomLoss(Loss):
    """``f(outputs, targets)`` giving a batch's loss, or each record's, of which the mean counts.

    Where ``f`` has an attribute ``weights``, ``f.weights(targets)`` gives what each record counts,
    (records,), and the loss of a batch is Σ w ℓ / Σ w.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
        self.function = function
        self.name = name

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each record's loss; a function that reduces is called on one record at a time (vmap)."""
        losses = self._called(outputs, targets)
        if losses.dim():
            return losses
        return torch.func.vmap(lambda o, t: self._called(o[None], t[None]))(outputs, targets)

    def weights(self, targets: Tensor) -> Tensor | None:
        """What ``f.weights`` says, if there is one.

        Raises:
            AuditError: it does not give one weight a record, none negative.
        """
        of_targets = getattr(self.function, "weights", None)
        if not callable(of_targets):
            return None
        at = next((tensor.device for _, tensor in _tensors(self.function)), targets.device)
        given = of_targets(targets.to(at, copy=True))
        if not isinstance(given, Tensor) or given.shape != targets.shape[:1] or (given < 0).any():
            raise AuditError(
                f"--loss {self.name}: weights(targets) must give one weight a record, "
                f"({len(targets)},), none negative"
            )
        return given.to(targets.device)

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the function makes of a batch where it reduces, else the (weighted) mean."""
        losses = self._called(outputs, targets)
        return mean_of(losses, self.weights(targets)) if losses.dim() else losses

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Tried on these records, and on labels that they may happen not to have."""
        if self._called(outputs, targets).dim():
            return None
        for some, labels in ((outputs, targets), *_other_labels(outputs, targets)):
            try:
                whole = self._called(some, labels)
            except Exception:  # labels that the function does not take
                continue
            try:
                apart = Loss.of_batch(self, some, labels)
            except AuditError:
                raise
            except Exception as error:
                return f"--loss {self.name} cannot be had of one record alone: {one_line(error)}"
            tolerance = torch.finfo(whole.dtype).eps ** 0.5
            if not torch.allclose(whole, apart, tolerance, tolerance, equal_nan=True):
                return (
                    f"--loss {self.name} of a batch is no mean over its records (where it is a "
                    "weighted one, give it an attribute weights(targets))"
                )
        return None

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Call the user's function once on these outputs and labels."""
        try:
            self._called(outputs, labels)
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(
                f"--loss {self.name}: fails on outputs of shape {tuple(outputs.shape)} and labels "
                f"of shape {tuple(labels.shape)} ({labels.dtype}): {one_line(error)}"
                f"{self._single_only(outputs, labels)}"
            ) from error

    def _single_only(self, outputs: Tensor, labels: Tensor) -> str:
        """What to do about tensors of the user's that the loss takes in single precision alone."""
        labels = labels.float() if labels.is_floating_point() else labels
        with suppress(Exception):
            self._called(outputs.float(), labels)
            return (
                "; it does not on outputs in single precision: give what it computes with their "
                "type, as in weight.to(outputs)"
            )
        return ""

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The labels themselves, where they are real numbers."""
        if not labels.is_floating_point():
            raise AuditError(
                f"--loss {self.name}: integer labels cannot be differentiated by; a loss of real "
                "targets has a sensitivity to them, as the built-in ones have"
            )
        return labels.to(outputs.dtype)

    def _called(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A scalar, or (records,); the function gets copies, which it may write into."""
        given = outputs.clone(), targets.clone()
        with default_dtype(outputs.dtype):
            if isinstance(self.function, nn.Module):
                losses: Tensor = functional_call(self.function, self._state(outputs), given)
            else:
                losses = self.function(*given)
        if losses.shape in ((), outputs.shape[:1]):
            return losses
        raise AuditError(
            f"--loss {self.name}: returned shape {tuple(losses.shape)} for "
            f"{len(outputs)} records; return their mean, or one loss a record"
        )

    def _state(self, outputs: Tensor) -> dict[str, Tensor]:
        """A module's parameters and buffers, where the outputs are and in their precision."""
        return {
            name: tensor.to(outputs if tensor.is_floating_point() else outputs.device)
            for name, tensor in _tensors(self.function)
        }


def _tensors(function: object) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module; of another function none are known."""
    if isinstance(function, nn.Module):
        yield from function.named_parameters()
        yield from function.named_buffers()


def _other_labels(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Outputs with other labels: every class, or a real label turned over."""
    if targets.is_floating_point():
        turned = targets.clone()
        turned[:1] = 1 - turned[:1]
        return [(outputs, turned)]
    if targets.dim() != 1:
        return []
    classes = min(outputs.shape[1], _MOST_CLASSES) if outputs.dim() == 2 else 2
    labels = torch.arange(max(classes, 2), device=targets.device, dtype=targets.dtype)
    rows = outputs[labels % len(outputs)]
    waves = torch.arange(rows.numel(), device=rows.device).cos().reshape(rows.shape).to(rows)
    return [(rows + waves, labels)]


Module = nn.CrossEntropyLoss | nn.NLLLoss


class WeightedCrossEntropy(CrossEntropy):
    """``nn.CrossEntropyLoss`` without smoothing, as exact as ``CrossEntropy``."""

    def __init__(self, module: nn.CrossEntropyLoss, name: str) -> None:
        self.name = name
        self.counting = LabelWeights(module.weight, module.ignore_index)
        self.ignored = module.ignore_index

    def weights(self, targets: Tensor) -> Tensor | None:
        """What each record's labels count; None for probabilities: torch takes their mean."""
        return None if targets.is_floating_point() else self.counting.of_records(targets)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether outputs, weights and the labels that are not ignored fit each other."""
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
        """What each record's labels count; None for probabilities: torch takes their mean."""
        return None if targets.is_floating_point() else self._counting.of_records(targets)

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record as a batch of its own; 0 where it has no weight."""
        losses, weights = self._called(outputs, targets), self.weights(targets)
        if weights is None:
            return losses.reshape(len(losses), -1).mean(dim=1)
        together = losses.reshape(len(losses), -1).sum(dim=1)
        return together / torch.where(weights > 0, weights, 1).to(together)

    def _called(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(records, …), each times its weight; the module's own weights have another precision."""
        if self._counting.of_class is not None:
            self._each.weight = self._counting.of_class.to(outputs.device, outputs.dtype)
        return self._each(outputs, targets)  # type: ignore[no-any-return]

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Σ w ℓ / Σ w."""
        return Loss.of_batch(self, outputs, targets)


class WeightedBinaryCrossEntropy(BinaryCrossEntropy):
    """``nn.BCEWithLogitsLoss``, whose weights are of outputs and of positive labels."""

    def __init__(self, module: nn.BCEWithLogitsLoss, name: str) -> None:
        self.name = name
        self._weights = {"weight": module.weight, "pos_weight": module.pos_weight}

    def of_outputs(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """Of every output w (p y log(1 + e⁻ᵒ) + (1 − y) log(1 + eᵒ))."""
        weight, positive = self._of("weight", outputs), self._of("pos_weight", outputs)
        return weight * (positive * soft * softplus(-outputs) + (1 - soft) * softplus(outputs))

    def _of(self, name: str, outputs: Tensor) -> Tensor | float:
        given = self._weights[name]
        return 1.0 if given is None else given.to(outputs.device, outputs.dtype)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether outputs, labels and weights fit each other."""
        super().check(outputs, labels)
        for name, given in self._weights.items():
            if given is not None and not _fits(given.shape, outputs[:1].shape):
                raise AuditError(
                    f"--loss {self.name}: has a {name} of shape {tuple(given.shape)} for outputs "
                    f"of shape {tuple(outputs.shape)}; give one number, or one for each output of "
                    "a record"
                )


def _fits(shape: torch.Size, record: torch.Size) -> bool:
    """Whether a tensor of that shape is spread over the outputs of every record alike."""
    try:
        return bool(torch.broadcast_shapes(shape, record) == record)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False


def user_loss(
    function: Callable[[Tensor, Tensor], Tensor], name: str
) -> CustomLoss | CrossEntropy | BinaryCrossEntropy:
    """The loss that a user's function or module is."""
    if isinstance(function, nn.BCEWithLogitsLoss) and function.reduction == "mean":
        return WeightedBinaryCrossEntropy(function, name)
    if isinstance(function, Module) and function.reduction == "mean":
        if isinstance(function, nn.CrossEntropyLoss) and not function.label_smoothing:
            return WeightedCrossEntropy(function, name)
        return WeightedModule(function, name)
    return CustomLoss(function, name)
