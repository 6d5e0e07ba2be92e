"""Rows of the readings of a captured update."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

import torch

from gradaudit.attacks.reading import ReadingValue, reading_units
from gradaudit.audits.observe import Observe, ObserveOptions
from gradaudit.audits.observe.certified import certified_rows
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable
from gradaudit.models.target import layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.sharing.captured import CapturedUpdate, captured_update
from gradaudit.sharing.named import NamedUpdate, unit_of
from gradaudit.subject import Subject

_NONE = (
    "there is no captured update to look at; name one with --update (`gradaudit capture` saves it)"
)
_ABSENT = "not in the update"


def gradients(audit: Observe, subject: Subject) -> float:
    """Count a few passes for looking at an update, and for the search for each row of a table."""
    if audit.options.update is None:
        return 0.0
    rows = (audit.options.batch_size or 0) if subject.records.features else 0
    return 10.0 * (1 + rows)


def run(audit: Observe, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Yield rows of every layer, and of the whole update.

    Raises:
        NotApplicable: no update was captured.
        UsageError: a file is missing.
        CheckpointError: or refused.
    """
    options = audit.options
    if options.update is None:
        raise NotApplicable(_NONE)
    captured = captured_update(options.update, subject.target, options.rate)
    update, rows = update_of(captured, options), Rows(type(audit), facts=dict(captured.details))
    wanted = {layer.name for layer in subject.layers}
    single = update if captured.subtracted_at is None else replace(update, kind="difference")
    with progress.task("observe", 1) as advance:
        pieces = [*reading_units(update), certified_rows(single, subject)]
        readings = [each for piece in pieces for each in piece.look(1.0)]
        advance(1)
    yield from rows_of(rows, [each for each in readings if each.layer in wanted | {None}])
    known = {each.layer for each in readings}
    of_layers = [metric.id for metric in audit.metrics if metric.per_layer]
    yield from rows.skipped(_ABSENT, of_layers, [name for name in wanted if name not in known])


def update_of(captured: CapturedUpdate, options: ObserveOptions) -> NamedUpdate:
    """Read a captured update by names; a difference of files is rounded as the weights are."""
    model, shared = captured.target.model, captured.update
    layers = layers_of(model, with_bias=True)
    own = {name for layer in layers for name in layer.parameter_names} & shared.keys()
    rate = captured.subtracted_at
    errors = {name: unit_of(shared[name], torch.float32) for name in own}
    if rate is not None:
        coarse = _stored_as(captured)
        weights = {name: array.detach() for name, array in model.named_parameters()}
        errors = {name: e + unit_of(weights[name], coarse) / rate for name, e in errors.items()}
    return NamedUpdate(
        after={name: array for name, array in shared.items() if name in own and array.dim()},
        before={},
        kind="gradient",
        records=options.batch_size,
        smoothing=captured.target.loss.smoothing,
        errors=errors,
    )


def _stored_as(captured: CapturedUpdate) -> torch.dtype:
    """Find the coarsest type that the files' weights were cast from; else single precision."""
    notes = " ".join(map(str, cast("list[str]", captured.details["notes"])))
    coarse = (torch.bfloat16, torch.float16)
    return next((kind for kind in coarse if f"cast from {str(kind)[6:]}" in notes), torch.float32)


def rows_of(rows: Rows, readings: Iterable[ReadingValue]) -> Iterator[Measurement]:
    """Make a row for each metric, with its value or the reason why there is none."""
    for each in readings:
        if each.value is None:
            yield from rows.skipped(each.reason, [each.metric], [each.layer], each.details)
        else:
            yield rows.measured(each.metric, each.value, layer=each.layer, details=each.details)
