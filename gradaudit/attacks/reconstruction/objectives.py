"""What an attacker minimises: how far a candidate's update is from the shared one, and priors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.reconstruction.labels import Targets
from gradaudit.attacks.reconstruction.view import AttackerView, Update
from gradaudit.errors import NotApplicable

Distance = Literal["l2", "cosine"]
Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (restarts, unknowns) to values (restarts,) and gradients (restarts, unknowns)."""


@dataclass(frozen=True)
class Objective:
    """D(update of the candidate, shared update) + tv · TV(candidate), of a flat point.

    ``l2`` is ‖g' − g‖² / ‖g‖² over all visible parameters: the distance of Deep Leakage from
    Gradients, in units in which the blank update has 1. ``cosine`` is 1 − ⟨g', g⟩ / (‖g'‖ ‖g‖)
    (Geiping et al. 2020, equation 4), which no scale of the update changes.

    Attributes:
        view: what the attacker has.
        targets: its labels, free or fixed.
        distance: between updates.
        tv: weight of the total variation of pictures.
        adaptive: compare only where the shared update is not zero.
    """

    view: AttackerView
    targets: Targets
    distance: Distance = "l2"
    tv: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        length = sum(float(part.square().sum()) for part in self.view.update.values())
        if not length > 0:
            raise NotApplicable(
                "the shared update is zero in every visible parameter: there is nothing to match"
            )

    @property
    def unknowns(self) -> int:
        """Numbers in a point: the records, then the free labels."""
        return self.view.elements + self.targets.size

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
        found = self.view.simulated(records, targets, taped=taped)
        shared = self.view.update
        if self.adaptive:
            found = {name: part * (shared[name] != 0) for name, part in found.items()}
        value = DISTANCES[self.distance](found, shared)
        return value + self.tv * total_variation(records) if self.tv else value


def l2_distance(found: Update, shared: Update) -> Tensor:
    """‖g' − g‖² / ‖g‖² over whole updates."""
    return _inner(_difference(found, shared), None) / _inner(shared, None)


def cosine_distance(found: Update, shared: Update) -> Tensor:
    """1 − cosine of the angle between whole updates."""
    lengths = _inner(found, None) * _inner(shared, None)
    return 1 - _inner(found, shared) / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


DISTANCES: dict[Distance, Callable[[Update, Update], Tensor]] = {
    "l2": l2_distance,
    "cosine": cosine_distance,
}


def total_variation(pictures: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across, (…, height, width)."""
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().mean()
    across = (pictures[..., :, 1:] - pictures[..., :, :-1]).abs().mean()
    return down + across


def evaluation(objective: Objective, rows: int = 32) -> Evaluation:
    """Values and gradients of an objective at several points at once.

    Points are mapped over by ``vmap``, at most ``rows`` at a time; one alone is not, and models
    that ``vmap`` cannot follow are gone through point by point.
    """
    several = torch.func.vmap(
        torch.func.grad_and_value(objective), randomness="same", chunk_size=rows
    )
    mapped = True

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal mapped
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            if mapped and min(rows, len(points)) > 1:
                try:
                    gradients, values = several(points)
                    return values.detach(), gradients.detach()
                except (RuntimeError, NotImplementedError):
                    mapped = False
            found = [_alone(objective, point) for point in points]
        return torch.stack([value for value, _ in found]), torch.stack([g for _, g in found])

    return evaluate


def _alone(objective: Objective, point: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient at one point, by tape."""
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        value = objective(point, taped=True)
        gradient: Tensor
        (gradient,) = torch.autograd.grad(value, point, materialize_grads=True, allow_unused=True)
    return value.detach(), gradient


def _difference(found: Update, shared: Update) -> Update:
    return {name: found[name] - part for name, part in shared.items()}


def _inner(left: Update, right: Update | None) -> Tensor:
    """⟨left, right⟩ over whole updates, ‖left‖² without a right one."""
    parts = [(part * (part if right is None else right[name])).sum() for name, part in left.items()]
    return torch.stack(parts).sum()
