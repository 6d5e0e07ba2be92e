"""Objectives of reconstruction: distance between the updates, and priors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.errors import NotApplicable

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView, Update


Distance = Literal["l2", "cosine"]


@dataclass(frozen=True)
class Objective:
    """D(update of the candidate, shared update) + tv · TV(candidate), of a flat point.

    ``l2`` is ‖g' − g‖² / ‖g‖² over all visible parameters: the distance of Deep Leakage from
    Gradients, in units in which the blank update has 1. ``cosine`` is 1 − ⟨g', g⟩ / (‖g'‖ ‖g‖)
    (Geiping et al. 2020, equation 4), which no scale of the update changes. Where the same records
    made updates in several rounds, D is the mean of the rounds' distances:
    weights that grow with the length of the round's update end up to 1 dB lower
    (benchmarks/coverage/joint_rounds.py).

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
        if not any(bool(part.any()) for view in self.view.rounds for part in view.update.values()):
            raise NotApplicable(
                "the shared update is zero in every visible parameter: there is nothing to match"
            )

    @property
    def unknowns(self) -> int:
        """Numbers in a point: the records, then the free labels."""
        return self.view.elements + self.targets.size

    @cached_property
    def rounds(self) -> tuple[Objective, ...]:
        """The objective of each round whose update is not zero; itself where there is one round."""
        if not self.view.earlier:
            return (self,)
        views = [v for v in self.view.rounds if any(part.any() for part in v.update.values())]
        return tuple(replace(self, view=view) for view in views)

    @cached_property
    def shared(self) -> Update:
        """The shared update, each parameter as a vector."""
        return flattened(self.view.update)

    @cached_property
    def length(self) -> Tensor:
        """The squared length of the shared update."""
        return _over(part.square().sum() for part in self.shared.values())

    @property
    def has_prior(self) -> bool:
        """Whether more than the distance of updates counts, so that no minimum is zero."""
        return bool(self.tv)

    def trial_points(self, count: int) -> Tensor:
        """Fixed pseudo-random points at which evaluations are tried, (count, unknowns).

        Every second one is below zero, for models may branch on what a batch holds.
        """
        generator = torch.Generator().manual_seed(0)
        points = torch.rand(count, self.unknowns, generator=generator, dtype=torch.float64)
        points[1::2].neg_()
        return points.to(self.view.model.device, self.view.dtype)

    def records(self, points: Tensor) -> Tensor:
        """View the records (…, k, …) in points (…, unknowns)."""
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

        def parts(view: AttackerView) -> Parts:
            update = flattened(view.simulated(records, targets, taped=taped))
            return {name: WholeUpdate(part) for name, part in update.items()}

        return self.over_rounds(parts, records)

    def over_rounds(self, parts: Callable[[AttackerView], Parts], records: Tensor) -> Tensor:
        """Average the rounds' objectives of candidates with these ``parts`` of each round's update.

        Args:
            parts: makes the candidates' updates as a round's view shows them.
            records: (…, k, …) the candidates.
        """
        values = [one.of_parts(parts(one.view), records) for one in self.rounds]
        return values[0] if len(values) == 1 else torch.stack(values).mean(dim=0)

    def of_parts(self, parts: Parts, records: Tensor) -> Tensor:
        """The objective of candidates, of each parameter's update and records (…, k, …)."""
        if self.adaptive:
            parts = {name: part.where(self.shared[name] != 0) for name, part in parts.items()}
        value = DISTANCES[self.distance](parts, self.shared, self.length)
        leading = value.dim()
        if self.tv:
            value = value + self.tv * total_variation(records, leading=leading)
        return value


def flattened(update: Update) -> Update:
    """The gradient by each parameter as a vector."""
    return {name: part.flatten() for name, part in update.items()}


class CandidateUpdate(Protocol):
    """Candidates' updates of one parameter, in whatever form, beside a shared one (elements,).

    All numbers are of candidates, (…,).
    """

    def product(self, shared: Tensor) -> Tensor:
        """⟨g', g⟩."""

    def square(self) -> Tensor:
        """‖g'‖²."""

    def gap(self, shared: Tensor) -> Tensor:
        """Compute ‖g' − g‖², with all digits where it is small."""

    def where(self, kept: Tensor) -> CandidateUpdate:
        """Return the update with zeros where the mask is False."""


Parts = Mapping[str, CandidateUpdate]


@dataclass(frozen=True)
class WholeUpdate:
    """Updates (…, elements) of one parameter as they are."""

    update: Tensor

    def product(self, shared: Tensor) -> Tensor:
        """⟨g', g⟩."""
        return (self.update * shared).sum(dim=-1)

    def square(self) -> Tensor:
        """‖g'‖²."""
        return self.update.square().sum(dim=-1)

    def gap(self, shared: Tensor) -> Tensor:
        """‖g' − g‖²."""
        return (self.update - shared).square().sum(dim=-1)

    def where(self, kept: Tensor) -> WholeUpdate:
        """Return the update with zeros where the mask is False."""
        return WholeUpdate(self.update * kept)


def _over(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def l2_distance(parts: Parts, shared: Update, length: Tensor) -> Tensor:
    """Compute ‖g' − g‖² / ‖g‖² over whole updates."""
    return _over(part.gap(shared[name]) for name, part in parts.items()) / length


def cosine_distance(parts: Parts, shared: Update, length: Tensor) -> Tensor:
    """Compute 1 − the cosine of the angle between whole updates."""
    product = _over(part.product(shared[name]) for name, part in parts.items())
    lengths = length * _over(part.square() for part in parts.values())
    return 1 - product / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


DISTANCES: dict[Distance, Callable[[Parts, Update, Tensor], Tensor]] = {
    "l2": l2_distance,
    "cosine": cosine_distance,
}


def total_variation(pictures: Tensor, *, leading: int = 0) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across.

    Of pictures (…, height, width), in the shape of their first ``leading`` dimensions.
    """
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs()
    across = (pictures[..., :, 1:] - pictures[..., :, :-1]).abs()
    return down.flatten(leading).mean(dim=-1) + across.flatten(leading).mean(dim=-1)


Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (rows, n) to values (rows,) and gradients (rows, n)."""


@dataclass(frozen=True)
class Minimum:
    """The minimum that each problem reached.

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

    def put(self, rows: Tensor, other: Minimum, of: Tensor) -> None:
        """Write rows of another one into these rows."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(other, field.name)[of]

    @classmethod
    def joined(cls, parts: Sequence[Minimum]) -> Minimum:
        """The problems of several blocks, in order."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
