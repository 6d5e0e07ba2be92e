"""The input of one fully connected layer, and the record behind it (Fan et al. 2020, section 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradaudit.attacks.layerwise.features import Inversion, Reader, layer_input, readers
from gradaudit.attacks.layerwise.levenberg_marquardt import minimise
from gradaudit.attacks.layerwise.logits import fully_connected_input
from gradaudit.attacks.reconstruction.view import AttackerView
from gradaudit.errors import NotApplicable, UsageError

_ROUNDING = 1e-24


@dataclass(frozen=True)
class SingleLayer:
    """Gradients of a fully connected layer that is used for one vector.

    Attributes:
        name: of the layer.
        weight: W̄, gradient of its weight, (rows, inputs).
        bias: B̄, gradient of its bias, (rows,).
        of_record: whether its input is the record itself.
    """

    name: str
    weight: Tensor
    bias: Tensor
    of_record: bool

    @classmethod
    def of(cls, view: AttackerView, wanted: str | None = None) -> SingleLayer:
        """A layer of a model: the one that is wanted, else the first that reads the record.

        Where none reads the record it is the first that can be solved.

        Args:
            view: of one record, in float64.
            wanted: name of a layer.

        Raises:
            UsageError: the layer that is wanted is no fully connected layer.
            NotApplicable: there is none that can be solved; the message says why.
        """
        generator = torch.Generator().manual_seed(0)
        record = torch.rand(1, *view.shape, generator=generator, dtype=torch.float64)
        candidates = readers(view.model, view.model.cast(record))
        if wanted is not None:
            candidates = [reader for reader in candidates if reader.layer == wanted]
            if not candidates:
                raise UsageError(f"layer={wanted}: no fully connected layer of the model has it")
        reasons = {reader.layer: _unsolvable(reader, view) for reader in candidates}
        usable = [reader for reader in candidates if reasons[reader.layer] is None]
        if not usable:
            raise NotApplicable(_refusal(reasons))
        chosen = next((reader for reader in usable if reader.of_record), usable[0])
        update, name = view.update, chosen.layer
        return cls(name, update[f"{name}.weight"], update[f"{name}.bias"], chosen.of_record)

    @cached_property
    def best(self) -> int:
        """The row with the largest bias gradient."""
        return int(self.bias.abs().argmax())

    @property
    def kappa(self) -> float | None:
        """κ(B̄) over all rows; None where a row's bias gradient is zero."""
        sizes = self.bias.abs()
        kappa = float(sizes.max() / sizes.min())
        return kappa if math.isfinite(kappa) else None

    def least_squares(self) -> Tensor:
        """(inputs,) x̂ = Σ b̄_k w̄_k / Σ b̄_k²."""
        return fully_connected_input(self.weight, self.bias)

    def best_row(self) -> Tensor:
        """(inputs,) w̄_k / b̄_k of the row with the largest |b̄_k|."""
        return self.weight[self.best] / self.bias[self.best]

    def misfits(self, inputs: Tensor) -> list[float]:
        """‖W̄ − B̄ xᵀ‖² / ‖W̄‖² of each x in (candidates, inputs); rounding errors count as none."""
        left = self.weight - self.bias[:, None] * inputs[:, None, :]
        length = self.weight.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
        misfits = left.square().sum(dim=(1, 2)) / length
        return [misfit if misfit > _ROUNDING else 0.0 for misfit in misfits.tolist()]


@dataclass(frozen=True)
class Inverse:
    """A record with a layer's input.

    Attributes:
        record: in its shape.
        residual: ‖Ψ(x) − o‖ / ‖o‖.
        determined: condition 1, whether Ψ's Jacobian at the record has full column rank; None where
            it is too large to tell.
    """

    record: Tensor
    residual: float
    determined: bool | None


def inverted(view: AttackerView, layer: str, wanted: Tensor, begin: Tensor, steps: int) -> Inverse:
    """The record that a layer reads as ``wanted``, by least squares from a starting record.

    Args:
        view: of one record, in float64.
        layer: its name.
        wanted: o, (inputs of the layer,).
        begin: a record in its shape.
        steps: the most of the search.
    """
    problem = Inversion(layer_input(view.model, layer), wanted, view.shape)
    start = begin.flatten().cpu().numpy()
    minimum = minimise(problem, start, steps=steps, inner=500)
    rank = problem.rank(minimum.z)
    record = torch.from_numpy(minimum.z).to(wanted).reshape(view.shape)
    return Inverse(record, minimum.residual, None if rank is None else rank == len(minimum.z))


def _unsolvable(reader: Reader, view: AttackerView) -> str | None:
    name = reader.layer
    if not reader.bias:
        return "has no bias, whose gradient the weight's is divided by"
    if reader.times != 1:
        return f"is applied to {reader.times} vectors of a record, whose gradients add up"
    if not {f"{name}.weight", f"{name}.bias"} <= view.update.keys():
        return "did not share its update, of weight and bias"
    if not bool(view.update[f"{name}.bias"].any()):
        return "has a bias gradient of zero"
    return None


def _refusal(reasons: dict[str, str | None]) -> str:
    if not reasons:
        return "the closed form is for fully connected layers; the model has none"
    listed = "; ".join(f"{layer} {reason}" for layer, reason in reasons.items())
    return f"the closed form can be used on no fully connected layer: {listed}"
