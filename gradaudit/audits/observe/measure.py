"""What a captured update gives away: from readings to rows."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from gradaudit.attacks.reading import Told, pieces
from gradaudit.audits.base import Cost
from gradaudit.audits.observe import Observe, ObserveOptions
from gradaudit.audits.rows import Rows
from gradaudit.defenses.subject import Subject
from gradaudit.errors import NotApplicable
from gradaudit.models.target import layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.sharing.captured import Captured, captured_update
from gradaudit.sharing.named import NamedUpdate

_NONE = (
    "there is no captured update to look at; name one with --update (`gradaudit capture` saves it)"
)
_ABSENT = "not in the update"


def cost(audit: Observe, subject: Subject) -> Cost:
    """A few passes over the update; nothing without one."""
    elements = sum(layer.parameters for layer in subject.layers)
    return Cost(seconds=0.01 + 1e-7 * elements if audit.options.update else 0.0)


def run(audit: Observe, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every layer, and of the update.

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
    with progress.task("observe", 1) as advance:
        told = [each for piece in pieces(update) for each in piece.look(1.0)]
        advance(1)
    yield from rows_of(rows, [each for each in told if each.layer in wanted | {None}])
    known = {each.layer for each in told}
    of_layers = [metric.id for metric in audit.metrics if metric.per_layer]
    yield from rows.skipped(_ABSENT, of_layers, [name for name in wanted if name not in known])


def update_of(captured: Captured, options: ObserveOptions) -> NamedUpdate:
    """A captured update by names; the weights before tell how it was rounded, where it has any."""
    model, shared = captured.target.model, captured.update
    own = {name for layer in layers_of(model, with_bias=True) for name in layer.parameter_names}
    gradient = captured.details["captured"] == "gradient"
    before: dict[str, Tensor] = {} if gradient else dict(model.named_parameters())
    return NamedUpdate(
        after={name: array for name, array in shared.items() if name in own and array.dim()},
        before={name: array.detach() for name, array in before.items()},
        kind="gradient",
        records=options.batch_size,
    )


def rows_of(rows: Rows, told: Iterable[Told]) -> Iterator[Measurement]:
    """A row of each thing that was told, or of why not."""
    for each in told:
        if each.value is None:
            yield from rows.skipped(each.reason, [each.metric], [each.layer], each.details)
        else:
            yield rows.measured(each.metric, each.value, layer=each.layer, details=each.details)
