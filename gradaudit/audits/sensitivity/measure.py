"""Measures the sensitivity of every layer's gradient, and makes rows of it."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.sensitivity import (
    READINGS,
    JacobianNorm,
    NormName,
    Quantile,
    Reacting,
    Sensitivity,
)
from gradaudit.audits.sensitivity.jacobian_sensitivity import (
    AFFORDABLE,
    MOST_LABELS,
    PROBES,
    DifferentiableTarget,
    Sample,
    VariableSensitivity,
    joined,
)
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.intervals import (
    FloatArray,
    bootstrap_counts,
    fewest_values,
    quantile_interval,
    ratio_interval,
    student,
)
from gradaudit.core.text import UNBOUNDED
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.differentiation import Variable
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Status
from gradaudit.subject import Subject, defenses_note

_UNSHOWN = {
    "1": "the 1-norm was not estimated beside {} probes; --one-norm does",
    "inf": "{} probes do not show the largest entry; --probes 0 measures it",
}
_ONE_ELEMENT = "its gradient has one element, which has no range to divide by"
_STILL = "no layer's gradient reacts, so there is nothing to have a share in"
_ESTIMATORS = {
    True: "Gaussian directions, the same for every record; chi-square interval (Satterthwaite)",
    False: "columns drawn without replacement, the same for every record; Student's interval",
}
_RECORDS = 40
"""Enough to bound the upper decile over records, by probes too."""
_LABEL_RECORDS = 256
_OF_RECORDS = 0.8
"""Share of an end's probability of error that is the drawn records', where there are probes too."""
_CHEAP = 1e10
"""Multiply-adds of forward passes that more records for the label may take; some seconds."""
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"
_VARIABLES: Mapping[Reacting, Variable] = {"input": "point", "label": "target"}
_MANY_CONFIDENT = 0.1
"""Share of records that the model is sure of, by which the mean of label sensitivities is large."""


def rows_of(
    rows: Rows, reacting: Reacting, layers: Sequence[str], measured: VariableSensitivity, seed: int
) -> Iterator[Measurement]:
    """Yield rows of every reading, norm and layer, including those without a number."""
    for reading in READINGS:
        if reading.reacting != reacting:
            continue
        norms = measured.bounded if reading.bounded else measured.raw
        samples = {
            layer: by_norm[reading.norm]
            for layer, by_norm in norms.items()
            if reading.norm in by_norm and by_norm[reading.norm].defined.any()
        }
        for layer in samples:
            made = _RowsOfSample(rows, reading, layer, samples, measured.method)
            yield from made.of(seed)
        for layer in layers:
            if layer not in samples:
                status, reason, details = _why_not(measured, norms.get(layer), reading.norm)
                yield from rows.unmeasured(status, reason, reading.metrics, [layer], details)


@dataclass(frozen=True)
class _RowsOfSample:
    """Makes the rows of one reading of one layer, with what was measured of every layer."""

    rows: Rows
    reading: JacobianNorm
    layer: str
    samples: Mapping[str, Sample]
    method: str

    @property
    def sample(self) -> Sample:
        return self.samples[self.layer]

    def of(self, seed: int) -> Iterator[Measurement]:
        """Yield the mean, its share in the sum of all layers' means, and the quantiles."""
        sample, reading = self.sample, self.reading
        yield self.rows.measured(
            reading.metric,
            sample.mean,
            layer=self.layer,
            n=len(sample.values),
            details={**self._facts, **self._known_to(seed), **self._beside, **self._warning},
        )
        yield self._share(seed)
        for metric, quantile in reading.quantiles.items():
            yield self._quantile(metric, quantile)

    @property
    def _facts(self) -> dict[str, JsonValue]:
        """Collect facts: the probes behind the number, and records left out as their range is 0."""
        sample, taken = self.sample, "all columns"
        if not sample.exact:
            count, columns = sample.parts.shape[1], sample.columns
            of = f"{count} directions" if columns is None else f"{count} of {columns:,} columns"
            taken = f"estimated from {of}"
        return {"method": f"{taken}, {self.method}", "undefined": _undefined(sample)}

    @property
    def _beside(self) -> dict[str, JsonValue]:
        """Collect the details of a mean: the median of the records, and the probes' error."""
        sample = self.sample
        details: dict[str, JsonValue] = {"median": statistics.median(sample.values.tolist())}
        if not sample.exact:
            details["estimate"] = {
                "method": _ESTIMATORS[sample.squared],
                "probes": sample.parts.shape[1],
                "interval": list(sample.interval()),
                "confidence": CONFIDENCE,
            }
        return details

    def _known_to(self, seed: int) -> dict[str, JsonValue]:
        """Bound the mean by the bootstrap over new records and probes; no limit uses it."""
        sample = self.sample
        draws = bootstrap_counts(len(sample.defined), seed)
        interval = ratio_interval(_numbers(sample), sample.defined.astype(float), draws)
        if interval is not None and not sample.exact:
            interval = joined(sample.mean, interval, sample.interval())
        return {"known_to": interval and list(interval)}

    @property
    def _warning(self) -> dict[str, JsonValue]:
        """Make a warning where few records dominate the mean; else an empty dictionary."""
        values, confident = self.sample.values, self.rows.facts.get("confident_share")
        share = float(values.max() / values.sum()) if values.any() else 0.0
        by_label = self.reading.reacting == "label"
        sure = confident if isinstance(confident, float) and by_label else 0.0
        if len(values) > 2 and share > 0.5:
            what = f"one record makes up {share:.0%} of the mean"
        elif sure >= _MANY_CONFIDENT:
            what = f"the model is nearly certain of the label of {sure:.0%} of the records"
        else:
            return {}
        return {"warning": f"{what}; read the median"}

    def _share(self, seed: int) -> Measurement:
        """Make the row of the share; its interval is for new records, and for new probes."""
        sample, metric = self.sample, self.reading.share
        total = sum(each.mean for each in self.samples.values())
        if total == 0:
            return next(self.rows.skipped(_STILL, [metric], [self.layer]))
        share, every = sample.mean / total, self.samples.values()
        together = np.sum([_numbers(each) / each.defined.mean() for each in every], axis=0)
        draws = bootstrap_counts(len(together), seed)
        interval = ratio_interval(_numbers(sample) / sample.defined.mean(), together, draws)
        if interval is not None and not sample.exact:
            probes = np.sum([each.by_probe for each in every], axis=0)
            estimate = float(sample.by_probe.mean() / probes.mean())
            of_probes = student(estimate + (sample.by_probe - estimate * probes) / probes.mean())
            interval = joined(share, interval, (max(of_probes[0], 0.0), of_probes[1]))
        if interval is not None:
            interval = min(interval[0], share), max(min(interval[1], 1.0), share)
        return self.rows.measured(
            metric,
            share,
            layer=self.layer,
            interval=interval,
            n=len(sample.values),
            details={**self._facts, "of": f"the sum over {len(self.samples)} shown layers"},
        )

    def _quantile(self, metric: str, quantile: Quantile) -> Measurement:
        """Make the row of a quantile over the population of records, with its exact interval.

        An end's probability of error is parted between the drawn records and the probes.
        """
        sample, tail = self.sample, (1 - CONFIDENCE) / 2
        of_records = tail if sample.exact else tail * _OF_RECORDS
        ends = sample.each_within(tail - of_records)
        interval, count, few = (
            quantile_interval(*ends, quantile.share, of_records),
            len(ends[0]),
            "",
        )
        if interval[1] == UNBOUNDED:
            bound = f"records bound the {quantile.title.lower()} from below only"
            needed = fewest_values(quantile.share, of_records)
            few = f"{count} {bound}; look at {needed} or more (--samples)"
        return self.rows.measured(
            metric,
            float(np.quantile(sample.values, quantile.share)),
            layer=self.layer,
            interval=interval,
            n=count,
            imprecise=few,
            details=self._facts,
        )


def _numbers(sample: Sample) -> FloatArray:
    """Spread the norms over all records, (records,), with zero for those that are undefined."""
    numbers = np.zeros(len(sample.defined))
    numbers[sample.defined] = sample.values
    return numbers


def _undefined(sample: Sample) -> int:
    return int((~sample.defined).sum())


def _why_not(
    measured: VariableSensitivity, by_norm: Mapping[NormName, Sample] | None, norm: NormName
) -> tuple[Status, str, dict[str, JsonValue]]:
    """Give the status and reason of a missing number, and how many records are undefined."""
    if by_norm is None:
        return "skipped", _ONE_ELEMENT, {}
    if not by_norm:
        return "failed", "some record's gradient or its Jacobian is not finite", {}
    if norm not in by_norm:
        reason = _UNSHOWN[norm].format(measured.probes)
        return "skipped", reason, {}
    reason = "every record's gradient has range zero, but moves: nothing to divide by"
    return "failed", reason, {"undefined": _undefined(by_norm[norm])}


def gradients(audit: Sensitivity, subject: Subject) -> float:
    """Count a pass for every direction of every record.

    Without ``--probes`` Jacobians are exact if they are affordable.
    """
    columns, probes = _columns(subject), audit.options.probes
    records = min(subject.samples or _RECORDS, len(subject.records))
    if probes is None:
        exact = 2 * AFFORDABLE / (subject.forward_operations * records)
        directions = sum(size if size <= exact else min(size, 2 * PROBES) for size in columns)
    else:
        taken = (1 + audit.options.one_norm) * probes or max(columns)
        directions = sum(min(size, taken) for size in columns)
    return float(directions * records * len(subject.targets))


def _columns(subject: Subject) -> tuple[int, int]:
    """Count the columns of a record's Jacobians by input and label, where few enough."""
    records = subject.records
    label = max(math.prod(records.labels.shape[1:]), 1)
    if not records.labels.is_floating_point():
        label *= len(records.classes) or MOST_LABELS
    return records.inputs[0].numel(), label if label <= MOST_LABELS else 2 * PROBES


def run(audit: Sensitivity, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        AuditError: the model cannot be run on the records.
        NotApplicable: its outputs or its loss are functions of several records.
    """
    for target, variant in by_round(subject):
        for reacting, observed in _observed(audit, target, subject):
            facts = _facts(observed) | defenses_note(subject, _UNDEFENDED)
            rows, names = Rows(type(audit), variant, facts), [x.name for x in observed.layers]
            try:
                measured = observed.jacobian_sensitivity(
                    _VARIABLES[reacting],
                    audit.options.probes,
                    one_norm=audit.options.one_norm,
                    seed=subject.seed,
                    memory=subject.memory,
                    progress=progress,
                    workers=subject.workers,
                )
            except (NotApplicable, AuditError) as why:
                readings = [reading for reading in READINGS if reading.reacting == reacting]
                metrics = [name for reading in readings for name in reading.metrics]
                yield from rows.without(why, metrics, names)
            else:
                yield from rows_of(rows, reacting, names, measured, subject.seed)


def _observed(
    audit: Sensitivity, target: Target, subject: Subject
) -> Iterator[tuple[Reacting, DifferentiableTarget]]:
    shown = {layer.name for layer in subject.layers}
    every = layers_of(target.model, with_bias=audit.options.with_bias)
    layers = tuple(layer for layer in every if layer.name in shown)
    observed = DifferentiableTarget.of(target, layers, subject.sample(_RECORDS), subject.seed)
    yield "input", observed
    if subject.samples is None:
        count = _RECORDS
        with suppress(GradauditError):  # the rows will say it
            count = min(_LABEL_RECORDS, max(_RECORDS, observed.within(_CHEAP, "target")))
        records = subject.sample(count)
        if len(records) > len(observed.inputs):
            observed = DifferentiableTarget.of(target, layers, records, subject.seed)
    yield "label", observed


def _facts(observed: DifferentiableTarget) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {"records": len(observed.inputs)}
    if observed.confident is not None:
        facts["confident_share"] = observed.confident
    return facts
