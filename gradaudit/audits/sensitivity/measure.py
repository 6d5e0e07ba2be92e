"""Measures the sensitivity of every layer's gradient, and makes rows of it."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.base import AuditCost
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
    MOST_LABELS,
    PROBES,
    Array,
    DifferentiableTarget,
    Sample,
    VariableSensitivity,
    joined,
)
from gradaudit.core.text import UNBOUNDED
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.differentiation import Variable
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Status
from gradaudit.statistics import CONFIDENCE
from gradaudit.statistics.intervals import (
    bootstrap_counts,
    fewest_values,
    quantile_interval,
    ratio_interval,
    student,
)
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
_PREPARING, _PASSES_A_DIRECTION, _SECONDS_A_LAYER = 4, 1.0, 0.06
"""Measured on Swin and ViT-B/16 at 224×224 and on GPT-2: 0.7 to 1.2 passes a direction."""
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"
_VARIABLES: Mapping[Reacting, Variable] = {"input": "point", "label": "target"}
_MANY_CONFIDENT = 0.1
"""Share of records that the model is sure of, by which the mean of label sensitivities is large."""


class _All(NamedTuple):
    """All layers together: their number, the sum of their means, and each probe's estimate."""

    layers: int
    mean: float
    probes: Array

    @classmethod
    def of(cls, samples: Mapping[str, Sample]) -> Self:
        """Compute the sums over at least one layer."""
        return cls(
            len(samples),
            sum(sample.mean for sample in samples.values()),
            np.sum([sample.by_probe for sample in samples.values()], axis=0),
        )


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
        if samples:
            yield from _rows_of_reading(rows, reading, samples, measured.method, seed)
        for layer in layers:
            if layer not in samples:
                status, reason, details = _why_not(measured, norms.get(layer), reading.norm)
                yield from rows.unmeasured(status, reason, reading.metrics, [layer], details)


def _rows_of_reading(
    rows: Rows, reading: JacobianNorm, samples: Mapping[str, Sample], method: str, seed: int
) -> Iterator[Measurement]:
    """Yield rows of one reading: the means, each mean's share in their sum, and quantiles."""
    every = _All.of(samples)
    for layer, sample in samples.items():
        facts: dict[str, JsonValue] = {
            "method": f"{_columns_taken(sample)}, {method}",
            "undefined": _undefined(sample),
        }
        yield rows.measured(
            reading.metric,
            sample.mean,
            layer=layer,
            interval=None if sample.exact else sample.interval(),
            n=len(sample.values),
            details=facts
            | _of_other_records(sample, seed)
            | _details(sample)
            | _warning(reading, sample, rows.facts.get("confident_share")),
        )
        yield _share(rows, reading, layer, sample, every, facts)
        for metric, quantile in reading.quantiles.items():
            yield _quantile(rows, metric, quantile, layer, sample, facts)


def _share(
    rows: Rows,
    reading: JacobianNorm,
    layer: str,
    sample: Sample,
    every: _All,
    facts: Mapping[str, JsonValue],
) -> Measurement:
    """Make the row of one layer's share in the sum of all layers' means."""
    if every.mean == 0:
        (still,) = rows.skipped(_STILL, [reading.share], [layer])
        return still
    over_probes = None if sample.exact else _share_over_probes(sample, every)
    return rows.measured(
        reading.share,
        sample.mean / every.mean,
        layer=layer,
        interval=over_probes,
        n=len(sample.values),
        details={**facts, "of": f"the sum over {every.layers} shown layers"},
    )


def _columns_taken(sample: Sample) -> str:
    """Say, for the report, how many columns of a Jacobian a sample uses."""
    if sample.exact:
        return "all columns"
    count = sample.parts.shape[1]
    if sample.columns is None:
        return f"estimated from {count} directions"
    return f"estimated from {count} of {sample.columns:,} columns"


def _quantile(
    rows: Rows,
    metric: str,
    quantile: Quantile,
    layer: str,
    sample: Sample,
    facts: Mapping[str, JsonValue],
) -> Measurement:
    """Make the row of a quantile over the population of records, with its exact interval."""
    of_records, of_probes = _tails(sample)
    low, high = quantile_interval(*sample.each_within(of_probes), quantile.share, of_records)
    few = high == UNBOUNDED
    return rows.measured(
        metric,
        float(np.quantile(sample.values, quantile.share)),
        layer=layer,
        interval=(low, high),
        n=len(sample.values),
        imprecise=_too_few(sample, quantile) if few else "",
        details=facts,
    )


def _tails(sample: Sample) -> tuple[float, float]:
    """Split an end's error probability between the drawn records and the probes."""
    tail = (1 - CONFIDENCE) / 2
    return (tail, 0.0) if sample.exact else (tail * _OF_RECORDS, tail * (1 - _OF_RECORDS))


def _too_few(sample: Sample, quantile: Quantile) -> str:
    """Say that too few records bound a quantile from above, and how many would."""
    needed = fewest_values(quantile.share, _tails(sample)[0])
    bound = f"records bound the {quantile.title.lower()} from below only"
    return f"{len(sample.values)} {bound}; look at {needed} or more (--samples)"


def _of_other_records(sample: Sample, seed: int) -> dict[str, JsonValue]:
    """Compute the bootstrap's interval of the population mean; no limit is judged by it."""
    defined = sample.defined.astype(float)
    numbers = np.zeros(len(defined))
    numbers[sample.defined] = sample.values
    interval = ratio_interval(numbers, defined, bootstrap_counts(len(defined), seed))
    if interval is not None and not sample.exact:
        interval = joined(sample.mean, interval, sample.interval())
    return {"bootstrap_interval": interval and list(interval)}


def _share_over_probes(sample: Sample, every: _All) -> tuple[float, float]:
    """Compute the interval of a share for the error of probes."""
    probes = every.probes
    share = float(sample.by_probe.mean() / probes.mean())
    over_probes = student(share + (sample.by_probe - share * probes) / probes.mean())
    return max(over_probes[0], 0.0), min(over_probes[1], 1.0)


def _details(sample: Sample) -> dict[str, JsonValue]:
    """Collect the details of a mean: the median, and the error of probes."""
    details: dict[str, JsonValue] = {"median": statistics.median(sample.values.tolist())}
    if not sample.exact:
        details["estimate"] = {
            "method": _ESTIMATORS[sample.squared],
            "probes": sample.parts.shape[1],
            "interval": list(sample.interval()),
            "confidence": CONFIDENCE,
        }
    return details


def _warning(reading: JacobianNorm, sample: Sample, confident: JsonValue) -> dict[str, JsonValue]:
    """Make a warning where few records dominate the mean; else an empty dictionary."""
    values = sample.values
    share = float(values.max() / values.sum()) if values.any() else 0.0
    if len(values) > 2 and share > 0.5:
        return {"warning": f"one record makes up {share:.0%} of the mean; read the median"}
    sure = confident if isinstance(confident, float) and reading.reacting == "label" else 0.0
    if sure >= _MANY_CONFIDENT:
        certain = f"the model is nearly certain of the label of {sure:.0%} of the records"
        return {"warning": f"{certain}; read the median"}
    return {}


def _undefined(sample: Sample) -> int:
    """Mark records that are left out: their gradient changes, but its range is 0."""
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


def cost(audit: Sensitivity, subject: Subject) -> AuditCost:
    """Estimate the cost: some passes for every direction of every record, and intervals."""
    columns, probes = _columns(subject), audit.options.probes
    taken = (1 + audit.options.one_norm) * probes if probes else max(columns)
    directions = sum(min(size, taken) for size in columns)
    records = min(subject.samples or _RECORDS, len(subject.records))
    targets = len(subject.targets)
    return AuditCost(
        passes=_PASSES_A_DIRECTION * directions * records * targets,
        calls=_PREPARING * targets,
        seconds=_SECONDS_A_LAYER * len(subject.layers) * targets * (records > 1),
    )


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
        NotApplicable: it cannot be run on one record alone.
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
                    workers=subject.workers.on(str(variant)),
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
    """Prepare the target with the records for the input, and with those for the label."""
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
    """Collect the facts in every row of a target."""
    facts: dict[str, JsonValue] = {"records": len(observed.inputs)}
    if observed.confident is not None:
        facts["confident_share"] = observed.confident
    if observed.coupling is not None:
        facts["coupling"] = f"{observed.coupling}; here each record is a batch of its own"
    return facts
