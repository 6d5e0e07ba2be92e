"""What an attacker minimises: how far a candidate's update is from the shared one, and priors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.attacks.reconstruction.unknowns import Targets
from gradaudit.errors import NotApplicable

Distance = Literal["l2", "cosine"]


@dataclass(frozen=True)
class Objective:
    """D(update of the candidate, shared update) + tv · TV(candidate), of a flat point.

    ``l2`` is ‖g' − g‖² / ‖g‖² over all visible parameters: the distance of Deep Leakage from
    Gradients, in units in which the blank update has 1. ``cosine`` is 1 − ⟨g', g⟩ / (‖g'‖ ‖g‖)
    (Geiping et al. 2020, equation 4), which no scale of the update changes.

    Attributes:
        tv: weight of the total variation of pictures.
        adaptive: compare only where the shared update is not zero.
    """

    view: AttackerView
    targets: Targets
    distance: Distance = "l2"
    tv: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not float(self.length) > 0:
            raise NotApplicable(
                "the shared update is zero in every visible parameter: there is nothing to match"
            )

    @property
    def unknowns(self) -> int:
        """Numbers in a point: the records, then the free labels."""
        return self.view.elements + self.targets.size

    @cached_property
    def shared(self) -> Tensor:
        """The shared update as one vector."""
        return self._flat(self.view.update)

    @cached_property
    def length(self) -> Tensor:
        """Its squared length."""
        return self.shared.dot(self.shared)

    def records(self, points: Tensor) -> Tensor:
        """(…, k, …) records in points (…, unknowns)."""
        flat = points[..., : self.view.elements]
        return flat.reshape(*points.shape[:-1], self.view.batch, *self.view.shape)

    def inside(self, points: Tensor) -> Tensor:
        """Points whose records lie in the known range."""
        size = self.view.elements
        return torch.cat([self.view.clipped(points[:, :size]), points[:, size:]], dim=1)

    def labels(self, points: Tensor) -> Tensor:
        """Labels of points (restarts, unknowns), see ``Targets.read``."""
        return self.targets.read(points[:, self.view.elements :])

    def __call__(self, point: Tensor, *, taped: bool = False) -> Tensor:
        """The objective at one point (unknowns,); see ``AttackerView.simulated``."""
        records = self.records(point)
        targets = self.targets.targets(point[self.view.elements :])
        update = self._flat(self.view.simulated(records, targets, taped=taped))
        if self.adaptive:
            update = update * (self.shared != 0)
        value = DISTANCES[self.distance](update, self.shared, self.length)
        return value + self.tv * total_variation(records) if self.tv else value

    def _flat(self, update: Update) -> Tensor:
        return torch.cat([update[name].flatten() for name in self.view.visible])


def l2_distance(update: Tensor, shared: Tensor, length: Tensor) -> Tensor:
    """‖g' − g‖² / ‖g‖² over whole updates."""
    gap = update - shared
    return gap.dot(gap) / length


def cosine_distance(update: Tensor, shared: Tensor, length: Tensor) -> Tensor:
    """1 − cosine of the angle between whole updates."""
    lengths = update.dot(update) * length
    return 1 - update.dot(shared) / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


DISTANCES: dict[Distance, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "l2": l2_distance,
    "cosine": cosine_distance,
}


def total_variation(pictures: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across, (…, height, width)."""
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().mean()
    across = (pictures[..., :, 1:] - pictures[..., :, :-1]).abs().mean()
    return down + across


Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (rows, n) to values (rows,) and gradients (rows, n)."""


@dataclass(frozen=True)
class Minimum:
    """Where each problem ended.

    Attributes:
        points: (rows, n).
        values: (rows,); NaN where a problem could not be evaluated at its start.
        diverged: (rows,) problems that left the finite numbers.
        iterations: (rows,) steps taken.
        evaluations: (rows,) evaluations spent.
    """

    points: Tensor
    values: Tensor
    diverged: Tensor
    iterations: Tensor
    evaluations: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Minimum]) -> Minimum:
        """The problems of several blocks, in order."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
