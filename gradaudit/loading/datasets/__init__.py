"""The data adapters, one a file; add a file and its form of DATA is understood and listed.

Importing this package and listing its adapters needs neither torch nor numpy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradaudit.errors import UsageError
from gradaudit.loading.datasets.base import MEMBER, DataAdapter
from gradaudit.loading.datasets.describe import describe, fingerprint
from gradaudit.loading.specs import Spec, parse_spec, suggest
from gradaudit.parts import discover
from gradaudit.text import listed

if TYPE_CHECKING:
    from gradaudit.loading.records import Records

__all__ = [
    "DataAdapter",
    "adapters",
    "describe",
    "expect_attributes",
    "fingerprint",
    "load_records",
]

_USER_CODE = "file"


def adapters() -> dict[str, type[DataAdapter]]:
    """Every adapter by its name."""
    return discover(__name__, DataAdapter)


def load_records(spec: str, *, attributes: Sequence[str] = ()) -> "Records":
    """The records that a DATA spec names.

    Args:
        spec: ``digits``, ``csv:FILE?label=COL``, … as ``gradaudit list`` shows them.
        attributes: private attributes that the records must have, beyond those of the spec;
            ``member`` is membership in the training set, where the data knows it.

    Raises:
        UsageError: the adapter, an option, a file, a column or an attribute is unknown or missing.
        DataError: the data is there but cannot be used.
    """
    parsed = parse_spec(spec)
    adapter = _adapter(parsed)
    columns = [name for name in attributes if name != MEMBER]
    records = _with_membership(adapter.of(parsed, columns).load())
    expect_attributes(records, attributes, spec)
    return replace(records, adapter=records.adapter or adapter.name)


def expect_attributes(records: "Records", names: Sequence[str], origin: str) -> None:
    """Refuse names that are no attributes of the records.

    Raises:
        UsageError: one is not; the message lists those there are.
    """
    for name in names:
        if name not in records.attributes:
            raise UsageError(
                f"{origin}: has no attribute {name!r}{suggest(name, records.attributes)}; "
                f"its attributes are: {listed(records.attributes, 20) or 'none'}"
            )


def _adapter(spec: Spec) -> type[DataAdapter]:
    known = adapters()
    if (name := spec.scheme or spec.name) in known:
        return known[name]
    if spec.name.rpartition(":")[0].endswith(".py"):
        return known[_USER_CODE]
    forms = ", ".join(adapter.example for adapter in known.values())
    raise UsageError(f"{spec.text}: no such data{suggest(name, known)}; name one of: {forms}")


def _with_membership(records: "Records") -> "Records":
    """The records with membership among their attributes, where it is known and varies."""
    from gradaudit.loading.records import Attribute

    members = records.members
    if members is None or MEMBER in records.attributes or members.all() or not members.any():
        return records
    membership = Attribute(members.astype("int64"), ("no", "yes"))
    return replace(records, attributes={**records.attributes, MEMBER: membership})
