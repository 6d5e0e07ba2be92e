"""Rules on floors as formulas of the noise, so that no noise level needs a measurement.

Layers' informations add up over the variances of their noise, so those at noise of deviation one,
measured once, give the floor of every protection (``gradaudit.audits.floor.van_trees``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Self

from gradaudit.audits.floor import Floor
from gradaudit.audits.floor.functionals import Functional
from gradaudit.audits.floor.information import Information, sum_of_layers
from gradaudit.audits.floor.measure import FUNCTIONALS, case_of
from gradaudit.audits.floor.noisy_update import NoisyUpdate
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.core.statistics.laws import student_quantile
from gradaudit.errors import AuditError, UsageError
from gradaudit.judging import Rule
from gradaudit.judging.policy import layer_matches
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.subject import Subject

Noise = Mapping[str, float]
"""Logarithm of the standard deviation of each shared layer's noise."""


@dataclass(frozen=True)
class FloorBound:
    """A rule on the floor of a layer or of the model, for any noise.

    Margins are over the size of the rule's limit, and negative where the number is beyond it.

    Attributes:
        row: the layer that it is about; None for the model.
        limit: of the rule.
        sign: 1 where the number is to stay below it, −1 above.
        functional: computes the number from the information that the layers give together.
        informations: information matrix of each layer that counts, at noise of deviation one.
        prior: prior of the records, in whose directions the matrices are given.
        halves: the same by independent halves of the records.
        parts: number of parts of the other records, on each of which a plan is verified.
    """

    row: str | None
    limit: float
    sign: int
    functional: Functional
    informations: Mapping[str, Information]
    prior: GaussianPrior
    halves: tuple[Self, ...] = ()
    parts: int = 2

    def margin(self, noise: Noise) -> tuple[float, dict[str, float]]:
        """Returns the margin at the mean information, and its derivative by each layer's log σ."""
        parts = self._shared(noise)
        if not parts:
            return math.inf, {}
        value, slope = self.functional(sum_of_layers(parts.values()).mean, self.prior)
        slopes = {name: -2 * float((slope * part.mean).sum()) for name, part in parts.items()}
        return self._within(value), {n: -self.sign * s / self._size for n, s in slopes.items()}

    def safe(self, noise: Noise) -> float:
        """Returns the margin at the floor's safe end, reduced by its deviation on other records."""
        parts = self._shared(noise)
        if not parts:
            return math.inf
        floor = van_trees_bound(self.functional, sum_of_layers(parts.values()), self.prior)
        return self._within(floor.safe) - self._drift(noise)

    def _drift(self, noise: Noise) -> float:
        """Returns the distance that the margin on other records exceeds in at most 2.5 % of cases.

        A floor stands on the prior fitted to the records. With v the variance that n records bring
        with them, those of n/2 differ from their whole by v, and k parts of n others by (k + 1) v.
        """
        if not self.halves:
            return 0.0
        margin = self.margin(noise)[0]
        squares = [(half.margin(noise)[0] - margin) ** 2 for half in self.halves]
        variance = (self.parts + 1) * sum(squares) / len(squares)
        return student_quantile(len(squares)) * math.sqrt(variance)

    def _shared(self, noise: Noise) -> dict[str, Information]:
        """Returns the information matrices of the shared layers under this noise."""
        if self.row is not None and self.row not in noise:
            return {}
        return {n: p * math.exp(-2 * noise[n]) for n, p in self.informations.items() if n in noise}

    def _within(self, value: float) -> float:
        return self.sign * (self.limit - value) / self._size

    @property
    def _size(self) -> float:
        return abs(self.limit) or 1.0


@dataclass(frozen=True)
class FloorBounds:
    """All rules on floors.

    Attributes:
        floors: the bounds.
        hopeless: layers that a rule names and that have no floor at any noise level.
    """

    floors: tuple[FloorBound, ...] = ()
    hopeless: frozenset[str] = frozenset()

    @classmethod
    def of(cls, audit: Floor, subject: Subject, rules: Sequence[Rule], progress: Progress) -> Self:
        """Returns the bounds of a subject whose layers have independent noise of deviation one.

        Raises:
            AuditError: something is shared that cannot be protected, or gradients are not finite.
            NotApplicable: there is no prior for such inputs, or too few draws.
            UsageError: a rule is on another number of floors.
        """
        case = case_of(audit, subject)
        _expect_protectable(case.layers, subject.layers)
        with progress.task("floor", len(case.labels)) as advance:
            known = case.informations(subject, advance, subject.workers)
        for name, parts in known.items():
            if not parts.finite:
                raise AuditError(f"{name}: its gradients are not finite, so that it has no floor")
        shown = [layer.name for layer in subject.layers]
        asked = {row for row in (*shown, None) if any(_asks(rule, row) for rule in rules)}
        hopeless = {n for n in shown if n not in known and (n in asked or None in asked)}
        return cls(tuple(_bounds(case, known, shown, rules)), frozenset(hopeless))

    def varied(self, halves: Sequence[Self], parts: int) -> Self:
        """Returns each bound with the same bounds from halves of the records."""
        by_half = zip(*(half.floors for half in halves), strict=True)
        bounds = zip(self.floors, by_half, strict=True)
        return replace(
            self, floors=tuple(replace(bound, halves=other, parts=parts) for bound, other in bounds)
        )

    @property
    def layers(self) -> frozenset[str]:
        """Names the layers that a rule is about."""
        return self.hopeless.union(*(bound.informations for bound in self.floors))


def _expect_protectable(shared: Sequence[Layer], shown: Sequence[Layer]) -> None:
    known = {layer.name for layer in shown}
    others = [layer.name for layer in shared if layer.name not in known]
    if others:
        raise AuditError(
            f"{', '.join(others)}: shared, and not among the layers that may be protected; "
            "name them too (--layers), or hide them (--hide)"
        )


def _bounds(
    case: NoisyUpdate, known: Mapping[str, Information], shown: Sequence[str], rules: Sequence[Rule]
) -> Iterator[FloorBound]:
    by_name = {layer.name: layer for layer in case.layers}
    for rule in rules:
        numbers = [
            f for n, f in FUNCTIONALS.items() if fnmatchcase(f"{Floor.name}.{n}", rule.metric)
        ]
        if not numbers:
            raise UsageError(f"{rule.metric}: no plan is made for it; ask for mse_share or nats")
        for functional in numbers:
            for row in (row for row in (*shown, None) if _asks(rule, row)):
                layers = case.layers if row is None else [by_name[row]]
                names = {layer.name for layer in layers}
                if information := {name: known[name] for name in known if name in names}:
                    yield FloorBound(
                        row, rule.limit, rule.sign, functional, information, case.prior
                    )


def _asks(rule: Rule, row: str | None) -> bool:
    return any(layer_matches(row, glob) for glob in rule.layers)
