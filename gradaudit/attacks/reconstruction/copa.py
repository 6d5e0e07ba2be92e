"""COPA: R-GAP's linear systems, restricted to possible outputs of the layers before.

A convolution's input by COPA: least squares over what the layer before it can give.

Chen & Campbell 2021, eq. 5–7: with X⁽ⁱ⁾ = A⁽ⁱ⁻¹⁾(z) the unknown is z, and ‖U A⁽ⁱ⁻¹⁾(z) − V‖² is
minimised, with the pull-back constraint g A⁽ⁱ⁻¹⁾(z) = 0 where that is defined. The paper adds
‖g A⁽ⁱ⁻¹⁾(z)‖²; here it is eliminated, as every z that fulfils it is W⁽ⁱ⁻¹⁾ y + B⁽ⁱ⁻¹⁾ for one y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, splu
from torch import Tensor

from gradaudit.attacks.layerwise.layer_chain import Activation, LayerChain, Stage
from gradaudit.attacks.layerwise.recursion import (
    RecoveredRecord,
    SolvedLayer,
    Solver,
    best_of,
    share_outside,
    starting_record,
)
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.layerwise.systems import System, Vector, minimise, solve, weights_matrix
from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
)
from gradaudit.errors import NotApplicable
from gradaudit.ranks.convolution import convolution_rank
from gradaudit.ranks.observe import geometry_of

_SAME = 1e-6
_ROOM = 1e-2
"""Distance from the ends of an activation's range, where its slope vanishes and a search stops."""
_USUAL_INNER = 500
"""Iterations of LSMR in a step of the search."""
_STEP = 0.25


@dataclass(frozen=True)
class PullBack:
    """The pull-back constraint that one convolution puts on its own output.

    Chen & Campbell 2021, appendix B. Where W⁽ⁱ⁻¹⁾ has full column rank and fewer columns than
    rows, Z⁽ⁱ⁻¹⁾ − B⁽ⁱ⁻¹⁾ lies in the range of W⁽ⁱ⁻¹⁾, so that with the projection P = I − W W⁺
    beside it

        g(X⁽ⁱ⁾) = P ((A⁽ⁱ⁻¹⁾)⁻¹(X⁽ⁱ⁾) − B⁽ⁱ⁻¹⁾) = 0.

    It is not evaluated but solved: Z⁽ⁱ⁻¹⁾ = W⁽ⁱ⁻¹⁾ y + B⁽ⁱ⁻¹⁾ (``image``) for exactly one y, which
    is W⁺ (Z⁽ⁱ⁻¹⁾ − B⁽ⁱ⁻¹⁾) (``preimage``), and y is what is searched. Eq. 19 prints A⁽ⁱ⁾ for A⁽ⁱ⁻¹⁾
    and leaves the bias out, and algorithm 1 prints the branch reversed.

    Attributes:
        matrix: its W, (outputs, inputs), of full column rank.
        offset: its bias at every output, (outputs,).
    """

    matrix: csr_array
    offset: Vector

    @cached_property
    def _factors(self) -> Any:
        normal, options = (self.matrix.T @ self.matrix).tocsc(), {"SymmetricMode": True}
        return splu(normal, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)

    def preimage(self, z: Vector) -> Vector:
        """W⁺ (z − B), the input (inputs,) whose output comes closest to z (outputs,)."""
        return np.asarray(self._factors.solve(self.matrix.T @ (z - self.offset)))

    def image(self, y: Vector) -> Vector:
        """W y + B, (outputs,): every z that fulfils the constraint is one."""
        return np.asarray(self.matrix @ y + self.offset)


def pull_back_of(stage: Stage | None) -> PullBack | None:
    """The constraint that a stage puts on its output, None where it puts none.

    ``stage`` is the one before the one that is solved, None where that is the first.
    """
    if stage is None or stage.convolution is None or stage.inputs >= stage.outputs:
        return None
    if column_rank(stage) < stage.inputs:
        return None
    return PullBack(weights_matrix(stage), stage.offset.cpu().double().numpy())


def column_rank(stage: Stage) -> int:
    """The rank of a convolution's W, at least."""
    assert stage.convolution is not None
    weight = stage.weight.detach().cpu().double()
    nothing = torch.zeros(len(weight), stage.outputs // len(weight), dtype=torch.float64)
    geometry = geometry_of(stage.convolution, stage.input_shape[1:])
    return convolution_rank(weight, nothing, geometry, stage.convolution.groups).low


@dataclass(frozen=True)
class CombinedObjective:
    """The residuals U A⁽ⁱ⁻¹⁾(z) − V as a function of z, or of y where z = W⁽ⁱ⁻¹⁾ y + B⁽ⁱ⁻¹⁾.

    Attributes:
        matrix: U, (rows, columns).
        right: V, (rows,).
        activation: A⁽ⁱ⁻¹⁾.
        constraint: the pull-back constraint, None for eq. 5.
    """

    matrix: csr_array
    right: Vector
    activation: Activation
    constraint: PullBack | None = None

    @cached_property
    def scale(self) -> float:
        """The length ‖V‖."""
        return float(np.linalg.norm(self.right)) or 1.0

    def z_of(self, unknown: Vector) -> Vector:
        """The activation's argument, (columns,)."""
        return unknown if self.constraint is None else self.constraint.image(unknown)

    def unknown_of(self, z: Vector) -> Vector:
        """The unknown that gives z, or comes closest to it."""
        return z if self.constraint is None else self.constraint.preimage(z)

    def residuals(self, z: Vector) -> Vector:
        """Compute the residuals (rows,) at an unknown."""
        x: Vector = self.activation.value(torch.from_numpy(self.z_of(z))).numpy()
        return np.asarray(self.matrix @ x - self.right)

    def jacobian(self, z: Vector) -> LinearOperator:
        """U A′ (W) at an unknown."""
        slope: Vector = self.activation.slope(torch.from_numpy(self.z_of(z))).numpy()
        before = None if self.constraint is None else self.constraint.matrix

        def apply(step: Vector) -> Vector:
            inner = step if before is None else before @ step
            return np.asarray(self.matrix @ (slope * inner.ravel()))

        def transposed(left: Vector) -> Vector:
            inner: Vector = slope * (self.matrix.T @ left.ravel())
            return inner if before is None else before.T @ inner

        shape = (len(self.right), len(z))
        return LinearOperator(shape, matvec=apply, rmatvec=transposed, dtype=np.float64)


@dataclass(frozen=True)
class CombinedSolver(Solver):
    """COPA's step.

    Attributes:
        inputs: of each layer (inputs,), and
        outputs: before its activation (outputs,), where a search starts; of several solutions the
            closest one is taken.
        constrained: the layers at whose input a pull-back constraint was met.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    steps: int = 20
    constrained: list[str] = field(default_factory=list)

    @classmethod
    def starting_at(cls, chain: LayerChain, record: Tensor, steps: int) -> CombinedSolver:
        """Make a solver that starts at the features of a record."""
        inputs, outputs = {}, {}
        x = chain.entrance.value(record.flatten())
        for stage in chain.stages:
            inputs[stage.layer], z = x, stage.linear(x) + stage.offset
            outputs[stage.layer], x = z, stage.activation.value(z)
        return cls(inputs, outputs, steps)

    def solve(
        self, stage: Stage, system: System, before: Activation, previous: Stage | None
    ) -> SolvedLayer:
        """Eq. 6 for the first layer, 7 where the pull-back constraint is defined, else 5."""
        matrix, right = system.balanced()
        linear = solve(matrix, right, self.inputs[stage.layer].cpu().numpy())
        x = torch.from_numpy(linear.x)
        determined = determines(matrix, right, linear.x)
        end = x.to(stage.weight)
        outside = share_outside(before, end)
        solved = SolvedLayer(
            stage.layer, end, None, linear.residual, linear.iterations, outside, determined
        )
        if previous is None:
            return solved
        constraint = pull_back_of(previous)
        self.constrained.extend([stage.layer] * (constraint is not None))
        objective = CombinedObjective(matrix, right, before, constraint)
        z: Vector = self.outputs[previous.layer].cpu().numpy()
        if determined:  # nothing is left to search where the layer before can give the input
            z = before.inverse(x).numpy()
            again = objective.z_of(objective.unknown_of(z))
            if _alike(again, z) and share_outside(before, x) == 0:
                return solved
            z = before.inverse(x, _ROOM).numpy()
        return self._search(stage, objective, z, determined)

    def _search(
        self, stage: Stage, objective: CombinedObjective, z: Vector, determined: bool
    ) -> SolvedLayer:
        begin = objective.unknown_of(z)
        minimum = minimise(objective, begin, steps=self.steps, inner=1000)
        end = torch.from_numpy(objective.z_of(minimum.z)).to(stage.weight)
        x = objective.activation.value(end)
        residual, steps = minimum.residual, minimum.steps
        return SolvedLayer(stage.layer, x, end, residual, steps, determined=determined)


def determines(matrix: csr_array, right: Vector, x: Vector) -> bool:
    """Whether a search from elsewhere finds the same solution; a finer one if a rough one fails."""
    return any(_alike(solve(matrix, right, rough=rough).x, x) for rough in (True, False))


def _alike(one: Vector, other: Vector) -> bool:
    return float(np.linalg.norm(one - other)) <= _SAME * float(np.linalg.norm(one))


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

    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        """Solve the chain from every starting record; each gives one candidate."""
        setting = LayerwiseSetting.of(view, self.name)
        if self.options.denoise and not view.pictures:
            raise NotApplicable("total variation denoising is for pictures: leave out denoise")
        recovered: list[RecoveredRecord] = []
        constrained: list[str] = []
        generator = execution.generator()
        with execution.progress.task(self.name, self.starts) as advance:
            for number in range(self.starts):
                if number and recovered[0].determined:
                    recovered.append(recovered[0])
                else:
                    begin = starting_record(setting.view, generator if number else None)
                    steps = self.options.search_steps
                    solver = CombinedSolver.starting_at(setting.chain, begin, steps)
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

    def steps(self) -> float:
        """Most of the time goes to LSMR, an iteration of which costs about a gradient."""
        return float(self.starts * self.options.search_steps * _USUAL_INNER)


def denoise(
    pictures: Tensor, weight: float, iterations: int = 200, tolerance: float = 2e-4
) -> Tensor:
    """Minimise ½ ‖u − f‖² + weight · TV(u) over u for each channel (Chambolle 2004).

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
