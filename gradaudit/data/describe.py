"""What a report says of a data set: sizes and counts, and a fingerprint; never a record."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

if TYPE_CHECKING:
    from gradaudit.data.records import Records


def describe(records: "Records") -> dict[str, JsonValue]:
    """The ``data`` section of a report.

    Returns:
        adapter, number of records, shape and type of an input, the task, the count of every class
        (None for regression) and of every attribute's values, numbers of users, members and
        columns (None where there are none), what the adapter noted, and the fingerprint.
    """
    return {
        "adapter": records.adapter,
        "records": len(records),
        "input_shape": list(records.inputs.shape[1:]),
        "input_type": "tokens" if records.discrete else "numbers",
        "task": "classification" if records.classes else "regression",
        "classes": _counts(records.labels.numpy(), records.classes) if records.classes else None,
        "attributes": {
            name: _counts(attribute.codes, attribute.values)
            for name, attribute in records.attributes.items()
        },
        "users": None if records.users is None else len(set(records.users.tolist())),
        "members": None if records.members is None else int(records.members.sum()),
        "columns": len(records.features) or None,
        "notes": dict(records.notes),
        "fingerprint": fingerprint(records),
    }


def fingerprint(records: "Records") -> str:
    """SHA-256 over inputs, labels, attributes, users and membership with their names and types.

    The same records give the same fingerprint in every run; their order matters.
    """
    digest = hashlib.sha256()
    for part in _parts(records):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _parts(records: "Records") -> Iterator[bytes | memoryview]:
    yield from _array("inputs", records.inputs.numpy())
    yield from _array("labels", records.labels.numpy())
    yield repr(records.classes).encode()
    for name, attribute in sorted(records.attributes.items()):
        yield repr((name, attribute.values)).encode()
        yield from _array("attribute", attribute.codes)
    if records.users is not None:
        yield repr(records.users.tolist()).encode()
    if records.members is not None:
        yield from _array("members", records.members)


def _array(name: str, array: Any) -> Iterator[bytes | memoryview]:
    """Name, type and shape, then the bytes in C order."""
    import numpy as np

    yield f"{name} {array.dtype.str} {array.shape}".encode()
    yield np.ascontiguousarray(array).data.cast("B")


def _counts(codes: Any, values: Sequence[str]) -> dict[str, JsonValue]:
    """How often each value occurs."""
    import numpy as np

    counts = np.bincount(codes, minlength=len(values)).tolist()
    return dict(zip(values, counts, strict=True))
