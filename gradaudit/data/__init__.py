"""The data adapters, one a file; add a file and its form of DATA is understood and listed.

``gradaudit list`` reads their names from the source, so an adapter may import what it needs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradaudit.core.parts import discover
from gradaudit.core.specs import Spec, parse_spec, suggest
from gradaudit.core.text import listed
from gradaudit.data.base import MEMBER, DataAdapter
from gradaudit.data.common.roles import in_order, names_in
from gradaudit.data.common.tokenizing import TextModel
from gradaudit.data.records import Attribute, Records, describe, fingerprint
from gradaudit.errors import UsageError

__all__ = [
    "DataAdapter",
    "adapters",
    "describe",
    "expect_attributes",
    "fingerprint",
    "load_records",
]

_USER_CODE = "file"
_KINDS = {".csv": "csv", ".tsv": "csv", ".npz": "npz", ".parquet": "parquet"}


def adapters() -> dict[str, type[DataAdapter]]:
    """Every adapter by its name."""
    return discover(__name__, DataAdapter)


def load_records(
    spec: str,
    *,
    attributes: Sequence[str] = (),
    reading: TextModel | None = None,
) -> Records:
    """The records that a DATA spec names.

    Args:
        spec: ``digits``, ``csv:FILE?label=COL``, … as ``gradaudit list`` shows them.
        attributes: private attributes that the records must have, beyond those of the spec;
            ``member`` is membership in the training set, where the data knows it.
        reading: how the model that gets them reads texts, if it does.

    Raises:
        UsageError: the adapter, an option, a file, a column or an attribute is unknown or missing.
        DataError: the data is there but cannot be used.
    """
    parsed = parse_spec(spec)
    adapter = _adapter(parsed)
    columns = (",".join(part for part in name.split(",") if part != MEMBER) for name in attributes)
    chosen = replace(adapter.of(parsed, filter(None, columns)), reading=reading)
    if reading is None and chosen.classes is not None and getattr(chosen, "task", "") is None:
        task: dict[str, Any] = {"task": "classification"}
        chosen = replace(chosen, **task)
    records = _with_membership(chosen.load())
    if chosen.classes is not None:
        records = in_order(records, names_in(chosen.classes), spec)
    expect_attributes(records, attributes, spec)
    return replace(records, adapter=records.adapter or adapter.name)


def expect_attributes(records: Records, names: Sequence[str], origin: str) -> tuple[str, ...]:
    """The records' attributes among repeated and comma separated names, each once, in order.

    Raises:
        UsageError: one of them is none; the message lists those there are.
    """
    known = records.attributes
    single = [part for name in names for part in ([name] if name in known else name.split(","))]
    for name in single:
        if name not in known:
            raise UsageError(
                f"{origin}: has no attribute {name!r}{suggest(name, known)}; "
                f"its attributes are: {listed(known, 20) or 'none'}"
            )
    return tuple(dict.fromkeys(single))


def _adapter(spec: Spec) -> type[DataAdapter]:
    name = spec.scheme or spec.name
    if adapter := discover(__name__, DataAdapter, name).get(name):
        return adapter
    if spec.name.rpartition(":")[0].endswith(".py"):
        return discover(__name__, DataAdapter, _USER_CODE)[_USER_CODE]
    known = adapters()
    if not spec.scheme and (kind := _KINDS.get(Path(spec.name).suffix.lower())):
        raise UsageError(
            f"{spec.text}: name the kind of file as well: {kind}:{spec.name}?label=NAME"
        )
    raise UsageError(
        f"{spec.text}: no such data{suggest(name, known)}; there are: {', '.join(known)} "
        "(`gradaudit list data` shows how each is written)"
    )


def _with_membership(records: Records) -> Records:
    """The records with membership among their attributes, where it is known and varies."""
    members, known = records.members, records.attributes
    if members is None or MEMBER in known or members.all() or not members.any():
        return records
    membership = Attribute(members.astype("int64"), ("no", "yes"))
    return replace(records, attributes={**known, MEMBER: membership})
