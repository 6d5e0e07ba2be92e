"""A loss from the user's file: a function or a module, reducing or not, weighted or not.

A function that reduces is taken at its word for a batch. What its records' own losses are is found
by calling it on one record at a time; whether the batch's loss is their (weighted) mean is tried.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradaudit.errors import AuditError, one_line
from gradaudit.models.loss import Loss, weighted_mean

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
        named = getattr(self.function, "weights", None)
        if not callable(named):
            return None
        found = named(targets.clone())
        if not isinstance(found, Tensor) or found.shape != targets.shape[:1] or (found < 0).any():
            raise AuditError(
                f"--loss {self.name}: weights(targets) must give one weight a record, "
                f"({len(targets)},), none negative"
            )
        return found

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the function makes of a batch where it reduces, else the (weighted) mean."""
        losses = self._called(outputs, targets)
        if losses.dim() == 0:
            return losses
        weights = self.weights(targets)
        return losses.mean() if weights is None else weighted_mean(losses, weights)

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
            ) from error

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
        losses = self.function(outputs.clone(), targets.clone())
        if losses.shape in ((), outputs.shape[:1]):
            return losses
        raise AuditError(
            f"--loss {self.name}: returned shape {tuple(losses.shape)} for "
            f"{len(outputs)} records; return their mean, or one loss a record"
        )


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
