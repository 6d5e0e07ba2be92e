"""Solves a chain for its layers' inputs, from the last layer to the record.

Chen & Campbell 2021, algorithm 1, eq. 2, 3 and 10; Zhu & Blaschko 2021, algorithm 1. What differs
between attacks is how a convolution is solved. All ends that may have happened at the last layer
are gone through.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.layer_chain import (
    Activation,
    LastLayer,
    LayerChain,
    Stage,
    invert_linear,
)
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.layerwise.systems import System, system_of
from gradaudit.attacks.reconstruction.base import AttackerView


@dataclass(frozen=True)
class SolvedLayer:
    """The solution for one layer's input.

    Attributes:
        x: (inputs,) the input.
        z: (inputs,) what the activation before it was applied to; None: to be inverted.
        residual: ‖U x − V‖ / ‖V‖, NaN for a fully connected layer.
        outside: share of x that no value of the activation before it can be.
        determined: whether the layer's equations have one solution, however it is sought; None
            where that was not asked.
    """

    layer: str
    x: Tensor
    z: Tensor | None = None
    residual: float = float("nan")
    iterations: int = 0
    outside: float = 0.0
    determined: bool | None = None


class Solver(ABC):
    """A method that solves a convolution for its input."""

    @abstractmethod
    def solve(
        self, stage: Stage, system: System, before: Activation, previous: Stage | None
    ) -> SolvedLayer:
        """Solve for the input of a convolution.

        Args:
            stage: the convolution.
            system: U and V.
            before: the activation that its input went through.
            previous: the stage before it, None for the first one.
        """


def unroll(
    chain: LayerChain, update: Mapping[str, Tensor], last: LastLayer, solver: Solver
) -> list[SolvedLayer]:
    """Solve for every layer's input, from the last layer to the record.

    Raises:
        NotApplicable: a gradient is zero where it is needed, or a system is too large.
    """
    stages, solved, delta, x = chain.stages, list[SolvedLayer](), last.delta, last.x
    for number in reversed(range(len(stages))):
        stage, previous = stages[number], stages[number - 1] if number else None
        before = previous.activation if previous else chain.entrance
        if solved:
            z = solved[-1].z
            z = stage.activation.inverse(solved[-1].x) if z is None else z
            delta = stages[number + 1].transposed(delta) * stage.activation.slope(z)
            gradient = update[stage.weight_name]
            if stage.convolution is not None:
                system = system_of(stage, z - stage.offset, delta, gradient)
                solved.append(solver.solve(stage, system, before, previous))
                continue
            shared = update.get(stage.bias_name or "")
            x = invert_linear(gradient, delta if shared is None else shared)
        outside = share_outside(before, x)  # every row of a layer's gradient determines its input
        solved.append(SolvedLayer(stage.layer, x, outside=outside, determined=True))
    return solved


def share_outside(activation: Activation, x: Tensor) -> float:
    """Share of elements that lie outside of an activation's range."""
    low, high = activation.range
    return 1 - float(((x > low) & (x < high)).double().mean())


@dataclass(frozen=True)
class RecoveredRecord:
    """A record that an attack recovered.

    Attributes:
        record: in its shape, float64; inside the known range where that is wanted.
        target: (1, …) the target that goes with it.
        mismatch: between its gradient and what was shared.
        tried: how many ends at the last layer were gone through.
    """

    record: Tensor
    target: Tensor
    mismatch: float
    solved: list[SolvedLayer]
    tried: int

    @property
    def finite(self) -> bool:
        """Whether every element of the answer is finite, so that it is a record."""
        return bool(self.record.isfinite().all()) and math.isfinite(self.mismatch)

    @property
    def determined(self) -> bool:
        """Whether the solution is unique, so that no other start can end elsewhere."""
        return all(one.determined for one in self.solved)

    def layers(self) -> list[JsonValue]:
        """The residual and rank of every layer's system, the last layer first, for a report."""
        return [
            {
                "layer": one.layer,
                "residual": one.residual if math.isfinite(one.residual) else None,
                "iterations": one.iterations,
                "outside": one.outside,
                "determined": one.determined,
            }
            for one in self.solved
        ]


def best_of(setting: LayerwiseSetting, solver: Solver, *, box: bool) -> RecoveredRecord:
    """The record, moved into a known box if wanted, whose gradient is closest to what was shared.

    Raises:
        NotApplicable: nothing can have happened at the last layer that gives its gradient.
    """
    ends = setting.last_layers()
    recovered = []
    for last, target in ends:
        solved = unroll(setting.chain, setting.view.update, last, solver)
        x, z = solved[-1].x, solved[-1].z
        record = setting.chain.entrance.inverse(x) if z is None else z
        record = record.reshape(setting.chain.input_shape)
        record = setting.view.clipped(record) if box else record
        mismatch = setting.mismatch(record, target)
        recovered.append(RecoveredRecord(record, target, mismatch, solved, len(ends)))
    return min(recovered, key=lambda one: one.mismatch if one.finite else math.inf)


def starting_record(view: AttackerView, generator: torch.Generator | None) -> Tensor:
    """The record that a search starts from, in a record's shape.

    Args:
        view: what the attacker has, in float64.
        generator: None for the middle of the known range, or zero; else drawn, uniformly from the
            range or from a standard normal law.
    """
    low, high = view.bounds or (0.0, 0.0)
    if generator is None:
        return torch.full(view.shape, (low + high) / 2, dtype=view.dtype, device=view.model.device)
    draw = torch.randn if view.bounds is None else torch.rand
    drawn = draw(view.shape, generator=generator, dtype=torch.float64)
    drawn = drawn if view.bounds is None else low + (high - low) * drawn
    return drawn.to(view.model.device)
