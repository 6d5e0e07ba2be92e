"""Computes the ranks of a model's convolutions and c(M) from a few records, as rows."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import torch

from gradaudit.audits.copa_metric import CopaMetric
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable
from gradaudit.executors.stopping import TimeIsUp
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.ranks.copa_metric import LayerRanks, account, copa_metric, ranks_of, weakest_method
from gradaudit.ranks.observe import (
    SOLVED,
    chain_of_convolutions,
    convolutions,
    fully_connected,
    plain_convolutions,
    unsuitable,
)
from gradaudit.report import CLOSED_FORM, Measurement
from gradaudit.subject import Subject, defenses_note

_UNDEFENDED = "none applied: these are the equations of single records' own gradients"
ADVICE = (
    "A network is less secure against COPA if wide convolutions greatly enlarge the feature space "
    "near the input and it only shrinks towards the last layer; where that matters, prefer a "
    "design with a small (strongly negative) c(M), which loses dimensions in its first layers "
    "(Chen & Campbell 2021, recommendations on architectural design)."
)


def gradients(audit: CopaMetric, subject: Subject) -> float:
    """Count each rank as twenty passes of the model."""
    return 20.0 * len(convolutions(subject.target.model)) * audit.options.records


def run(audit: CopaMetric, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Yield the rank of every convolution, skipped rows for other layers, and c(M).

    Where time is up, the ranks that there are, of fewer records.

    Raises:
        NotApplicable: the model has no convolution.
    """
    if not convolutions(subject.target.model):
        by_name = [layer for layer in subject.layers if _is_by_name(layer)]
        why = f": {_not_a_convolution(by_name[0])}" if by_name else ""
        raise NotApplicable(f"the model has no convolution modules{why}")
    rows = Rows(type(audit)).of({}, defenses_note(subject, _UNDEFENDED))
    model = FunctionalModel.of(subject.target, dtype=torch.float64, seed=subject.seed)
    count = audit.options.records
    records = subject.sample(count)
    inputs, labels = model.cast(records.inputs[:count]), model.cast(records.labels[:count])
    model.check(inputs[:1], labels[:1])
    done: dict[str, LayerRanks] = {}

    def keep(of_layer: LayerRanks) -> None:
        done[of_layer.layer] = of_layer

    wanted = {layer.name for layer in subject.layers}
    plain = plain_convolutions(subject.target.model)
    layers = {name: module for name, module in plain.items() if name in wanted}
    try:
        with progress.task("Ranks of convolutions", len(layers) * len(inputs)) as advance:
            ranks, reasons = ranks_of(
                model,
                layers,
                inputs,
                labels,
                method=audit.options.method,
                flops=1e9 * audit.options.work,
                advance=advance,
                workers=subject.workers,
                given=keep,
            )
    except TimeIsUp:
        for of_layer in done.values():
            yield from _layer_rows(rows, of_layer)
        raise
    of_layers = [metric.id for metric in audit.metrics if metric.per_layer]
    reasons |= unsuitable(subject.target.model) | fully_connected(model, inputs[:1])
    for layer in subject.layers:
        if layer.name in ranks:
            yield from _layer_rows(rows, ranks[layer.name])
        else:
            reason = reasons.get(layer.name) or _not_a_convolution(layer)
            solved = {CLOSED_FORM: True} if reason == SOLVED else None
            yield from rows.skipped(reason, of_layers, [layer.name], solved)
    try:
        chain = chain_of_convolutions(model, inputs[:1], subject.seed)
    except NotApplicable as why:
        yield from rows.without(why, ["c"])
    else:
        yield from _c_row(rows, chain, ranks, reasons)


def _layer_rows(rows: Rows, ranks: LayerRanks) -> Iterator[Measurement]:
    size, rows = ranks.inputs, rows.of({}, account(ranks.records))
    high, span = fmean(ranks.high), (min(ranks.low), max(ranks.high))
    for metric, value, ends in (
        ("rank_deficit", size - high, (size - span[1], size - span[0])),
        ("rank", high, span),
        ("inputs", size, (size, size)),
        ("rank_share", high / size, (span[0] / size, span[1] / size)),
    ):
        row = rows.measured(metric, value, layer=ranks.layer, n=len(ranks.records))
        yield _spread(row, *ends)


def _c_row(
    rows: Rows, chain: Sequence[str], ranks: Mapping[str, LayerRanks], reasons: Mapping[str, str]
) -> Iterator[Measurement]:
    """Make the row of c(M) of a chain of convolutions, or of the reason it is missing."""
    for name in chain:
        if name not in ranks:
            why = reasons.get(name, "left out of this audit, or frozen")
            yield from rows.skipped(f"{name} has no rank: {why}", ["c"])
            return
    measured = [ranks[name] for name in chain]
    sizes = [layer.inputs for layer in measured]
    low = copa_metric([layer.low for layer in measured], sizes)
    high = copa_metric([layer.high for layer in measured], sizes)
    row = rows.measured(
        "c",
        fmean(high),
        n=len(high),
        details={
            "method": weakest_method([rank for layer in measured for rank in layer.records]),
            "convolutions": list(chain),
            "by_record": [list(ends) for ends in zip(low, high, strict=True)],
            "advice": ADVICE,
            "remark": ADVICE,
        },
    )
    yield _spread(row, min(low), max(high))


def _spread(row: Measurement, low: float, high: float) -> Measurement:
    """Make an interval from bounded ranks and differing records; it has no confidence level.

    Without one where all records have one and the same rank.
    """
    return row.model_copy(update={"interval": (low, high)}) if low < high else row


def _is_by_name(layer: Layer) -> bool:
    """Whether a layer's class is named a convolution; transformers' Conv1D is a linear layer."""
    return layer.kind.startswith("Conv") and layer.kind != "Conv1D"


def _not_a_convolution(layer: Layer) -> str:
    if _is_by_name(layer):
        return (
            f"{layer.name} is a {layer.kind} by name, but no plain convolution of torch.nn: the "
            "archive calls it several times, pads in a step of its own, or it computes something "
            "else; give the model as path/to/file.py:factory"
        )
    linear = " but a linear layer" if layer.kind == "Conv1D" else ""
    return f"{layer.kind} is no convolution{linear}"
