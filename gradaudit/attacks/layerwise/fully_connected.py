"""Computes the input of one fully connected layer from its gradient, with and without noise.

Fan et al. 2020, section 2. Noise: conditions (2) and bound (3) of theorem 2.2. B_I is the diagonal
matrix of the bias gradients of the rows I of a fully connected layer, each repeated for every
input, W_I the weight gradients and E what was added. Where r = ‖B⁻¹E_B‖₂ ≥ 1 the *bound* is void;
the attack is not: least squares weighs rows by b̄², so that rows in which noise drowns the bias
gradient, which make r large, hardly count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from numpy.typing import ArrayLike
from pydantic import JsonValue
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.ranks.observe import watching

_ROUNDING = 1e-24


@dataclass(frozen=True)
class FullyConnectedReader:
    """A fully connected layer and the input that it reads of one record.

    Attributes:
        of_record: whether it reads the record itself.
        times: how many vectors it is applied to for one record.
    """

    layer: str
    bias: bool
    of_record: bool
    times: int


def readers(model: FunctionalModel, records: Tensor) -> list[FullyConnectedReader]:
    """The fully connected layers of a model, in the order in which they first run.

    Args:
        model: a functional copy.
        records: (records, …), any values that differ from each other; two where a module
            normalises records by their batch.
    """
    layers = {name: m for name, m in model.module.named_modules() if type(m) is nn.Linear}
    seen: dict[str, list[Tensor]] = {}

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen.setdefault(name, []).append(inputs.detach())
        return output

    with torch.no_grad(), watching(layers, look):
        model.outputs({}, records)
    return [
        FullyConnectedReader(
            layer=name,
            bias=layers[name].bias is not None,
            of_record=torch.equal(reads[0].flatten(), records.flatten()),
            times=sum(read.numel() for read in reads) // layers[name].in_features // len(records),
        )
        for name, reads in seen.items()
    ]


Region = Literal["red", "white", "green"]


@dataclass(frozen=True)
class SingleLayer:
    """Gradients of a fully connected layer that is used for one vector.

    Attributes:
        weight: W̄, gradient of its weight, (rows, inputs), the rows of all rounds where the layer
            reads the record itself, which is the same in each.
        bias: B̄, gradient of its bias, (rows,).
        of_record: whether its input is the record itself.
    """

    name: str
    weight: Tensor
    bias: Tensor
    of_record: bool

    @classmethod
    def of(cls, view: AttackerView, wanted: str | None = None) -> SingleLayer:
        """Choose a layer of a model: the named one, else the first that reads the record.

        Where none reads the record it is the first that can be solved.

        Args:
            view: of one record, in float64.
            wanted: name of a layer.

        Raises:
            UsageError: the layer that is wanted is no fully connected layer.
            NotApplicable: there is none that can be solved; the message says why.
        """
        draws = torch_rng(0, "closed form", "record")
        record = torch.rand(1, *view.shape, generator=draws, dtype=torch.float64)
        candidates = readers(view.model, view.model.cast(record))
        if wanted is not None:
            candidates = [reader for reader in candidates if reader.layer == wanted]
            if not candidates:
                raise UsageError(f"layer={wanted}: no fully connected layer of the model has it")
        reasons = {reader.layer: _unsolvable(reader, view) for reader in candidates}
        usable = [reader for reader in candidates if reasons[reader.layer] is None]
        if not reasons:
            raise NotApplicable("the closed form is for fully connected layers; the model has none")
        if not usable:
            listed = "; ".join(f"{layer} {reason}" for layer, reason in reasons.items())
            raise NotApplicable(
                f"the closed form can be used on no fully connected layer: {listed}"
            )
        chosen = next((reader for reader in usable if reader.of_record), usable[0])
        name, rounds = chosen.layer, view.rounds if chosen.of_record else view.rounds[:1]
        weight, bias = (
            torch.cat([one.update[f"{name}.{part}"] for one in rounds])
            for part in ("weight", "bias")
        )
        return cls(name, weight, bias, chosen.of_record)

    def misfits(self, inputs: Tensor) -> list[float]:
        """Compute ‖W̄ − B̄ xᵀ‖² / ‖W̄‖² of each x in (candidates, inputs); rounding counts as 0."""
        left = self.weight - self.bias[:, None] * inputs[:, None, :]
        length = self.weight.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
        misfits = left.square().sum(dim=(1, 2)) / length
        return [misfit if misfit > _ROUNDING else 0.0 for misfit in misfits.tolist()]


def _unsolvable(reader: FullyConnectedReader, view: AttackerView) -> str | None:
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


@dataclass(frozen=True)
class SolvabilityConditions:
    """Theorem 2.2 for some rows of a layer.

    Attributes:
        rows: how many.
        kappa: κ(B_I) = max |b| / min |b|.
        r: ‖B_I⁻¹ E_B‖₂ = max |e / b|; condition (2) is r < 1.
        bound: the right side of (3), on the relative error of the rows' solutions together and of
            their least squares; infinite where r ≥ 1.
        ratio: ‖B‖_F / ‖E_B‖_F.
    """

    rows: int
    kappa: float
    r: float
    bound: float
    ratio: float

    @property
    def region(self) -> Region:
        """The paper's label: red from 10 on, green below 1 (figure 5)."""
        return "red" if self.ratio >= 10 else "white" if self.ratio >= 1 else "green"

    def described(self) -> dict[str, JsonValue]:
        """Give the numbers for a report; None where a number is not finite."""
        numbers = {"kappa": self.kappa, "r": self.r, "bound": self.bound, "ratio": self.ratio}
        finite: dict[str, JsonValue] = {
            name: value if math.isfinite(value) else None for name, value in numbers.items()
        }
        return finite | {"rows": self.rows, "bound_holds": self.r < 1, "region": self.region}


def inversion_bound(
    weight: Tensor | ArrayLike,
    bias: Tensor | ArrayLike,
    weight_noise: Tensor | ArrayLike,
    bias_noise: Tensor | ArrayLike,
    rows: Sequence[int] | None = None,
) -> SolvabilityConditions:
    """Bound the error of ``invert_linear`` under known noise.

    ‖x̂ − x‖/‖x‖ ≤ κ(B)/(1 − r) (‖E_B‖₂/‖B‖₂ + ‖E_W‖_F/‖W‖_F), r = ‖B⁻¹E_B‖₂ < 1, for the diagonal
    matrix B of the rows' bias gradients (Fan et al. 2020, theorem 2.2, bound 3).

    >>> weight, bias = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.tensor([1.0, 2.0])
    >>> noisy = inversion_bound(weight, bias, 0.01 * torch.ones(2, 2), torch.tensor([0.1, 0.0]))
    >>> round(noisy.bound, 4), round(noisy.kappa, 1), round(noisy.r, 1), noisy.region
    (0.12, 2.0, 0.1, 'red')

    Args:
        weight: W, the noiseless weight gradient, (rows, inputs).
        bias: B, the noiseless bias gradient, (rows,).
        weight_noise: E_W, (rows, inputs).
        bias_noise: E_B, (rows,).
        rows: those that are solved; all by default.
    """
    weight, bias = torch.as_tensor(weight), torch.as_tensor(bias)
    weight_noise, bias_noise = torch.as_tensor(weight_noise), torch.as_tensor(bias_noise)
    if rows is not None:
        chosen = list(rows)
        weight, bias = weight[chosen], bias[chosen]
        weight_noise, bias_noise = weight_noise[chosen], bias_noise[chosen]
    sizes, noise = bias.double().abs(), bias_noise.double().abs()
    kappa = _quotient(float(sizes.max()), float(sizes.min()))
    r = max(map(_quotient, noise.tolist(), sizes.tolist()))
    relative = _quotient(float(noise.max()), float(sizes.max()))
    relative += _quotient(float(weight_noise.double().norm()), float(weight.double().norm()))
    bound = kappa * relative / (1 - r) if r < 1 else math.inf
    ratio = _quotient(float(sizes.norm()), float(noise.norm()))
    return SolvabilityConditions(len(sizes), kappa, r, bound, ratio)


def under_noise(
    clean: Mapping[str, Tensor], observed: Mapping[str, Tensor], layer: str
) -> dict[str, JsonValue]:
    """Conditions for all rows and for the best row alone, where the noiseless update is known.

    Only an audit knows it, the attacker does not.

    Args:
        clean: the update before a defense, by parameter.
        observed: the update that was shared.
        layer: a fully connected layer with bias.
    """
    weight, bias = clean[f"{layer}.weight"].double(), clean[f"{layer}.bias"].double()
    e_w = observed[f"{layer}.weight"].double() - weight
    e_b = observed[f"{layer}.bias"].double() - bias
    best = int((bias + e_b).abs().argmax())
    bound = least_squares_bound(weight, bias, e_w, e_b)
    return {
        "all_rows": inversion_bound(weight, bias, e_w, e_b).described(),
        "best_row": inversion_bound(weight, bias, e_w, e_b, [best]).described(),
        "least_squares_bound": bound if math.isfinite(bound) else None,
    }


def least_squares_bound(
    weight: Tensor, bias: Tensor, weight_noise: Tensor, bias_noise: Tensor
) -> float:
    """Bound the relative error of least squares over all rows (our own bound).

    With ρ = ‖E_B‖_F/‖B‖_F and ω = ‖E_W‖_F/‖W‖_F it is (ρ + ω)/(1 − ρ), from x̂ − x = Σ b̄ (E_W −
    e x)/Σ b̄² and ‖b̄‖ ≥ (1 − ρ)‖b‖; it needs ρ < 1, not r < 1, and is infinite otherwise.
    """
    rho = _quotient(float(bias_noise.double().norm()), float(bias.double().norm()))
    omega = _quotient(float(weight_noise.double().norm()), float(weight.double().norm()))
    return (rho + omega) / (1 - rho) if rho < 1 else math.inf


def _quotient(above: float, below: float) -> float:
    if above == 0:
        return 0.0
    return above / below if below else math.inf
