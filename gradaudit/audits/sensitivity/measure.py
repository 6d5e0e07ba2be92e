"""Sensitivity of every layer's gradient: from a target's records to rows."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.base import Cost
from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.sensitivity import READINGS, JacobianNorm, NormName, Reacting, Sensitivity
from gradaudit.defenses.subject import Subject, defenses_note
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.differentiation import Variable
from gradaudit.gradients.per_sample import PREPARING
from gradaudit.gradients.sensitivity import Array, Measured, Observed, Sample, joined
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Status
from gradaudit.statistics import CONFIDENCE
from gradaudit.statistics.bootstrap import FEWEST, drawn, enough_records, ratio_interval
from gradaudit.statistics.intervals import student

_ONE_ELEMENT = "its gradient has one element, which has no range to divide by"
_STILL = "no layer's gradient reacts, so there is nothing to have a share in"
_ESTIMATORS = {
    True: "Gaussian directions, the same for every record; chi-square interval (Satterthwaite)",
    False: "columns drawn without replacement, the same for every record; Student's interval",
}
_RECORDS = 32
_LABEL_RECORDS = 256
_CHEAP = 1e10
"""Multiply-adds of forward passes that more records for the label may take; some seconds."""
_PASSES_A_DIRECTION, _SECONDS_A_LAYER = 2.0, 0.15
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"
_VARIABLES: Mapping[Reacting, Variable] = {"input": "point", "label": "target"}


_MANY_CONFIDENT = 0.1
"""Share of records that the model is sure of, by which the mean of label sensitivities is large."""


def rows_of(
    rows: Rows, reacting: Reacting, layers: Sequence[str], measured: Measured, seed: int
) -> Iterator[Measurement]:
    """Rows of every reading, norm and layer, those without a number included."""
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
                metrics = reading.metric, reading.share
                yield from rows.unmeasured(status, reason, metrics, [layer], details)


def _rows_of_reading(
    rows: Rows, reading: JacobianNorm, samples: Mapping[str, Sample], method: str, seed: int
) -> Iterator[Measurement]:
    """Rows of one reading: the means, and each mean's share in their sum."""
    every = _All.of(samples, seed)
    for layer, sample in samples.items():
        count, doubt = len(sample.values), _imprecision(sample)
        facts: dict[str, JsonValue] = {
            "method": f"{_columns_taken(sample)}, {method}",
            "undefined": _undefined(sample),
        }
        yield rows.measured(
            reading.metric,
            sample.mean,
            layer=layer,
            interval=_interval(sample, every.draws),
            n=count,
            imprecise=doubt,
            details=facts | _details(sample),
        )
        if every.mean == 0:
            yield from rows.skipped(_STILL, [reading.share], [layer])
            continue
        yield rows.measured(
            reading.share,
            sample.mean / every.mean,
            layer=layer,
            interval=_share_interval(sample, every),
            n=count,
            imprecise=doubt,
            details=facts | {"of": f"the sum over {len(samples)} shown layers"},
        )


def _columns_taken(sample: Sample) -> str:
    """How much of a Jacobian a sample rests on, for the report."""
    if sample.exact:
        return "all columns"
    count = sample.parts.shape[1]
    if sample.columns is None:
        return f"estimated from {count} directions"
    return f"estimated from {count} of {sample.columns:,} columns"


class _All(NamedTuple):
    """All layers together: the sum of their means, by record and by probe, and the bootstrap."""

    mean: float
    spread: Array
    probes: Array
    draws: Array

    @classmethod
    def of(cls, samples: Mapping[str, Sample], seed: int) -> Self:
        """The sums over at least one layer."""
        spread = np.sum([_spread(sample) for sample in samples.values()], axis=0)
        return cls(
            sum(sample.mean for sample in samples.values()),
            spread,
            np.sum([sample.by_probe for sample in samples.values()], axis=0),
            drawn(len(spread), seed),
        )


def _interval(sample: Sample, draws: Array) -> tuple[float, float] | None:
    """Of the mean over records like these, and over probes."""
    defined = sample.defined.astype(float)
    over_records = ratio_interval(_spread(sample) * defined.mean(), defined, draws)
    if over_records is None or sample.exact:
        return over_records
    return joined(sample.mean, over_records, sample.interval())


def _share_interval(sample: Sample, every: _All) -> tuple[float, float] | None:
    """Of the share that one layer has in what all have together, by record and by probe."""
    over_records = ratio_interval(_spread(sample), every.spread, every.draws)
    if over_records is None:
        return None
    low, high = over_records
    if not sample.exact:
        probes = every.probes
        share = float(sample.by_probe.mean() / probes.mean())
        over_probes = student(share + (sample.by_probe - share * probes) / probes.mean())
        low, high = joined(share, over_records, over_probes)
    return low, min(high, 1.0)


def _spread(sample: Sample) -> Array:
    """Numbers of all records whose mean is the sample's, (all records,); 0 where undefined."""
    numbers = np.zeros(len(sample.defined))
    numbers[sample.defined] = sample.values / sample.defined.mean()
    return numbers


def _imprecision(sample: Sample) -> str:
    """Why no interval of these records' mean can be trusted; empty where one can."""
    count, needed = len(sample.values), enough_records(sample.values)
    if needed is None:
        return ""
    few = f"{count} records give no interval"
    uneven = f"few of the {count} records carry the mean"
    return f"{few if count < FEWEST else uneven}; look at about {needed:,} (--samples)"


def _details(sample: Sample) -> dict[str, JsonValue]:
    """What stands behind a mean: the median, one record that decides, the error."""
    values = sample.values
    details: dict[str, JsonValue] = {"median": statistics.median(values.tolist())}
    share = float(values.max() / values.sum()) if values.any() else 0.0
    if len(values) > 2 and share > 0.5:
        details["warning"] = f"one record carries {share:.0%} of the mean; look at the median"
    if not sample.exact:
        details["estimate"] = {
            "method": _ESTIMATORS[sample.squared],
            "probes": sample.parts.shape[1],
            "interval": list(sample.interval()),
            "confidence": CONFIDENCE,
        }
    return details


def _undefined(sample: Sample) -> int:
    """Records that are left out: their gradient moves, but has no range."""
    return int((~sample.defined).sum())


def _why_not(
    measured: Measured, by_norm: Mapping[NormName, Sample] | None, norm: NormName
) -> tuple[Status, str, dict[str, JsonValue]]:
    """Status, reason, and how many records are undefined, where that is why."""
    if by_norm is None:
        return "skipped", _ONE_ELEMENT, {}
    if not by_norm:
        return "failed", "some record's gradient or its Jacobian is not finite", {}
    if norm not in by_norm:
        reason = f"{measured.probes} probes do not show the largest entry; --probes 0 measures it"
        return "skipped", reason, {}
    reason = "every record's gradient has range zero, but moves: nothing to divide by"
    return "failed", reason, {"undefined": _undefined(by_norm[norm])}


def cost(audit: Sensitivity, subject: Subject) -> Cost:
    """Some passes for every direction of every record, and the intervals of every layer."""
    columns, probes = subject.records.inputs[0].numel(), audit.options.probes
    directions = min(columns, 2 * probes) if probes else columns
    directions += max(len(subject.records.classes), 1)
    records = min(subject.samples or _RECORDS, len(subject.records))
    targets = len(subject.targets)
    return Cost(
        passes=_PASSES_A_DIRECTION * directions * records * targets,
        calls=PREPARING * targets,
        seconds=_SECONDS_A_LAYER * len(subject.layers) * targets,
    )


def run(audit: Sensitivity, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        AuditError: the model cannot be run on the records.
        NotApplicable: it cannot be run on one record alone.
    """
    for target, variant in by_round(subject):
        for reacting, observed in _observed(audit, target, subject):
            facts = _facts(observed, reacting) | defenses_note(subject, _UNDEFENDED)
            rows, names = Rows(type(audit), variant, facts), [x.name for x in observed.layers]
            try:
                measured = observed.measure(
                    _VARIABLES[reacting],
                    audit.options.probes,
                    seed=subject.seed,
                    memory=subject.memory,
                    progress=progress,
                    workers=subject.workers.on(str(variant)),
                )
            except (NotApplicable, AuditError) as why:
                readings = [reading for reading in READINGS if reading.reacting == reacting]
                metrics = [name for reading in readings for name in (reading.metric, reading.share)]
                yield from rows.without(why, metrics, names)
            else:
                yield from rows_of(rows, reacting, names, measured, subject.seed)


def _observed(
    audit: Sensitivity, target: Target, subject: Subject
) -> Iterator[tuple[Reacting, Observed]]:
    """The target with the records to look at for the input, then with those for the label."""
    shown = {layer.name for layer in subject.layers}
    every = layers_of(target.model, with_bias=audit.options.with_bias)
    layers = tuple(layer for layer in every if layer.name in shown)
    observed = Observed.of(target, layers, subject.sample(_RECORDS), subject.seed)
    yield "input", observed
    count = _RECORDS
    with suppress(GradauditError):  # the rows will say it
        count = min(_LABEL_RECORDS, max(_RECORDS, observed.within(_CHEAP, "target")))
    records = subject.sample(count)
    if len(records) > len(observed.inputs):
        observed = Observed.of(target, layers, records, subject.seed)
    yield "label", observed


def _facts(observed: Observed, reacting: Reacting) -> dict[str, JsonValue]:
    """What every row of a target says."""
    facts: dict[str, JsonValue] = {"records": len(observed.inputs)}
    if observed.confident is not None:
        facts["confident_share"] = observed.confident
        if reacting == "label" and observed.confident >= _MANY_CONFIDENT:
            sure = f"{observed.confident:.0%} of the records are surely predicted"
            facts["warning"] = f"{sure}; see the median"
    if observed.coupling is not None:
        facts["coupling"] = f"{observed.coupling}; here each record is a batch of its own"
    return facts
