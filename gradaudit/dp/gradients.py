"""Per-sample gradients as one vector a record, differentiable in the record."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.target import Layer, Target, layers_of


@dataclass(frozen=True)
class RecordGradients:
    """The gradient that a record contributes to a DP-SGD step.

    It goes over every trainable parameter of the shown layers, biases too: that is what DP-SGD
    clips as one vector.

    Attributes:
        view: the model as a function.
        names: the parameters, in order.
        shape: of one record's inputs.
        batched: whether vmap can follow the model; else it is called record by record.
    """

    view: FunctionalModel
    names: tuple[str, ...]
    shape: torch.Size
    batched: bool

    @classmethod
    def of(
        cls, target: Target, layers: Sequence[Layer], inputs: Tensor, labels: Tensor
    ) -> "RecordGradients":
        """Gradients of these layers in float64, tried on the first two records.

        Raises:
            NotApplicable: the model couples the records of a batch.
            AuditError: the model cannot be run on the records.
        """
        view = FunctionalModel.of(target, dtype=torch.float64)
        records, targets = view.cast(inputs[:2]), view.cast(labels[:2])
        view.check(records, targets)
        if reason := view.coupling(records):
            raise NotApplicable(
                f"records have no gradients of their own to clip: {reason}; use --model-mode eval"
            )
        if view.stochastic(records):
            raise NotApplicable(
                "the model draws random numbers (dropout in training mode), which hide a record's "
                "gradient; use --model-mode eval"
            )
        shown = {layer.name for layer in layers}
        names = tuple(
            name
            for layer in layers_of(target.model, with_bias=True)
            if layer.name in shown
            for name in layer.parameter_names
        )
        found = cls(view, names, inputs.shape[1:], batched=True)
        try:
            found(records.flatten(1), targets)
        except (RuntimeError, NotImplementedError):  # what vmap cannot follow
            return cls(view, names, inputs.shape[1:], batched=False)
        return found

    @property
    def device(self) -> torch.device:
        """Where gradients are computed."""
        return self.view.device

    @property
    def elements(self) -> int:
        """Length of a gradient."""
        return sum(self.view.parameters[name].numel() for name in self.names)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Gradients (records, elements) of flattened inputs (records, positions) and labels."""
        records = self.view.cast(inputs).view(-1, *self.shape)
        targets = self.view.cast(labels)
        chosen = {name: self.view.parameters[name] for name in self.names}
        each = torch.func.grad(self.view.record_loss)
        if self.batched:
            found = torch.func.vmap(each, in_dims=(None, 0, 0))(chosen, records, targets)
            return torch.cat([found[name].flatten(1) for name in self.names], dim=1)
        rows = [each(chosen, x, y) for x, y in zip(records, targets, strict=True)]
        return torch.stack(
            [torch.cat([row[name].flatten() for name in self.names]) for row in rows]
        )
