"""COPA: R-GAP's systems, over what the layers before can give."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.attacks.layerwise.combined import CombinedSolver, RecordActivations
from gradaudit.attacks.layerwise.recursion import RecoveredRecord, best_of, starting_record
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Reconstruction
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress

_USUAL_INNER = 500
"""Iterations of LSMR in a step of the search."""


class CombinedOptions(base.ReconstructionOptions):
    """Options of COPA."""

    search_steps: int = Field(
        20, ge=1, description="Largest number of steps of the search in a layer."
    )
    denoise: float = Field(
        0.0,
        ge=0,
        description="Weight of the total variation denoising of the reconstruction (paper: 0.15).",
    )
    box: bool = Field(True, description="Clip the reconstruction to the known range of values.")


class CombinedOptimisationAttack(Reconstruction[CombinedOptions]):
    """Minimise ‖U A(z) − V‖² for each layer's input A(z), from the last layer to the record.

    U and V are those of R-GAP. Where the layer before has full column rank and fewer inputs than
    outputs, z is kept to what that layer can give (the pull-back constraint, eq. 7); otherwise it
    is free (eq. 5); the first layer's input is (eq. 6). Where a system determines its input, the
    solution is taken as it is, and where all do, every restart ends there; else the search starts
    at the features of a record: the first restart's is the attacker's own, or the middle of the
    known range, the others' are drawn.

    Source: C. Chen and N. Campbell, "Understanding training-data leakage from gradients in neural
    networks for image classification" (2021), algorithm 1, whose branch is printed reversed.
    """

    solves_for_numbers = True
    name = "copa"
    summary = "R-GAP's systems over what the layers before can give (Chen & Campbell 2021)."
    Options = CombinedOptions

    def run(
        self,
        view: AttackerView,
        restarts: int,
        generator: torch.Generator,
        progress: Progress,
        jobs: int = 1,
    ) -> Candidates:
        """One candidate for every start."""
        setting = LayerwiseSetting.of(view, self.name)
        if self.options.denoise and not view.pictures:
            raise NotApplicable("total variation denoising is for pictures: leave out denoise")
        recovered: list[RecoveredRecord] = []
        constrained: list[str] = []
        with progress.task(self.name, restarts) as advance:
            for number in range(restarts):
                if number and recovered[0].determined:
                    recovered.append(recovered[0])
                else:
                    begin = starting_record(setting.view, generator if number else None)
                    solver = CombinedSolver(
                        RecordActivations.of(setting.chain, begin), self.options.search_steps
                    )
                    recovered.append(best_of(setting, solver, box=self.options.box))
                    constrained = solver.constrained
                advance(1)
        records = torch.stack([denoise(one.record, self.options.denoise) for one in recovered])
        return Candidates(
            inputs=records[:, None].to(view.dtype),
            labels=torch.stack([one.target for one in recovered]),
            scores=torch.tensor([one.mismatch for one in recovered], dtype=torch.float64),
            diverged=torch.tensor([not one.finite for one in recovered]),
            details={"layers": recovered[0].layers(), "pull_back": [*dict.fromkeys(constrained)]},
        )

    def steps(self, restarts: int) -> float:
        """Most of the time goes to LSMR, an iteration of which costs about a gradient."""
        return float(restarts * self.options.search_steps * _USUAL_INNER)


_STEP = 0.25


def denoise(
    pictures: Tensor, weight: float, iterations: int = 200, tolerance: float = 2e-4
) -> Tensor:
    """min_u ½ ‖u − f‖² + weight · TV(u) of every channel on its own (Chambolle 2004).

    By the dual projection. The weight is that of scikit-image's ``denoise_tv_chambolle``, which
    COPA uses at 0.15.

    Args:
        pictures: f, (…, height, width).
        weight: 0 leaves the pictures as they are.
        iterations: at most.
        tolerance: relative change of the objective to stop at.
    """
    if weight <= 0:
        return pictures
    dual = pictures.new_zeros(2, *pictures.shape)
    denoised, first, before = pictures, None, None
    for number in range(iterations):
        denoised = pictures + _adjoint(dual)
        slopes = _gradient(denoised)
        length = slopes.square().sum(dim=0).sqrt()
        value = float((pictures - denoised).square().sum() + weight * length.sum())
        dual = (dual - _STEP * slopes) / (1 + _STEP * length / weight)
        first = value if number == 0 else first
        if before is not None and first and abs(before - value) < tolerance * first:
            break
        before = value
    return denoised


def _gradient(u: Tensor) -> Tensor:
    """Forward differences, zero at the last row and column: (2, …)."""
    slopes = u.new_zeros(2, *u.shape)
    slopes[0, ..., :-1, :] = u.diff(dim=-2)
    slopes[1, ..., :-1] = u.diff(dim=-1)
    return slopes


def _adjoint(dual: Tensor) -> Tensor:
    down, right = dual
    adjoint = torch.zeros_like(down)
    adjoint[..., :-1, :] -= down[..., :-1, :]
    adjoint[..., 1:, :] += down[..., :-1, :]
    adjoint[..., :-1] -= right[..., :-1]
    adjoint[..., 1:] += right[..., :-1]
    return adjoint
