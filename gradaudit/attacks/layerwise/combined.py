"""A convolution's input by COPA: least squares over what the layer before it can give.

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
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, splu
from torch import Tensor

from gradaudit.attacks.layerwise.chain import Activation, LayerChain, Stage
from gradaudit.attacks.layerwise.levenberg_marquardt import minimise
from gradaudit.attacks.layerwise.recursion import SolvedLayer, Solver, share_outside
from gradaudit.attacks.layerwise.systems import System, Vector, solve, weights_matrix
from gradaudit.ranks.convolution import convolution_rank
from gradaudit.ranks.geometry import geometry_of

_SAME = 1e-6
_ROOM = 1e-2
"""From the ends of an activation's range, where its slope vanishes and a search stands still."""


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
    return convolution_rank(weight, nothing, geometry, stage.convolution.groups, seed=0).low


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
        """‖V‖."""
        return float(np.linalg.norm(self.right)) or 1.0

    def z_of(self, unknown: Vector) -> Vector:
        """The activation's argument, (columns,)."""
        return unknown if self.constraint is None else self.constraint.image(unknown)

    def unknown_of(self, z: Vector) -> Vector:
        """The unknown that gives z, or comes closest to it."""
        return z if self.constraint is None else self.constraint.preimage(z)

    def residuals(self, z: Vector) -> Vector:
        """(rows,) at an unknown."""
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
class RecordActivations:
    """A record's way through the chain.

    Attributes:
        inputs: of each layer, (inputs,).
        outputs: of each layer before its activation, (outputs,).
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def of(cls, chain: LayerChain, record: Tensor) -> RecordActivations:
        """The way of a record in its shape."""
        inputs, outputs = {}, {}
        x = chain.entrance.value(record.flatten())
        for stage in chain.stages:
            inputs[stage.layer], z = x, stage.linear(x) + stage.offset
            outputs[stage.layer], x = z, stage.activation.value(z)
        return cls(inputs, outputs)


@dataclass(frozen=True)
class CombinedSolver(Solver):
    """COPA's step.

    Attributes:
        start: where a search starts, and which of several solutions is taken: the closest one.
        constrained: the layers at whose input a pull-back constraint was met.
    """

    start: RecordActivations
    steps: int = 20
    constrained: list[str] = field(default_factory=list)

    def solve(
        self, stage: Stage, system: System, before: Activation, previous: Stage | None
    ) -> SolvedLayer:
        """Eq. 6 for the first layer, 7 where the pull-back constraint is defined, else 5."""
        matrix, right = system.balanced()
        linear = solve(matrix, right, self.start.inputs[stage.layer].cpu().numpy())
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
        z: Vector = self.start.outputs[previous.layer].cpu().numpy()
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
    """Whether a search from elsewhere finds the same solution; finely where roughly it does not."""
    return any(_alike(solve(matrix, right, rough=rough).x, x) for rough in (True, False))


def _alike(one: Vector, other: Vector) -> bool:
    return float(np.linalg.norm(one - other)) <= _SAME * float(np.linalg.norm(one))
