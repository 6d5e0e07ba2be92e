"""A loss from the user's file: a function or a module, reduced or not, weighted or not.

A function that reduces is taken at its word for a batch. What its records' own losses are is found
by calling it on one record at a time; whether the batch's loss is their (weighted) mean is tried.
It gets whole what the model returns.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradaudit.core.text import listed
from gradaudit.errors import AuditError, one_line
from gradaudit.models.losses import Loss, default_dtype, mean_of
from gradaudit.models.outputs import OutputBranch, packed_outputs, unwrap

_LOSSES = tuple(kind for name, kind in vars(nn).items() if name.endswith("Loss"))
"""Losses of torch that take a prediction and its targets."""
_MOST_CLASSES = 64
"""Largest number of classes on which a loss is tried."""


class CustomLoss(Loss):
    """``f(outputs, targets)``, which returns a batch's loss, or each record's loss to average.

    Where ``f`` has an attribute ``weights``, ``f.weights(targets)`` gives what each record counts,
    (records,), and the loss of a batch is Σ w ℓ / Σ w.

    ``f`` gets all that the model returns; torch's own losses get the prediction alone. The targets
    are None where there are no labels.
    """

    def __init__(self, function: Callable[..., Tensor], name: str) -> None:
        self.function = function
        self.name = name
        self.takes_whole = not isinstance(function, _LOSSES)
        self._layouts: dict[int, OutputBranch] = {}

    def taken(self, returned: Any) -> Tensor:
        """Packs structured outputs side by side, (records, positions); a tensor stays as it is."""
        if isinstance(returned, Tensor):
            return returned
        if not self.takes_whole:
            return unwrap(returned)
        outputs, layout = packed_outputs(returned)
        self._layouts[outputs.shape[1]] = layout
        return outputs

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the prediction among structured outputs."""
        layout = self._layout(outputs)
        return outputs if layout is None else layout.prediction().of(outputs)

    def _layout(self, outputs: Tensor) -> OutputBranch | None:
        return self._layouts.get(outputs.shape[1]) if outputs.dim() == 2 else None

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns each record's loss; a function that reduces is called record by record."""
        losses = self._called(outputs, targets)
        if losses.dim():
            return losses
        if len(outputs) == 1:
            return losses[None]
        try:
            return torch.func.vmap(lambda o, t: self._called(o[None], t[None]))(outputs, targets)
        except RuntimeError:  # as of a function that looks at values: vmap has none
            return torch.cat(
                [self.per_record(o[None], t[None]) for o, t in zip(outputs, targets, strict=True)]
            )

    def weights(self, targets: Tensor) -> Tensor | None:
        """Returns the weights from ``f.weights``, if there is one.

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
        """Returns the function's loss of a batch where it reduces, else the (weighted) mean."""
        losses = self._called(outputs, targets)
        return mean_of(losses, self.weights(targets)) if losses.dim() else losses

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Returns how the loss couples these records, tried with other labels too; None if not."""
        reduces = self._called(outputs, targets).dim() == 0
        for some, labels in ((outputs, targets), *_other_labels(outputs, targets)):
            try:
                whole = self._called(some, labels)
            except Exception:  # labels that the function does not take
                continue
            try:
                apart = self._of_each(some, labels)
                apart = mean_of(apart, self.weights(labels)) if reduces else apart
            except AuditError:
                raise
            except Exception as error:
                return f"--loss {self.name} cannot be had of one record alone: {one_line(error)}"
            try:
                slopes = [
                    _slope(loss, some, labels) for loss in (self.of_batch, self._mean_of_each)
                ]
            except Exception as error:
                return f"--loss {self.name} cannot be differentiated: {one_line(error)}"
            whole, apart = (
                torch.cat([value.flatten(), slope.flatten()])
                for value, slope in zip((whole, apart), slopes, strict=True)
            )
            tolerance = torch.finfo(whole.dtype).eps ** 0.5
            if not torch.allclose(whole, apart, tolerance, tolerance, equal_nan=True):
                if not reduces:
                    return (
                        f"--loss {self.name} is a function of several records: a record's loss "
                        "alone is another than in a batch"
                    )
                return (
                    f"--loss {self.name} is a function of several records: of a batch it is no "
                    "mean over its records (where it is a weighted one, give it an attribute "
                    "weights(targets))"
                )
        return None

    def _of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Computes the loss of each record alone, (records,)."""
        if self._called(outputs, targets).dim() == 0:
            return self.per_record(outputs, targets)
        each = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
        return torch.cat([self._called(*record).reshape(1) for record in each])

    def _mean_of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mean_of(self._of_each(outputs, targets), self.weights(targets))

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Calls the user's function once on these outputs and labels, to check it."""
        try:
            self._called(outputs, labels)
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(
                f"--loss {self.name}: loss(outputs, labels) fails on outputs "
                f"{self._shapes(outputs)} and labels {_shape(labels)}: {one_line(error)}"
                f"{self._single_only(outputs, labels)}"
            ) from error

    def _shapes(self, outputs: Tensor) -> str:
        layout = self._layout(outputs)
        if layout is None:
            return f"of shape {tuple(outputs.shape)}"
        named = [f"{leaf.name} {(len(outputs), *leaf.shape)}" for leaf in layout.leaves()]
        return f"of shapes {listed(named)}"

    def _single_only(self, outputs: Tensor, labels: Tensor) -> str:
        """Advises on the user's tensors that force the loss into single precision."""
        labels = labels.float() if labels.is_floating_point() else labels
        with suppress(Exception):
            self._called(outputs.float(), labels)
            return (
                "; it does not on outputs in single precision: give what it computes with their "
                "type, as in weight.to(outputs)"
            )
        return ""

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the labels themselves, where they are real numbers."""
        if is_unlabelled(labels):
            raise AuditError(f"--loss {self.name}: there are no labels to differentiate by")
        if not labels.is_floating_point():
            raise AuditError(
                f"--loss {self.name}: integer labels cannot be differentiated by; a loss of real "
                "targets has a sensitivity to them, as the built-in ones have"
            )
        return labels.to(outputs.dtype)

    def _called(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Calls the function on copies, which it may write into; a scalar, or (records,)."""
        given = self._arguments(outputs.clone(), targets.clone())
        with default_dtype(outputs.dtype):
            if isinstance(self.function, nn.Module):
                losses: Tensor = functional_call(self.function, self._state(outputs), given)
            else:
                losses = self.function(*given)
        if not isinstance(losses, Tensor):
            raise AuditError(
                f"--loss {self.name}: returned {type(losses).__name__}; return a tensor, the mean "
                "of the records' losses or one loss a record"
            )
        if losses.shape in ((), outputs.shape[:1]):
            return losses
        raise AuditError(
            f"--loss {self.name}: returned shape {tuple(losses.shape)} for "
            f"{len(outputs)} records; return their mean, or one loss a record"
        )

    def _arguments(self, outputs: Tensor, targets: Tensor) -> tuple[Any, Tensor | None]:
        """Returns the arguments that the function is called with."""
        layout = self._layout(outputs)
        whole = outputs if layout is None else layout.of(outputs)
        return whole, None if is_unlabelled(targets) else targets

    def _state(self, outputs: Tensor) -> dict[str, Tensor]:
        """Returns a module's parameters and buffers in the outputs' device and precision."""
        return {
            name: tensor.to(outputs if tensor.is_floating_point() else outputs.device)
            for name, tensor in _tensors(self.function)
        }


def is_unlabelled(labels: Tensor) -> bool:
    """Whether records have no labels: (records, 0)."""
    return labels.dim() == 2 and labels.shape[1] == 0


def _shape(labels: Tensor) -> str:
    if is_unlabelled(labels):
        return "None"
    return f"of shape {tuple(labels.shape)} ({labels.dtype})"


def _slope(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the gradient of a batch's loss by its outputs."""
    with torch.enable_grad():
        moving = outputs.detach().requires_grad_()
        whole = loss(moving, labels)
        (slope,) = torch.autograd.grad(whole, moving, allow_unused=True, materialize_grads=True)
    return slope


def _tensors(function: object) -> Iterator[tuple[str, Tensor]]:
    """Returns parameters and buffers of a module; nothing for other functions."""
    if isinstance(function, nn.Module):
        yield from function.named_parameters()
        yield from function.named_buffers()


def _other_labels(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Yields outputs with other labels: every class, or negated real labels."""
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
