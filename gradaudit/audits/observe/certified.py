"""Counts the rows of a table that one gradient proves to an attacker who knows its columns.

It takes what no other reading takes: the model with the weights at which the gradient was computed,
the loss, and the table that the records are of. Of the table the attacker has each column's values
by themselves, which are drawn independently of each other, and no row.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.reading import ReadingUnit, ReadingValue
from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table.base import NO_PROOF, TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.core.statistics.intervals import clopper_pearson
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.target import layers_of
from gradaudit.progress import Silent
from gradaudit.sharing.named import NamedUpdate
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

METRIC = "rows_certified"
_KNOWN = 5_000
_ROW = 25_000_000
"""Elements that are read in about the time that a row takes (.1 s) before one was timed."""
_NO_TABLE = (
    "to prove rows takes the model, its loss and the table; give the observer a subject, as of "
    "gradaudit.Target(model, records)"
)
_OTHER = "the records are no table with columns"
_STEPS = "rows are proved by the gradient of one step, and several may be behind this update"
_COUNT = "how many records are behind the update is not known; say it with records or --batch-size"


def certified_rows(update: NamedUpdate, subject: Subject | None) -> ReadingUnit:
    """Compute the share of the rows behind an update that it proves.

    Args:
        update: a gradient; where the weights that came are there, it was computed at these.
        subject: with the model, its loss and the table; without it there is but a reason.
    """
    reason = _reason(update, subject)
    if reason or subject is None:
        value = ReadingValue(METRIC, None, None, reason)
        return ReadingUnit((METRIC,), None, 0, lambda _share: iter([value]))
    elements = _ROW * (update.records or 0)
    return ReadingUnit((METRIC,), None, elements, partial(_certified, update, subject))


def _reason(update: NamedUpdate, subject: Subject | None) -> str:
    """Say why no row can be proved; empty where some may be."""
    if subject is None:
        return _NO_TABLE
    if not subject.records.features:
        return _OTHER
    if update.kind != "gradient":
        return _STEPS
    return "" if update.records else _COUNT


def _certified(update: NamedUpdate, subject: Subject, _share: float) -> Iterator[ReadingValue]:
    columns = _columns(subject.records, subject.seed)
    try:
        view = _view(update, subject)
        answer = RowSpaceAttack().run(view, TableSetting(columns, subject.seed), Silent())
    except NotApplicable as error:
        yield ReadingValue(METRIC, None, None, str(error))
        return
    if answer.facts.get("noisy"):
        yield ReadingValue(METRIC, None, None, NO_PROOF)
        return
    tried, false = (int(str(answer.facts.get(k, 0))) for k in ("decoys", "decoys_certified"))
    details: dict[str, JsonValue] = {
        "rows": int(answer.certified.sum()),
        "of_rows": view.batch,
        "named": int(answer.named.sum()),
        "decoys": tried,
        "decoys_certified": false,
    }
    if tried:
        details["false_rate_at_most"] = clopper_pearson(false, tried)[1]
    yield ReadingValue(METRIC, None, float(answer.certified.double().mean()), details=details)


def _columns(records: Records, seed: int) -> TableColumns:
    """Sample the table's columns, each independently of the others."""
    order = rng(seed, "observe", "columns").permutation(len(records))[:_KNOWN]
    columns = TableColumns.of(records, records.take(order).inputs)
    draws = torch_rng(seed, "observe", "marginals")
    return replace(columns, known=columns.drawn(_KNOWN, draws))


def _view(update: NamedUpdate, subject: Subject) -> AttackerView:
    """Make the attacker's view of the gradient, at the received weights where known.

    Raises:
        NotApplicable: names are not those of the subject's model, or it has too few records.
    """
    target, count = subject.target, update.records or 0
    names = {name for x in layers_of(target.model, with_bias=True) for name in x.parameter_names}
    if unknown := [name for name in update.after if name not in names]:
        raise NotApplicable(f"{unknown[0]} is no parameter of the model that was given")
    if count > len(subject.records):
        raise NotApplicable(f"{count} rows are behind the update, and the table has fewer")
    threat = ThreatModel(target, SharingProtocol(), target.layers)
    changes = {name: update.change(name) for name in update.after}
    view = threat.view(subject.records.take(np.arange(count)), threat.visible(changes))
    came = {n: part.to(view.model.parameters[n]) for n, part in update.before.items() if n in names}
    model = replace(view.model, parameters={**view.model.parameters, **came})
    return replace(view, model=model)
