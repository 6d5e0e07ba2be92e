"""Parts attached before a model's last fully connected layer, with a term in its loss.

The parts hang on that layer and run in its hooks, so every layer keeps its name and kind, whatever
the model's ``forward`` looks like.
"""

import copy
from abc import abstractmethod
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.models.losses import Loss
from gradaudit.models.outputs import unwrap


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
        self.threshold, self.yes_or_no = task.threshold, task.yes_or_no

    @abstractmethod
    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """Returns the added term of each record, (records,), from its columns (records, extra)."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the outputs without the appended columns."""
        return self.task.predictions(outputs[:, : -self.extra])

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the task's loss plus the weighted term, for each record."""
        losses = self.task.per_record(outputs[:, : -self.extra], targets)
        if not self.weight:
            return losses
        return losses + self.weight * self.term(outputs[:, -self.extra :], targets)

    def weights(self, targets: Tensor) -> Tensor | None:
        """Returns the task's weights, which also weigh the term."""
        return self.task.weights(targets)

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the weighted mean; with coupled records, the task's loss plus the mean term."""
        if self.task.weights(targets) is not None:
            return super().of_batch(outputs, targets)
        term = self.term(outputs[:, -self.extra :], targets).mean()
        return self.task.of_batch(outputs[:, : -self.extra], targets) + self.weight * term

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Returns the task's reason for coupling; the term couples no records."""
        return self.task.coupling(outputs[:, : -self.extra], targets)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Raise an error where the outputs without the term do not fit the labels."""
        self.task.check(outputs[:, : -self.extra], labels)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the task's real-valued labels."""
        return self.task.soft(outputs[:, : -self.extra], labels)

    @property
    def seen(self) -> Loss:
        """Returns the loss without the term, as an adversary who does not know of it has it."""
        return type(self)(self.task, self.extra, 0.0)


class ChosenColumn(PenalisedLoss):
    """Takes the column of the record's class as the term; for soft labels, their mixture."""

    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """Compute the term (records, classes) at the true classes."""
        if targets.is_floating_point():
            if targets.shape == extra.shape:
                return (targets * extra).sum(dim=1)
            second = targets.reshape(len(extra))
            return (1 - second) * extra[:, 0] + second * extra[:, 1]
        return extra.gather(1, targets.unsqueeze(1)).squeeze(1)


class SummedColumns(PenalisedLoss):
    """Takes the sum of the appended columns as the term."""

    def term(self, extra: Tensor, targets: Tensor) -> Tensor:
        """Sum the term over its extra outputs, (records, extra)."""
        return torch.sum(extra, dim=1)


class Attachment(nn.Module):
    """A part that receives the input of a fully connected layer and may replace it.

    What it adds to the model's outputs, ``extra`` columns a record, is a term of the loss that
    ``PenalisedLoss`` takes off again.

    A private one stays with its client: it is never in an update, never seen. Its parameters are
    frozen (``requires_grad=False``), so that no audit takes them for a layer; a client thaws them
    while it trains.
    """

    extra: int = 0
    private: bool = False
    whole: bool = False
    """Whether the loss takes everything that the model returns, not one tensor alone."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Maps (records, features) to the layer's new input, and (records, extra) or None."""
        raise NotImplementedError

    def draw(self, generator: torch.Generator) -> None:
        """Draw a private part's weights and secrets anew, as clients do before the first round."""


def last_linear(model: nn.Module, defense: str, layers: str = "*") -> tuple[str, nn.Linear]:
    """Returns the last fully connected layer in order of ``named_modules``, and its name.

    Raises:
        NotApplicable: there is none whose name matches the glob ``layers``.
    """
    matching = [
        (name, part)
        for name, part in model.named_modules()
        if type(part) is nn.Linear and fnmatchcase(name or "(model)", layers)
    ]
    if not matching:
        which = "" if layers == "*" else f" that matches layers={layers}"
        raise NotApplicable(
            f"{defense}: works before the last fully connected layer (nn.Linear), and the model "
            f"has none{which}"
        )
    return matching[-1]


def attached(model: nn.Module, layer: str, name: str, part: Attachment) -> nn.Module:
    """Returns a copy of the model with the part attached to a layer, as ``LAYER.NAME``."""
    model = copy.deepcopy(model)
    place = model.get_submodule(layer)
    like = next(place.parameters())
    place.add_module(name, part.to(like.device, like.dtype).train(place.training))
    place.register_forward_pre_hook(partial(_before, name))
    if part.extra:
        model.register_forward_hook(partial(_append, f"{layer}.{name}" if layer else name))
    return model


def attachments(model: nn.Module) -> list[Attachment]:
    """Returns the attachments of a model, in order of ``named_modules``."""
    return [part for part in model.modules() if isinstance(part, Attachment)]


def _before(name: str, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    part = cast("Attachment", layer.get_submodule(name))
    features = arguments[0]
    if part.extra and features.dim() != 2:
        raise AuditError(
            f"--defense {name}: the last fully connected layer gets an input of shape "
            f"{tuple(features.shape)}; one vector a record is needed"
        )
    replaced, vars(part)["appended"] = part(features)
    return (replaced, *arguments[1:])


def _append(path: str, model: nn.Module, arguments: tuple[Any, ...], output: Any) -> Tensor:
    part = cast("Attachment", model.get_submodule(path))
    columns = vars(part).pop("appended", None)
    if part.whole and not isinstance(output, Tensor):
        raise AuditError(
            f"--defense {path.rpartition('.')[2]}: adds a column to a model's one tensor of "
            f"outputs, and a loss of your own takes whole the {type(output).__name__} that this "
            "model returns; return one tensor, or take another defense"
        )
    outputs = unwrap(output)
    if columns is None:
        raise AuditError(
            f"the model did not run {path.rpartition('.')[0]}, its last fully connected "
            "layer, on these records"
        )
    return torch.cat([outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None], columns], 1)


def private_parts(model: nn.Module) -> list[Attachment]:
    """Returns the private parts of a model, in order of ``named_modules``."""
    return [part for part in attachments(model) if part.private]


def private_names(model: nn.Module) -> tuple[str, ...]:
    """Names the entries of the model's ``state_dict`` that a client never shares."""
    return tuple(
        f"{module_name}.{name}" if module_name else name
        for module_name, module in model.named_modules()
        if isinstance(module, Attachment) and module.private
        for name in module.state_dict()
    )


def uniform(bound: float, *shape: int, generator: torch.Generator) -> Tensor:
    """Draws uniformly from ±bound, in float64 so that every dtype gets the same numbers."""
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) * bound
