"""Makes rows of every attribute in every round, then of the correlation; or of the input."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.sensitivity import READINGS, Sensitivity, SensitivityOptions
from gradaudit.audits.sharing_options import reductions
from gradaudit.audits.vinfo import LATENT, ORIGINAL, Vinfo, VinfoOptions
from gradaudit.audits.vinfo.attribute import (
    METRIC,
    AttributeRows,
    LayerPoint,
    correlation_rows,
    worst,
)
from gradaudit.audits.vinfo.cases import (
    ENOUGH_TO_KEEP,
    MEMBER,
    RECORDS,
    AttributeCase,
    drawn_cases,
    records_asked_about,
    why_no_correlation,
)
from gradaudit.audits.vinfo.original import original_passes, original_rows
from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.audits.vinfo.spread import RecordUse
from gradaudit.audits.vinfo.v_information import Estimator, FeatureRows, UsableInformation, estimate
from gradaudit.core.randomness import number, rng, sequence
from gradaudit.data.records import Records, with_rare_merged
from gradaudit.errors import TooFewRecords
from gradaudit.executors.workers import Task, shared_out
from gradaudit.families import sizes
from gradaudit.families.forest import ceiling
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.report import LEARNERS, Measurement, Variant
from gradaudit.sharing.context import context_of
from gradaudit.sharing.draws import draws_of_others
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.reduction import Reduction, parse_reduction
from gradaudit.subject import SINGLE, Subject

_TOGETHER = 8
"""Repetitions whose batches are observed in one pass over the records."""
Observe = Callable[[Sequence[Layer]], Interceptor]
_MEANS = frozenset(reading.metric for reading in READINGS)
_PROBES = 16
_FIT = 100.0
"""Calls of a layer that a repetition's fits on it take as long as, about."""
_ROLES = 3.5
"""Batches in a repetition for each that is fitted on: half as many choose, twice as many score."""


@dataclass(frozen=True)
class Layerwise:
    """The estimates of every layer.

    Attributes:
        observe: makes the interceptor of some layers.
        others: how many other clients' updates each batch's is mixed with. They draw from the set
            of the batch, so that no record is in two sets.
        seed: root of defenses' noise and of fits.
        jobs: worker processes; the numbers do not depend on them.
        notes: what is to be said of how updates were computed.
    """

    observe: Observe
    layers: Sequence[Layer]
    reduction: Reduction | None
    others: int
    seed: np.random.SeedSequence
    jobs: int
    notes: set[str] = field(default_factory=set)

    def usable(
        self, planned: Sequence[Repetition], adversary: Estimator, progress: Progress, title: str
    ) -> dict[str, list[UsableInformation]]:
        """Estimate each layer's usable information, once for each repetition."""
        estimates: dict[str, list[UsableInformation]] = {layer.name: [] for layer in self.layers}
        if not planned:
            return estimates
        total, names = len(planned) * len(self.layers), list[str]()

        def tasks() -> Iterator[Task[UsableInformation]]:
            for layer, repetition_rows in self._observed(planned):
                for repetition, rows in repetition_rows:
                    fits = self._fits(layer, repetition)
                    names.append(layer.name)
                    yield partial(estimate, rows, repetition, adversary, fits)

        with progress.task(title, total) as advance:
            found = shared_out(tasks(), self.jobs, advance)
        for name, usable in zip(names, found, strict=True):
            estimates[name].append(usable)
        return estimates

    def _observed(
        self, planned: Sequence[Repetition]
    ) -> Iterator[tuple[Layer, list[tuple[Repetition, FeatureRows]]]]:
        """Yield each layer with the features of some repetitions, in order.

        Principal components are fitted on the adversary's records of each repetition alone.
        """
        fitted = self.reduction is not None and self.reduction.kind == "pca"
        together = 1 if fitted else _TOGETHER
        interceptor = self.observe(self.layers)
        for start in range(0, len(planned), together):
            group = planned[start : start + together]
            drawn = [
                np.concatenate([part.indices for part in repetition.batches])
                for repetition in group
            ]
            ends = np.cumsum(list(map(len, drawn)))[:-1]
            for layer, rows in interceptor.features(
                np.concatenate(drawn),
                fit=group[0].adversary if fitted else None,
                seed=number(self.seed, "updates", *group[0].words),
                others=np.concatenate([self._others(repetition) for repetition in group]),
            ):
                self.notes.update({interceptor.note} - {""})
                yield layer, list(zip(group, np.split(rows.numpy(), ends), strict=True))

    def _others(self, repetition: Repetition) -> NDArray[np.int64]:
        """Draw other clients' records for each batch, (batches, others, k)."""
        generator = rng(self.seed, "others", *repetition.words)
        drawn = [
            draws_of_others(batches.indices, self.others, np.sort(part), generator)
            for batches, part in zip(repetition.batches, repetition.parts, strict=True)
        ]
        return np.concatenate(drawn)

    def _fits(self, layer: Layer, repetition: Repetition) -> np.random.SeedSequence:
        return sequence(self.seed, "fits", layer.name, *repetition.words)


Sensitivities = Mapping[str, Mapping[str, float]]
"""Numbers by layer and metric."""


def run(audit: Vinfo, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: no attribute is named, or none has two values with enough records.
        UsageError: options contradict each other.
        AuditError: the model cannot be run on the records.
    """
    layers = [layer.name for layer in subject.layers]
    if audit.options.original:
        rows = original_rows(subject, audit.options, progress)
        why = "--original asks about the input alone"
        return itertools.chain(rows, Rows(Vinfo).skipped(why, LATENT, layers))
    rows = _latent(subject, audit.options).rows(progress)
    return itertools.chain(rows, Rows(Vinfo).skipped("not asked for: --original", ORIGINAL, layers))


def gradients(audit: Vinfo, subject: Subject) -> float:
    """Count the gradients, in single precision, once for eight repetitions, and all fits."""
    options = audit.options
    if options.original:
        return original_passes(subject, options)
    attributes = subject.attributes or ((MEMBER,) if subject.records.members is not None else ())
    cases = len(subject.targets) * len(attributes)
    if not cases:
        return 0.0
    alone = why_no_correlation(subject, options)
    records = min(subject.samples or (RECORDS if alone else ENOUGH_TO_KEEP), len(subject.records))
    asked, played = parse_reduction(options.reduce), options.repeats + options.permuted_repeats
    turned = asked is not None and asked.kind == "pca"
    values = [len(subject.records.attributes[name].values) for name in subject.attributes]
    updates = played * options.batches * max(values, default=2) * _ROLES
    passes = records * (played if turned else max(played / _TOGETHER, 2))
    looked_at = len(subject.layers) / len(subject.target.layers)
    fits = looked_at * len(options.members) * played
    gradients = SINGLE * (passes + options.local_passes(updates, options.batch_size))
    return cases * (gradients + subject.waiting(_FIT * fits))


@dataclass
class _Latent:
    """The records and attributes of one run, with the draws for them and refused attributes.

    ``why`` says why there is no correlation, and is empty if there is one.
    """

    subject: Subject
    options: VinfoOptions
    records: Records
    merged: Mapping[str, tuple[str, ...]]
    cases: Sequence[AttributeCase]
    refused: Mapping[str, str]
    why: str
    points: list[LayerPoint] = field(default_factory=list)

    def rows(self, progress: Progress) -> Iterator[Measurement]:
        """Yield rows of every attribute, round and layer, then of the correlation."""
        names = list(self.records.attributes)
        layers = [layer.name for layer in self.subject.layers]
        sensitivities = self._sensitivities(progress)
        for target, turn in by_round(self.subject):
            of_round = Rows(Vinfo, turn)
            rows: list[Measurement] = []
            for case in self.cases:
                of_layers = sensitivities.get(turn.get("round"), {})
                variant = self._variant(case.attribute)
                rows += self._of_case(case, target, of_round.of(variant), of_layers, progress)
            for name, reason in self.refused.items():
                rows += of_round.of(self._variant(name)).skipped(reason, LATENT, layers)
            yield from worst(rows, names) if len(names) > 1 else ()
            yield from rows
        if self.why:
            yield from Rows(Vinfo).skipped(self.why, [METRIC])
        else:
            yield from correlation_rows(self.points)

    def _variant(self, attribute: str) -> Variant:
        return {"attribute": attribute} if len(self.records.attributes) > 1 else {}

    def _of_case(
        self,
        case: AttributeCase,
        target: Target,
        rows: Rows,
        sensitivities: Sensitivities,
        progress: Progress,
    ) -> Iterator[Measurement]:
        options, title = self.options, f"{Vinfo.name} {case.attribute}"
        work = Layerwise(
            partial(self._interceptor, target),
            self.subject.layers,
            parse_reduction(options.reduce),
            self._sharing.others,
            case.seed,
            self.subject.jobs,
        )
        adversary = Estimator(options.members, options.prior, options.paper)
        real = work.usable(case.real, adversary, progress, title)
        permuted = work.usable(case.permuted, adversary, progress, f"{title}, permuted")
        attack = replace(work, seed=case.attack).usable(
            case.independent, Estimator((options.attacker,)), progress, f"{title}, attack"
        )
        facts = self._facts(case, work)
        reduced = reductions(
            self.subject.layers, self._sharing, options.reduce, self.subject.memory
        )
        measured = AttributeRows(rows, facts, RecordUse.of(case.real[0]), reduced)
        for layer in self.subject.layers:
            name = layer.name
            yield from measured.of(name, real[name], permuted[name], case.why)
            if attack[name]:
                apart = replace(measured, sampled=RecordUse.of(case.independent[0]))
                yield apart.independent(name, attack[name], options.attacker)
                information = sum(usable.information for usable in real[name]) / len(real[name])
                numbers = {f"{Vinfo.name}.vinfo": information, **sensitivities.get(name, {})}
                auroc = sum(usable.auroc for usable in attack[name]) / len(attack[name])
                self.points.append(LayerPoint(rows.variant, numbers, auroc, name))

    @cached_property
    def _sharing(self) -> SharingProtocol:
        return self.options.sharing(self.subject.defenses, self.subject.hidden)

    def _interceptor(self, target: Target, layers: Sequence[Layer]) -> Interceptor:
        subject = self.subject
        of = target, self.records
        return Interceptor(
            *of,
            layers,
            sharing=self._sharing,
            reduce=self.options.reduce,
            memory=subject.memory,
            seed=subject.seed,
            context=context_of(subject.latest, *of, self._sharing, memory=subject.memory),
        )

    def _facts(self, case: AttributeCase, work: Layerwise) -> dict[str, JsonValue]:
        first = case.real[0]
        facts: dict[str, JsonValue] = {
            "attribute": case.attribute,
            "values": case.values,
            "prior": self.options.prior,
            "families": [*self.options.members, "prior"],
            LEARNERS: sizes(self.options.members),
            "batch_size": self.options.batch_size,
            "turns": len(first.parts) - 1,
            "batches": _roles([len(batches.labels) for batches in first.batches]),
            "records": _roles([len(part) for part in first.parts]),
        }
        if case.attribute in self.merged:
            facts["merged_values"] = list(self.merged[case.attribute])
        if self.options.paper:
            facts["ceiling"] = ceiling(case.values)
        notes = "; ".join(sorted(work.notes))
        return facts | ({"coupling": notes} if notes else {})

    def _sensitivities(self, progress: Progress) -> Mapping[object, Sensitivities]:
        """Measure sensitivities by round (None for the newest), where they are correlated."""
        if self.why or not self.options.sensitivities:
            return {}
        by_turn: dict[object, dict[str, dict[str, float]]] = {}
        audit = Sensitivity(SensitivityOptions(probes=_PROBES))
        for row in audit.run(self.subject, progress):
            if row.value is not None and row.layer is not None and row.metric in _MEANS:
                of_round = by_turn.setdefault(row.variant.get("round"), {})
                of_round.setdefault(row.layer, {})[row.id] = row.value
        return by_turn


def _latent(subject: Subject, options: VinfoOptions) -> _Latent:
    """Draw the repetitions for every attribute.

    Raises:
        NotApplicable: no attribute is named, or none has two values with enough records.
    """
    why = why_no_correlation(subject, options)
    asked = records_asked_about(subject, keep=not why)
    records, merged = with_rare_merged(asked, options.merge_rare)
    cases, refused = drawn_cases(records, options, subject.seed, keep=not why)
    if refused and not why:
        why = "the records do not suffice for an attack of their own"
        cases, refused = drawn_cases(records, options, subject.seed, keep=False)
    if not cases:
        raise TooFewRecords("; ".join(refused.values()))
    return _Latent(subject, options, records, merged, cases, refused, why)


def _roles(sizes: Sequence[int]) -> list[JsonValue]:
    """Count the records that fit, that choose and that score in the first turn."""
    choosing, *fitting, scoring = sizes
    return [sum(fitting), choosing, scoring]
