"""The closed form: a fully connected layer's input from the gradients of its weight and bias.

The record behind what a layer reads: Ψ(x) = o by least squares, and whether o determines x.

Fan et al. 2020, theorem 2.1, with Ψ the layers before: the record is Ψ⁻¹(o), which is determined
near the record where Ψ's Jacobian has full column rank (condition 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import isfinite
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.layerwise.fully_connected import SingleLayer, readers
from gradaudit.attacks.layerwise.layer_chain import invert_linear
from gradaudit.attacks.layerwise.recursion import starting_record
from gradaudit.attacks.layerwise.setting import of_one_record
from gradaudit.attacks.layerwise.systems import LeastSquaresMinimum, Vector, float64, minimise
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
)
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.module_kinds import CONVOLUTIONS
from gradaudit.ranks.observe import watching

JACOBIAN_ELEMENTS = 20_000_000
"""The largest Jacobian whose rank is taken."""
_FEW, _TOGETHER = 1024, 64
"""Unknowns up to which a Jacobian is made as a matrix, and its columns at a time."""
_FULL = 1e-10
"""The least eigenvalue of JᵀJ over the largest that rounding cannot have made."""
_LEAST_OPERATIONS = 1e7
"""Operations that a product costs at least, as calls take all the time on the smallest models."""
_PASSES_A_PRODUCT = 4
"""Forward passes that a product and one with the transpose take together, about."""
_PRODUCTS_A_STEP = 16
"""Products that a step usually takes, about a call each: LeNet at 32×32 and 64×64 and AlexNet took
0.7, 1.7 and 1.7 times what this expects."""
_ALIKE = 1e-9
"""Relative distance of two solutions for a layer's input that rounding alone can make."""
_LATER = "the layer's input; the record behind it is determined where condition 1 holds"
_UNDETERMINED = "the layer's input; the record behind it is not determined (condition 1 fails)"
_KNOWN: WeakKeyDictionary[nn.Module, dict[torch.Size, float | None]] = WeakKeyDictionary()
"""Operations of two products of the search, by the shape of a record, where they were counted."""


def layer_input(model: FunctionalModel, layer: str) -> Callable[[Tensor], Tensor]:
    """Compute Ψ, a layer's flat input for a record (1, …)."""
    module = model.module.get_submodule(layer)

    def read(record: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def look(_: str, inputs: Tensor, output: Tensor) -> Tensor:
            seen.append(inputs)
            return output

        with watching({layer: module}, look):
            model.outputs({}, record)
        return seen[0].flatten()

    return read


@dataclass(frozen=True)
class Inversion:
    """The least squares problem Ψ(x) = o in the flat record x.

    Attributes:
        read: Ψ.
        wanted: o, (inputs of the layer,).
        shape: of a record.
    """

    read: Callable[[Tensor], Tensor]
    wanted: Tensor
    shape: tuple[int, ...]

    @cached_property
    def scale(self) -> float:
        """The length ‖o‖."""
        return float(self.wanted.norm()) or 1.0

    def residuals(self, z: Vector) -> Vector:
        """Compute Ψ(x) − o."""
        with torch.no_grad():
            return float64(self.read(self._record(z)) - self.wanted)

    def jacobian(self, z: Vector) -> LinearOperator:
        """The Jacobian of Ψ at x, from two tapes that are recorded once.

        The first gives Jᵀu; it is linear in u, so that the tape of Jᵀu for any u gives J v. Of few
        unknowns the matrix itself is made so, many columns at a time.
        """
        shape = (len(self.wanted), len(z))
        record = self._record(z).requires_grad_()
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            read = self.read(record)
            if not read.requires_grad:
                return aslinearoperator(csr_array(shape))
            any_left = torch.zeros_like(read, requires_grad=True)
            (pulled,) = torch.autograd.grad(read, record, any_left, create_graph=True)
        if len(z) <= _FEW:
            along = torch.split(torch.eye(len(z)).to(record), _TOGETHER)
            with suppress(RuntimeError):  # as of sparse tensors, which go by one direction alone
                columns = [
                    torch.autograd.grad(
                        pulled,
                        any_left,
                        steps.reshape(-1, *record.shape),
                        retain_graph=True,
                        is_grads_batched=True,
                    )[0]
                    for steps in along
                ]
                return aslinearoperator(float64(torch.cat(columns)).T)

        def apply(step: Vector) -> Vector:
            pushed = torch.autograd.grad(pulled, any_left, self._record(step), retain_graph=True)
            return float64(pushed[0])

        def transposed(left: Vector) -> Vector:
            given = torch.from_numpy(left.ravel()).to(read)
            return float64(torch.autograd.grad(read, record, given, retain_graph=True)[0].flatten())

        return LinearOperator(shape, matvec=apply, rmatvec=transposed, dtype="float64")

    def determined(self, z: Vector) -> bool | None:
        """Whether Ψ's Jacobian at x has full column rank; None where it is too large to compute."""
        if len(self.wanted) < len(z):
            return False
        if math.prod(self.shape) * len(self.wanted) > JACOBIAN_ELEMENTS:
            return None
        # The Jacobian, (inputs of the layer, elements of the record).
        try:
            jacobian: Tensor = torch.func.jacrev(self.read, chunk_size=64)(self._record(z))
        except RuntimeError:  # as of sparse tensors, which go by one direction alone
            jacobian = torch.from_numpy(self.jacobian(z) @ np.eye(len(z)))
        return full_column_rank(jacobian.reshape(len(self.wanted), -1))

    def _record(self, z: Vector) -> Tensor:
        return torch.from_numpy(z.ravel()).to(self.wanted).reshape(1, *self.shape)


def full_column_rank(matrix: Tensor) -> bool:
    """Whether the columns of (rows, columns) are independent, to rounding.

    A Cholesky factor of MᵀM − ε I shows that they are; else it costs the singular values.
    """
    gram = matrix.mT @ matrix
    size = float(gram.diagonal().max()) or 1.0
    shift = _FULL * size * torch.eye(len(gram)).to(gram)
    if not int(torch.linalg.cholesky_ex(gram - shift).info):
        return True
    return int(torch.linalg.matrix_rank(matrix)) == matrix.shape[1]


def operations_a_product(model: FunctionalModel, layer: str, record: Tensor) -> float:
    """Estimate the floating-point operations of two products with Ψ's Jacobian.

    Counted are the products of fully connected and convolutional layers up to ``layer``.

    Args:
        model: a functional copy.
        layer: the layer that reads Ψ.
        record: (1, …).
    """
    kinds = (nn.Linear, *CONVOLUTIONS)
    layers = {name: m for name, m in model.module.named_modules() if isinstance(m, kinds)}
    uses: list[tuple[str, float]] = []

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        uses.append((name, 2.0 * layers[name].weight[0].numel() * output.numel()))
        return output

    with torch.no_grad(), watching(layers, look):
        model.outputs({}, record)
    before = sum(count for _, count in takewhile(lambda use: use[0] != layer, uses))
    return max(_PASSES_A_PRODUCT * before, _LEAST_OPERATIONS)


def _operations(model: FunctionalModel, record: Tensor) -> float | None:
    """Operations of two products of the search; None where there is nothing to search."""
    layers = [reader for reader in readers(model, record) if reader.bias and reader.times == 1]
    if not layers or any(reader.of_record for reader in layers):
        return None
    return operations_a_product(model, layers[0].layer, record)


class ClosedFormOptions(base.ReconstructionOptions):
    """Options of the closed form."""

    layer: str | None = Field(
        None,
        description="Fully connected layer whose gradients are divided (by default the "
        "first one that can be used).",
    )
    search_steps: int = Field(
        50,
        ge=1,
        description="Largest number of steps of the search for the record behind a later layer's "
        "input.",
    )
    search_work: float = Field(
        200.0,
        gt=0,
        description="Largest number of floating-point operations of the search, in billions.",
    )
    box: bool = Field(
        True,
        description="Clip the reconstruction to the known range of values, and round one-hot "
        "groups to their largest element.",
    )


class ClosedForm(Reconstruction[ClosedFormOptions]):
    """Solve ∇_b J · x = ∇_W J of a fully connected layer for its input x.

    The answer is the least squares solution over all rows, x̂ = Σ b̄_k w̄_k / Σ b̄_k²; the second
    candidate is the row with the largest bias gradient alone. Of the first layer that is the
    record. Of a later one it is that layer's input: the record is then sought by least squares
    through the layers before, and is determined only where their Jacobian has full column rank
    (condition 1), which the report says. An attacker who knows a table's columns rounds their
    one-hot groups.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), theorem 2.1.
    """

    solves_for_numbers = True
    name = "closed-form"
    summary = "Divide a fully connected layer's gradients (Fan et al. 2020, theorem 2.1)."
    Options = ClosedFormOptions
    restarts = False

    def calls_on(self, model: FunctionalModel, record: Tensor) -> float:
        """A later layer's input is searched for; of the first layer there is nothing to search."""
        known = _KNOWN.setdefault(model.module, {})
        if record.shape not in known:
            # in evaluation mode a record can be normalised alone
            known[record.shape] = _operations(replace(model, mode="eval"), record)
        operations = known[record.shape]
        if operations is None:
            return self.calls()
        usual = float(_PRODUCTS_A_STEP * self.options.search_steps)
        return min(usual, 1e9 * self.options.search_work / operations)

    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        """Least squares over all rows, then the best row."""
        view = of_one_record(view, self.name)
        layer = SingleLayer.of(view, self.options.layer)
        sizes = layer.bias.abs()
        best, kappa = int(sizes.argmax()), float(sizes.max() / sizes.min())
        least_squares = invert_linear(layer.weight, layer.bias)
        inputs = torch.stack([least_squares, layer.weight[best] / layer.bias[best]])
        details: dict[str, JsonValue] = {
            "layer": layer.name,
            "candidates": ["least squares over all rows", f"row {best} alone"],
            "kappa": kappa if isfinite(kappa) else None,
            "recovers": "the record" if layer.of_record else _LATER,
        }
        records = inputs
        if not layer.of_record:
            records, behind = self._behind(view, layer.name, inputs)
            details |= behind
        records = records.reshape(2, 1, *view.shape)
        boxed = view.rounded(view.clipped(records)) if self.options.box else records
        if not layer.of_record:
            read = layer_input(view.model, layer.name)
            with torch.no_grad():
                inputs = torch.stack([read(record.to(inputs)) for record in boxed])
        return Candidates(
            inputs=boxed.to(view.dtype),
            labels=None if view.labels is None else view.labels.expand(2, *view.labels.shape),
            scores=torch.tensor(layer.misfits(inputs), dtype=torch.float64),
            diverged=~records.flatten(1).isfinite().all(dim=1),
            details=details,
        )

    def _behind(
        self, view: AttackerView, layer: str, inputs: Tensor
    ) -> tuple[Tensor, dict[str, JsonValue]]:
        """Flat records that a layer reads as (candidates, inputs), and of the first condition 1.

        The second search sets out from where the first one ended. The Jacobian, a product with the
        transpose for each row, is left unformed where that takes more than the search may.
        """
        start, read = starting_record(view, None), layer_input(view.model, layer)
        operations = operations_a_product(view.model, layer, start.reshape(1, *view.shape))
        products = max(1, int(1e9 * self.options.search_work / operations))
        problems = [Inversion(read, wanted, view.shape) for wanted in inputs]
        first = self._search(problems[0], start.flatten().cpu().numpy(), products)
        second = first
        if float((inputs[1] - inputs[0]).norm()) > _ALIKE * problems[0].scale:
            second = self._search(problems[1], first.z, products - first.products)
        affordable = len(inputs[0]) / 2 <= products
        determined = problems[0].determined(first.z) if affordable else None
        details: dict[str, JsonValue] = {"condition_1": determined, "residual": first.residual}
        if determined is False:
            details["recovers"] = _UNDETERMINED
        if first.cut or second.cut:
            details["cut_short"] = self._cut_short(first)
        return torch.stack([torch.from_numpy(m.z).to(inputs) for m in (first, second)]), details

    def _search(
        self, problem: Inversion, begin: NDArray[np.float64], products: int
    ) -> LeastSquaresMinimum:
        steps = self.options.search_steps
        return minimise(problem, begin, steps=steps, inner=500, products=products)

    def _cut_short(self, first: LeastSquaresMinimum) -> str:
        return (
            f"the search for the record ended after {self.options.search_work:g} billion "
            f"operations at a residual of {first.residual:.2g}; raise search_work to go on"
        )
