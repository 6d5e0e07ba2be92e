"""The closed form: a fully connected layer's input from the gradients of its weight and bias."""

from math import isfinite

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.closed_form import Inversion, SingleLayer, layer_input
from gradaudit.attacks.layerwise.logits import fully_connected_input
from gradaudit.attacks.layerwise.recursion import starting_record
from gradaudit.attacks.layerwise.setting import of_one_record
from gradaudit.attacks.layerwise.systems import minimise
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Reconstruction
from gradaudit.progress import Progress

_LATER = "the layer's input; the record behind it is determined where condition 1 holds"


class ClosedFormOptions(base.ReconstructionOptions):
    """Options of the closed form."""

    layer: str | None = Field(
        None, description="the fully connected layer; default: the first one that can be used"
    )
    search_steps: int = Field(
        50, ge=1, description="most steps of the search for the record behind a later layer's input"
    )
    box: bool = Field(True, description="move the answer into the known range of values")


class ClosedForm(Reconstruction[ClosedFormOptions]):
    """Solve ∇_b J · x = ∇_W J of a fully connected layer for its input x.

    The answer is the least squares solution over all rows, x̂ = Σ b̄_k w̄_k / Σ b̄_k²; the second
    candidate is the row with the largest bias gradient alone. Of the first layer that is the
    record. Of a later one it is that layer's input: the record is then sought by least squares
    through the layers before, and is determined only where their Jacobian has full column rank
    (condition 1), which the report says.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), theorem 2.1.
    """

    name = "closed-form"
    summary = "Divide a fully connected layer's gradients (Fan et al. 2020, theorem 2.1)."
    Options = ClosedFormOptions
    restarts = False

    def calls(self) -> float:
        """A later layer's input is searched for twice."""
        return 2.0 * self.options.search_steps

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

        Its Jacobian's rank is not taken where that is too large.
        """
        begin = starting_record(view, None).flatten().cpu().numpy()
        read, steps = layer_input(view.model, layer), self.options.search_steps
        problems = [Inversion(read, wanted, view.shape) for wanted in inputs]
        minima = [minimise(problem, begin, steps=steps, inner=500) for problem in problems]
        rank = problems[0].rank(minima[0].z)
        records = torch.stack([torch.from_numpy(minimum.z).to(inputs) for minimum in minima])
        determined = None if rank is None else rank == len(begin)
        return records, {"condition_1": determined, "residual": minima[0].residual}
