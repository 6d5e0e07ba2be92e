"""Runs a layer-by-layer attack over what may have happened at the last layer, and reports it."""

import math
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.recursion import Solved, Solver, record_of, unroll
from gradaudit.attacks.layerwise.setting import Setting
from gradaudit.attacks.reconstruction.view import AttackerView
from gradaudit.errors import NotApplicable


@dataclass(frozen=True)
class Recovered:
    """A record that an attack came up with.

    Attributes:
        record: in its shape, float64; inside the known range where that is wanted.
        target: (1, …) the target that goes with it.
        mismatch: between its gradient and what was shared.
        solved: every layer's input on the way.
        tried: how many ends at the last layer were gone through.
    """

    record: Tensor
    target: Tensor
    mismatch: float
    solved: list[Solved]
    tried: int

    @property
    def finite(self) -> bool:
        """Whether it is a record at all."""
        return bool(self.record.isfinite().all()) and math.isfinite(self.mismatch)

    @property
    def determined(self) -> bool:
        """Whether no other start could have ended elsewhere."""
        return all(one.determined for one in self.solved)

    def layers(self) -> list[JsonValue]:
        """For a report: what every layer's system left, the last layer first."""
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


def best_of(setting: Setting, solver: Solver, *, box: bool) -> Recovered:
    """The record whose gradient comes closest to what was shared.

    Args:
        setting: of the attack.
        solver: of convolutions.
        box: whether to move the record into the known range of values.

    Raises:
        NotApplicable: nothing can have happened at the last layer that gives its gradient.
    """
    ends = setting.last_layers()
    if not ends:
        raise NotApplicable("no output of the last layer gives the gradient that was shared")
    recovered = []
    for last, target in ends:
        solved = unroll(setting.chain, setting.view.update, last, solver)
        record = record_of(setting.chain, solved)
        record = setting.view.clipped(record) if box else record
        mismatch = setting.mismatch(record, target)
        recovered.append(Recovered(record, target, mismatch, solved, len(ends)))
    return min(recovered, key=lambda one: one.mismatch if one.finite else math.inf)


def starting_record(view: AttackerView, generator: torch.Generator | None) -> Tensor:
    """Where a search starts, in a record's shape.

    Args:
        view: what the attacker has, in float64.
        generator: None for what the attacker brings along, or the middle of the known range, or
            zero; else drawn, uniformly from the range or from a standard normal law.
    """
    if generator is None and view.start is not None:
        return view.model.cast(view.start)[0]
    low, high = view.bounds or (0.0, 0.0)
    if generator is None:
        return torch.full(view.shape, (low + high) / 2, dtype=view.dtype, device=view.model.device)
    if view.bounds is None:
        drawn = torch.randn(view.shape, generator=generator, dtype=torch.float64)
    else:
        drawn = low + (high - low) * torch.rand(
            view.shape, generator=generator, dtype=torch.float64
        )
    return drawn.to(view.model.device)
