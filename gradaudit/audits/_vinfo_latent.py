"""The latent part of vinfo: every attribute in every round, and the correlation at the end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._vinfo_cases import (
    Case,
    drawn_cases,
    records_asked_about,
    why_no_correlation,
)
from gradaudit.audits._vinfo_correlation import (
    Point,
    correlation_rows,
    crossed_rows,
    no_correlation,
)
from gradaudit.audits._vinfo_options import VinfoOptions
from gradaudit.audits._vinfo_rows import AUDIT, Rows, unmeasured, worst
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.data.records import Records
    from gradaudit.inference.layerwise import Layerwise
    from gradaudit.inference.usable import Usable
    from gradaudit.models.target import Layer, Subject, Target
    from gradaudit.sharing.interceptor import Interceptor

_PROBES = 16


def latent_rows(
    subject: "Subject", options: VinfoOptions, progress: Progress
) -> Iterator[Measurement]:
    """Rows of every attribute, round and layer, then the correlation.

    Raises:
        NotApplicable: no attribute is named, or none has two values with enough records.
        UsageError: options contradict each other.
        AuditError: the model cannot be run on the records.
    """
    why = why_no_correlation(subject, options)
    records = records_asked_about(subject, keep=not why)
    cases, refused = drawn_cases(records, options, subject.seed, keep=not why)
    if refused and not why:
        why = "the records do not suffice for an attack of their own"
        cases, refused = drawn_cases(records, options, subject.seed, keep=False)
    if not cases:
        raise NotApplicable("; ".join(refused.values()))
    yield from _Latent(subject, options, records, cases, refused, why).rows(progress)


@dataclass
class _Latent:
    """One run.

    Attributes:
        subject: the run's.
        options: the audit's.
        records: that are looked at.
        cases: attributes with what is drawn for them.
        refused: why others are not measured.
        why: why there is no correlation; empty if there is one.
        points: of the correlation, as they come.
    """

    subject: "Subject"
    options: VinfoOptions
    records: "Records"
    cases: Sequence[Case]
    refused: Mapping[str, str]
    why: str
    points: list[Point] = field(default_factory=list)

    def rows(self, progress: Progress) -> Iterator[Measurement]:
        """All rows."""
        names = list(self.records.attributes)
        newest = len(self.subject.targets)
        sensitivities = self._sensitivities(progress)
        for number, target in enumerate(self.subject.targets, start=1):
            turn: Variant = {} if number == newest else {"round": number}
            rows: list[Measurement] = []
            for case in self.cases:
                variant = self._variant(case.attribute, turn)
                rows.extend(
                    self._of_case(case, target, variant, sensitivities.get(number, {}), progress)
                )
            layers = [layer.name for layer in self.subject.layers]
            for name, reason in self.refused.items():
                rows.extend(unmeasured(self._variant(name, turn), layers, reason))
            yield from worst(rows, names) if len(names) > 1 else ()
            yield from rows
        if self.why:
            yield no_correlation(self.why)
        else:
            yield from correlation_rows(self.points)
            yield from crossed_rows(self.points)

    def _variant(self, attribute: str, turn: Variant) -> Variant:
        return {**turn, "attribute": attribute} if len(self.records.attributes) > 1 else turn

    def _of_case(
        self,
        case: Case,
        target: "Target",
        variant: Variant,
        sensitivities: Mapping[str, Mapping[str, float]],
        progress: Progress,
    ) -> Iterator[Measurement]:
        """An attribute's rows in one round."""
        from gradaudit.inference.spread import Sampled
        from gradaudit.inference.usable import Estimator

        work = self._layerwise(case, target)
        mine = Estimator(self.options.members, self.options.prior, self.options.paper, curve=True)
        real = work.usable(case.real, mine, progress, f"{AUDIT} {case.attribute}")
        permuted = work.usable(case.permuted, mine, progress, f"{AUDIT} {case.attribute}, permuted")
        other = self.options.attacker
        attack = replace(work, seed=case.attack).usable(
            case.independent, Estimator((other,)), progress, f"{AUDIT} {case.attribute}, attack"
        )
        facts = self._facts(case, work)
        rows = Rows(variant, facts, Sampled.of(case.real[0]), self._reductions())
        for layer in self.subject.layers:
            name = layer.name
            yield from rows.of(name, real[name], permuted[name], case.why)
            if attack[name]:
                apart = replace(rows, sampled=Sampled.of(case.independent[0]))
                yield apart.independent(name, attack[name], other)
                self.points.append(
                    _point(variant, name, real[name], attack[name], sensitivities.get(name, {}))
                )

    def _layerwise(self, case: Case, target: "Target") -> "Layerwise":
        from gradaudit.inference.layerwise import Layerwise
        from gradaudit.sharing.interceptor import Interceptor
        from gradaudit.sharing.options import parse_reduction

        sharing = self.options.sharing(self.subject.defenses, self.subject.hidden)

        def observe(layers: "Sequence[Layer]") -> "Interceptor":
            return Interceptor(
                target,
                self.records,
                layers,
                sharing=sharing,
                reduce=self.options.reduce,
                memory=self.subject.memory,
                seed=self.subject.seed,
            )

        return Layerwise(
            observe,
            self.subject.layers,
            parse_reduction(self.options.reduce),
            sharing.others,
            case.seed,
            self.subject.jobs,
        )

    def _facts(self, case: Case, work: "Layerwise") -> dict[str, JsonValue]:
        """What every row of a case says."""
        first = case.real[0]
        facts: dict[str, JsonValue] = {
            "attribute": case.attribute,
            "values": case.values,
            "prior": self.options.prior,
            "families": [*self.options.members, "prior"],
            "batch_size": self.options.batch_size,
            "turns": len(first.parts) - 1,
            "batches": _roles([len(each.labels) for each in first.batches]),
            "records": _roles([len(part) for part in first.parts]),
        }
        if self.options.paper:
            from gradaudit.families.forest import ceiling

            facts["ceiling"] = ceiling(case.values)
        notes = "; ".join(sorted(work.notes))
        return facts | ({"coupling": notes} if notes else {})

    def _reductions(self) -> dict[str, str]:
        """What each layer's gradient is reduced by."""
        from gradaudit.sharing.options import parse_reduction, reduction_for

        asked = parse_reduction(self.options.reduce)
        sharing = self.options.sharing(self.subject.defenses, self.subject.hidden)
        return {
            layer.name: str(
                reduction_for(sharing.visible(layer.parameters), asked, self.subject.memory)
            )
            for layer in self.subject.layers
        }

    def _sensitivities(self, progress: Progress) -> dict[int, dict[str, dict[str, float]]]:
        """Sensitivities by round, layer and metric, where they are to be correlated."""
        if self.why or not self.options.sensitivities:
            return {}
        from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions

        found: dict[int, dict[str, dict[str, float]]] = {}
        audit = Sensitivity(SensitivityOptions(probes=_PROBES))
        for row in audit.run(self.subject, progress):
            if row.value is not None and row.layer is not None and "share" not in row.metric:
                number = int(row.variant.get("round", len(self.subject.targets)))
                of_layer = found.setdefault(number, {}).setdefault(row.layer, {})
                of_layer[row.id] = row.value
        return found


def _roles(sizes: Sequence[int]) -> list[JsonValue]:
    """What of the folds fits and chooses in the first turn, and what scores."""
    choosing, *fitting, scoring = sizes
    return [sum(fitting), choosing, scoring]


def _point(
    case: Variant,
    layer: str,
    real: "Sequence[Usable]",
    attack: "Sequence[Usable]",
    sensitivities: Mapping[str, float],
) -> Point:
    """A layer's numbers: untruncated means."""
    information = sum(each.information for each in real) / len(real)
    auroc = sum(each.auroc for each in attack) / len(attack)
    return Point(case, {f"{AUDIT}.vinfo": information, **sensitivities}, auroc, layer)
