"""Per-sample gradients as one vector a record, differentiable in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target, shared_parameters

_CLOSE = 1e-6


@dataclass(frozen=True)
class RecordGradients:
    """The gradient that a record contributes to a DP-SGD step.

    It goes over every trainable parameter but those of hidden layers, biases too: that is what
    DP-SGD clips as one vector.

    Attributes:
        view: the model as a function.
        names: the parameters, in order.
        shape: of one record's inputs.
        batched: whether all records go through vmap at once; else one after the other.
    """

    view: FunctionalModel
    names: tuple[str, ...]
    shape: torch.Size
    batched: bool

    @classmethod
    def of(
        cls, target: Target, inputs: Tensor, labels: Tensor, hidden: Sequence[str] = ()
    ) -> RecordGradients:
        """Gradients of all layers but the hidden ones, in float64.

        They go through vmap where it gives the same gradients of the first two records as a loop,
        and the same slopes of them: some of its rules for differentiating twice are wrong (of
        layer norms in torch 2.13).

        Raises:
            NotApplicable: the model couples the records of a batch.
            AuditError: the model cannot be run on the records.
        """
        view = FunctionalModel.of(target, dtype=torch.float64)
        records, targets = view.cast(inputs[:2]), view.cast(labels[:2])
        view.check(records, targets)
        if reason := view.coupling(records, targets):
            raise NotApplicable(
                f"records have no gradients of their own to clip: {reason}; use --model-mode eval"
            )
        if view.stochastic(records):
            raise NotApplicable(
                "the model draws random numbers (dropout in training mode), which hide a record's "
                "gradient; use --model-mode eval"
            )
        names = shared_parameters(target.model, hidden)
        looped = cls(view, names, inputs.shape[1:], batched=False)
        batched = replace(looped, batched=True)
        return batched if _agree(batched, looped, records.flatten(1), targets) else looped

    @property
    def device(self) -> torch.device:
        """Where gradients are computed."""
        return self.view.device

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of each parameter, in the order of a gradient."""
        return {name: self.view.parameters[name].numel() for name in self.names}

    @property
    def elements(self) -> int:
        """Length of a gradient."""
        return sum(self.sizes.values())

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Gradients (records, elements) of flattened inputs (records, positions) and labels."""
        records = self.view.cast(inputs).view(-1, *self.shape)
        targets = self.view.cast(labels)
        chosen = {name: self.view.parameters[name] for name in self.names}
        gradient = torch.func.grad(self.view.record_loss)
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            if self.batched:
                batch = torch.func.vmap(gradient, in_dims=(None, 0, 0))(chosen, records, targets)
                return torch.cat([batch[name].flatten(1) for name in self.names], dim=1)
            rows = [gradient(chosen, x, y) for x, y in zip(records, targets, strict=True)]
        return torch.stack(
            [torch.cat([row[name].flatten() for name in self.names]) for row in rows]
        )


def _agree(
    batched: RecordGradients, looped: RecordGradients, inputs: Tensor, labels: Tensor
) -> bool:
    """Whether both ways give the same gradients and slopes."""
    expected = _gradients_and_slope(looped, inputs, labels)
    try:
        found = _gradients_and_slope(batched, inputs, labels)
    except Exception:  # whatever a model does that vmap cannot follow
        return False
    close = (
        torch.allclose(x, y, rtol=_CLOSE, atol=_CLOSE * float(y.abs().max()), equal_nan=True)
        for x, y in zip(found, expected, strict=True)
    )
    return all(close)


def _gradients_and_slope(
    gradients: RecordGradients, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = inputs.clone().requires_grad_()
    found = gradients(leaf, labels)
    (slope,) = torch.autograd.grad(found.square().sum(), leaf)
    return found.detach(), slope
