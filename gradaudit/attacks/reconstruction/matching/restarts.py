"""Gradient matching from many starting points at once: what DLG and its successors share.

Signed Adam takes the sign of the gradient before the averages of Adam (Kingma & Ba 2015), as in J.
Geiping et al., "Inverting gradients – how easy is it to break privacy in federated learning?"
(2020), section 4. The rate falls along half a cosine (I. Loshchilov and F. Hutter, "SGDR", 2017,
equation 5, without restarts); that of the paper, to a tenth at three milestones, ends 2 dB lower
on LeNet and residual nets (CIFAR-10 and faces, 200 iterations, two pictures a net).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction import base
from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
)
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator
from gradaudit.attacks.reconstruction.matching.lbfgs import EVALUATIONS, HISTORY, minimise
from gradaudit.attacks.reconstruction.matching.objectives import (
    Distance,
    Evaluation,
    Minimum,
    Objective,
)
from gradaudit.attacks.reconstruction.matching.unknowns import Start, Targets, normal, starts
from gradaudit.errors import NotApplicable, UsageError

_LOOKED_AT = 50
"""Steps between looks at whether any start is left: each makes the CPU wait for a device."""
_EXPLAINED = {torch.float64: 1e-18, torch.float32: 1e-12}
"""Objectives at which an update is explained to the last digit that a square can show."""
_PASSES = 4.0
"""An evaluation differentiates twice."""
_CALLS = 2.0
"""Of a small model, an evaluation and what the optimiser makes of it take as long as two passes."""
_LBFGS, _ADAM = 2 * HISTORY, 6
"""Vectors of the size of a point that an optimiser keeps of each."""


@dataclass(frozen=True)
class StepSize:
    """The length of a step.

    Attributes:
        rate: learning rate of the first steps.
        decay: let it fall to nothing along half a cosine.
        signed: take the gradient's sign first.
    """

    rate: float
    decay: bool = True
    signed: bool = False

    def at(self, iteration: int, iterations: int) -> float:
        """The learning rate of one step, counted from 0."""
        if not self.decay:
            return self.rate
        return self.rate * (1 + cos(pi * iteration / iterations)) / 2


def descend(
    evaluate: Evaluation,
    start: Tensor,
    iterations: int,
    pace: StepSize,
    *,
    project: Callable[[Tensor], Tensor] | None = None,
    advance: Callable[[int], None] = lambda units: None,
) -> Minimum:
    """Minimise one function from several starts; each ends at the best point that it has seen.

    Args:
        evaluate: the function and its gradient, of rows.
        start: (rows, n).
        iterations: steps.
        pace: rate, decay, sign.
        project: brings points (rows, n) back into what is allowed.
        advance: called for every step of every row.
    """
    project = project or torch.clone
    points = project(start)
    optimiser = torch.optim.Adam([points])
    best, values = points.clone(), points.new_full((len(points),), torch.nan)
    broken = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for iteration in range(iterations + 1):
        current, gradients = evaluate(points)
        broken |= ~current.isfinite() | ~gradients.isfinite().all(dim=1)
        better = ~broken & ~(current >= values)
        best = torch.where(better[:, None], points, best)
        values = torch.where(better, current, values)
        if iteration == iterations or (iteration % _LOOKED_AT == 0 and bool(broken.all())):
            break
        gradients = gradients.sign() if pace.signed else gradients
        points.grad = torch.where(broken[:, None], 0, gradients)
        optimiser.param_groups[0]["lr"] = pace.at(iteration, iterations)
        optimiser.step()
        points.copy_(project(points))
        advance(len(points))
    count = torch.full((len(points),), iteration, dtype=torch.int64, device=points.device)
    return Minimum(best, values, broken, count, count + 1)


Precision = Literal["float32", "float64"]


class MatchingOptions(base.ReconstructionOptions):
    """Options of every attack that matches gradients."""

    objective: Distance = Field(
        "l2", description="Distance between updates that is minimised: l2 or cosine."
    )
    tv: float = Field(0.0, ge=0, description="Weight of the total variation of pictures.")
    box: bool = Field(
        False, description="Clip the candidate records to the known range at every step."
    )
    optimiser: Literal["lbfgs", "adam", "signed-adam"] = Field(
        "lbfgs", description="Optimiser of the candidate records."
    )
    iterations: int = Field(
        300,
        ge=1,
        description="Number of optimiser steps; an L-BFGS step has up to 20 inner iterations.",
    )
    rate: float = Field(0.1, gt=0, description="Learning rate of the Adam optimiser.")
    decay: bool = Field(True, description="Reduce the learning rate along half a cosine.")
    init: Start = Field(
        "normal",
        description="Distribution of the starting records: normal, uniform or pattern.",
    )
    adaptive: bool = Field(
        False, description="Compare only the update's nonzero elements, as for a pruned update."
    )
    precision: Precision = Field("float64", description="Floating-point precision of the attack.")


class GradientMatching(Reconstruction[MatchingOptions]):
    """Minimise the distance between a candidate's update and the shared one.

    Every restart ends with the attacker's own objective as its score. Restarts are mapped over
    together, see ``Evaluator``; one that leaves the finite numbers is dropped and said to
    have diverged.
    """

    solves_for_numbers = True
    Options = MatchingOptions

    def labels(self, view: AttackerView, generator: torch.Generator) -> tuple[Tensor | None, str]:
        """The labels that the attack holds fixed, None where it searches them; and their source.

        Raises:
            NotApplicable: the attack has no way to labels here.
        """
        if view.labels is not None:
            return view.labels, "known"
        return self.unknown_labels(view, generator)

    def unknown_labels(
        self, view: AttackerView, generator: torch.Generator
    ) -> tuple[Tensor | None, str]:
        """Return labels found by the attacker, None where it searches them; and their source."""
        return None, "optimised with the records"

    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        """Match gradients from all starting points, which are drawn before the work.

        Raises:
            NotApplicable: there is nothing to match, or labels cannot be had.
            UsageError: options contradict each other or the records.
        """
        self._check(view)
        view = view.in_precision(getattr(torch, self.options.precision))
        options, generator = self.options, execution.generator()
        labels, source = self.labels(view, generator)
        targets = Targets.of(view, labels)
        tv = self.weight_of_tv(view)
        objective = Objective(view, targets, options.objective, tv, options.adaptive)
        apart = torch.Generator().manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        records = starts(view, options.init, self.starts, generator).flatten(1)
        free = normal(self.starts, targets.size, apart).to(records)
        points = torch.cat([records, free], dim=1)
        with execution.progress.task(self.name, self.starts * options.iterations) as advance:
            minimum = self.minimum(objective, points, advance)
        return self._candidates(objective, minimum, source)

    @property
    def _evaluations(self) -> int:
        lbfgs = self.options.optimiser == "lbfgs"
        return self.options.iterations * (EVALUATIONS if lbfgs else 1)

    def steps(self) -> float:
        """Evaluations differentiate twice."""
        return _PASSES * self.starts * self._evaluations

    def calls(self) -> float:
        """Restarts are evaluated together."""
        return _CALLS * self._evaluations

    def minimum(
        self, objective: Objective, points: Tensor, advance: Callable[[int], None]
    ) -> Minimum:
        """The minimum of every restart from points (restarts, unknowns), in order."""
        options, evaluate = self.options, Evaluator(objective)
        lbfgs = options.optimiser == "lbfgs"
        rows = evaluate.rows(len(points), objective.unknowns * (_LBFGS if lbfgs else _ADAM))
        minima = []
        for start in torch.split(points, rows):
            if lbfgs:
                limit = 0.0 if objective.has_prior else _EXPLAINED[objective.view.dtype]
                minima.append(
                    minimise(evaluate, start, options.iterations, tolerance=limit, advance=advance)
                )
            else:
                pace = StepSize(options.rate, options.decay, options.optimiser == "signed-adam")
                inside = objective.inside if options.box else None
                minima.append(
                    descend(
                        evaluate, start, options.iterations, pace, project=inside, advance=advance
                    )
                )
        return Minimum.joined(minima)

    def _candidates(self, objective: Objective, minimum: Minimum, source: str) -> Candidates:
        view = objective.view
        details: dict[str, JsonValue] = {
            "options": self.options.model_dump(mode="json"),
            "evaluations": minimum.evaluations.tolist(),
            "labels_from": source,
        }
        if flat := _flatness(objective, minimum.points):
            details["flat"] = flat
        return Candidates(
            inputs=view.clipped(objective.records(minimum.points)),
            labels=objective.labels(minimum.points),
            scores=minimum.values,
            diverged=minimum.diverged,
            details=details,
        )

    def weight_of_tv(self, view: AttackerView) -> float:
        """The weight α of the total variation."""
        return self.options.tv

    def _check(self, view: AttackerView) -> None:
        options = self.options
        if options.box and options.optimiser == "lbfgs":
            raise UsageError("--box: L-BFGS takes no box; use --optimiser adam or signed-adam")
        if self.weight_of_tv(view) and not view.pictures:
            raise UsageError("--tv: total variation is of pictures, these records are none")
        if options.objective == "l2" and not view.length_known:
            raise NotApplicable(
                f"{self.name} compares lengths, and without --rate that of the difference of two "
                "checkpoints is not known; give --rate, or compare directions: --objective cosine"
            )
        if view.discrete or view.looked_up:
            raise NotApplicable(
                f"{self.name} moves inputs along a gradient; tokens have none to move along"
            )


def _flatness(objective: Objective, points: Tensor) -> str | None:
    """A warning where the objective does not react to the records at all, as behind dead ReLUs."""
    usable = points[points.isfinite().all(dim=1)]
    if not len(usable):
        return None
    _, gradients = Evaluator(objective)(usable[:1].clone())
    records = gradients[:, : objective.view.elements]
    if bool(records.any()):
        return None
    return (
        "the objective has no gradient in the records: the update does not change with them to "
        "first order (piecewise linear units that are off, or layers without a curved activation)"
    )
