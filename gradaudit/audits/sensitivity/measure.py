"""Sensitivity of every layer's gradient: from a target's records to rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits.base import Cost
from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.sensitivity.rows import rows_of, rows_without
from gradaudit.defenses.chain import defenses_note
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.gradients.differentiation import Variable
from gradaudit.gradients.sensitivity import Observed
from gradaudit.models.target import Subject, Target, layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.audits.sensitivity import Reacting, Sensitivity

_RECORDS = 32
_LABEL_RECORDS = 256
_CHEAP = 1e10
"""Multiply-adds of forward passes that more records for the label may take; some seconds."""
_PASSES_A_DIRECTION = 0.3
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"
_VARIABLES: Mapping[Reacting, Variable] = {"input": "point", "label": "target"}


def cost(audit: Sensitivity, subject: Subject) -> Cost:
    """A direction costs a fraction of a pass, records and directions being batched."""
    columns, probes = subject.records.inputs[0].numel(), audit.options.probes
    directions = min(columns, 2 * probes) if probes else columns
    records = min(subject.samples or _RECORDS, len(subject.records))
    return Cost(passes=_PASSES_A_DIRECTION * directions * records * len(subject.targets))


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
                measured = observed.measure(
                    _VARIABLES[reacting],
                    audit.options.probes,
                    seed=subject.seed,
                    memory=subject.memory,
                    progress=progress,
                )
            except (NotApplicable, AuditError) as why:
                yield from rows_without(rows, reacting, names, why)
            else:
                yield from rows_of(rows, reacting, names, measured, subject.seed)


def _observed(
    audit: Sensitivity, target: Target, subject: Subject
) -> Iterator[tuple[Reacting, Observed]]:
    """The target with the records to look at for the input, then with those for the label."""
    shown = {layer.name for layer in subject.layers}
    layers = layers_of(target.model, with_bias=audit.options.with_bias)
    layers = tuple(layer for layer in layers if layer.name in shown)
    observed = Observed.of(target, layers, subject.sample(_RECORDS), subject.seed)
    yield "input", observed
    records = subject.sample(_label_records(observed))
    if len(records) > len(observed.inputs):
        observed = Observed.of(target, layers, records, subject.seed)
    yield "label", observed


def _label_records(observed: Observed) -> int:
    """How many records to look at for the label, where nobody says it."""
    try:
        cheap = observed.within(_CHEAP, "target")
    except GradauditError:  # the rows will say it
        return _RECORDS
    return min(_LABEL_RECORDS, max(_RECORDS, cheap))


def _facts(observed: Observed) -> dict[str, JsonValue]:
    """What every row of a target says."""
    facts: dict[str, JsonValue] = {"records": len(observed.inputs)}
    if observed.confident is not None:
        facts["confident_share"] = observed.confident
    if observed.coupling is not None:
        facts["coupling"] = f"{observed.coupling}; here each record is a batch of its own"
    return facts
