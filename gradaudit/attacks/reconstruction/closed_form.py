"""The closed form: a fully connected layer's input from the gradients of its weight and bias."""

from math import isfinite
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor, nn

from gradaudit.attacks.layerwise.closed_form import SingleLayer, readers
from gradaudit.attacks.layerwise.inversion import Inversion, layer_input, operations_a_product
from gradaudit.attacks.layerwise.levenberg_marquardt import LeastSquaresMinimum, minimise
from gradaudit.attacks.layerwise.logits import fully_connected_input
from gradaudit.attacks.layerwise.recursion import starting_record
from gradaudit.attacks.layerwise.setting import of_one_record
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Reconstruction
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.progress import Progress

_PRODUCTS_A_STEP = 16
"""Products that a step usually takes, about a call each: LeNet at 32×32 and 64×64 and AlexNet took
0.7, 1.7 and 1.7 times what this expects."""
_ALIKE = 1e-9
"""Relative distance of two solutions for a layer's input up to which rounding tells them apart."""
_LATER = "the layer's input; the record behind it is determined where condition 1 holds"


_KNOWN: WeakKeyDictionary[nn.Module, dict[torch.Size, float | None]] = WeakKeyDictionary()
"""Operations of two products of the search, by the shape of a record, where they were counted."""


def _operations(model: FunctionalModel, record: Tensor) -> float | None:
    """Of two products of the search; None where there is nothing to search."""
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
    box: bool = Field(True, description="Clip the reconstruction to the known range of values.")


class ClosedForm(Reconstruction[ClosedFormOptions]):
    """Solve ∇_b J · x = ∇_W J of a fully connected layer for its input x.

    The answer is the least squares solution over all rows, x̂ = Σ b̄_k w̄_k / Σ b̄_k²; the second
    candidate is the row with the largest bias gradient alone. Of the first layer that is the
    record. Of a later one it is that layer's input: the record is then sought by least squares
    through the layers before, and is determined only where their Jacobian has full column rank
    (condition 1), which the report says.

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
            known[record.shape] = _operations(model, record)
        operations = known[record.shape]
        if operations is None:
            return self.calls()
        usual = float(_PRODUCTS_A_STEP * self.options.search_steps)
        return min(usual, 1e9 * self.options.search_work / operations)

    def run(
        self,
        view: AttackerView,
        restarts: int,
        generator: torch.Generator,
        progress: Progress,
        jobs: int = 1,
    ) -> Candidates:
        """Least squares over all rows, then the best row."""
        view = of_one_record(view, self.name)
        layer = SingleLayer.of(view, self.options.layer)
        sizes = layer.bias.abs()
        best, kappa = int(sizes.argmax()), float(sizes.max() / sizes.min())
        least_squares = fully_connected_input(layer.weight, layer.bias)
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
        return Candidates(
            inputs=(view.clipped(records) if self.options.box else records).to(view.dtype),
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
        details: dict[str, JsonValue] = {
            "condition_1": problems[0].determined(first.z) if affordable else None,
            "residual": first.residual,
        }
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
