"""R-GAP: a chain of layers solved backwards, each as a linear system."""

from dataclasses import dataclass

import torch
from pydantic import Field

from gradaudit.attacks.layerwise.layer_chain import Activation, Stage
from gradaudit.attacks.layerwise.recursion import SolvedLayer, Solver, best_of, share_outside
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.layerwise.systems import System, r_gap
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
)

_USUAL_STEPS = 3000
"""Iterations of LSMR that the layers of a small network take together."""


class RecursiveOptions(base.ReconstructionOptions):
    """Options of R-GAP."""

    solver_steps: int = Field(
        20_000, ge=1, description="Largest number of LSMR iterations for a layer."
    )
    box: bool = Field(True, description="Clip the reconstruction to the known range of values.")


class RecursiveGradientAttack(Reconstruction[RecursiveOptions]):
    """Solve [W; ∇_Z J] x = [z; ∇_W J] for each layer's input, from the last layer to the record.

    The last layer's output follows from its bias's gradient, or without one from a scalar equation
    that has two roots, which are both tried; the one whose record gives the gradient that was
    shared is handed in. Where a layer's system does not determine its input, the shortest
    solution is taken, and what is solved before it builds on that: the residuals show it.

    Source: J. Zhu and M. Blaschko, "R-GAP: Recursive gradient attack on privacy" (2021),
    algorithm 1.
    """

    solves_for_numbers = True
    name = "r-gap"
    summary = "Solve one layer after another as a linear system (Zhu & Blaschko 2021)."
    Options = RecursiveOptions
    restarts = False

    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        """Solve the chain once, which needs no starting point, for one candidate."""
        setting = LayerwiseSetting.of(view, self.name)
        with execution.progress.task(self.name, 1) as advance:
            solver = LeastSquares(self.options.solver_steps)
            recovered = best_of(setting, solver, box=self.options.box)
            advance(1)
        return Candidates(
            inputs=recovered.record[None, None].to(view.dtype),
            labels=recovered.target[None],
            scores=torch.tensor([recovered.mismatch], dtype=torch.float64),
            diverged=torch.tensor([not recovered.finite]),
            details={"layers": recovered.layers(), "ends_tried": recovered.tried},
        )

    def steps(self) -> float:
        """Most of the time goes to LSMR, an iteration of which costs about a gradient."""
        return float(min(self.options.solver_steps, _USUAL_STEPS))


@dataclass(frozen=True)
class LeastSquares(Solver):
    """A convolution's input as the shortest solution of [W; ∇_Z J] x = [z; ∇_W J]: R-GAP's step.

    Least squares on both blocks, each scaled to rows of length one on the average.
    """

    iterations: int = 20_000

    def solve(
        self, stage: Stage, system: System, before: Activation, previous: Stage | None
    ) -> SolvedLayer:
        """The shortest input among those that fit best."""
        solution = r_gap(
            system.weights,
            system.gradients,
            system.outputs,
            system.weight_gradient,
            iterations=self.iterations,
        )
        x = torch.from_numpy(solution.x).to(stage.weight)
        outside = share_outside(before, x)
        return SolvedLayer(stage.layer, x, None, solution.residual, solution.iterations, outside)
