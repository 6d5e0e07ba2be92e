"""Checks before and after reading: unknown names, too many or too few records, no numbers."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.specs import suggest
from gradaudit.core.text import listed, printable
from gradaudit.errors import DataError, UsageError

_LISTED = 20
MAX_BYTES = 4 << 30
"""What the inputs of a data set may take in memory, and an array of an archive when unpacked."""
MAX_COLUMNS = 100_000
MAX_CELLS = 20_000_000
"""Records times columns; as text in memory a cell takes 8 to some 100 bytes."""
_FLOAT_BYTES = 4
_AT_ONCE = 1 << 24
"""Numbers that are looked at together."""


def quote(name: str) -> str:
    """A name from a file as it may stand in a message."""
    return f"'{printable(name, 60)}'"


def choose(name: str, known: Collection[str], where: str, what: str) -> str:
    """Return ``name`` if it is known; raise a UsageError otherwise.

    Raises:
        UsageError: it is not known; the message says what it should be (``column``) and where (the
            file or spec), suggests a close name and lists the first few.
    """
    if name in known:
        return name
    short = [printable(one, 30) for one in known]
    raise UsageError(
        f"{where}: there is no {what} {quote(name)}{suggest(name, known)}; "
        f"it has {listed(short, _LISTED) or 'none'}"
    )


def choose_all(
    names: Iterable[str], known: Collection[str], where: str, what: str
) -> tuple[str, ...]:
    """The known names among repeated and comma separated ones, each once; else as ``choose``."""
    parts = (part for name in names for part in ([name] if name in known else name.split(",")))
    return tuple(dict.fromkeys(choose(part, known, where, what) for part in parts if part))


def expect_to_fit(
    shape: tuple[int, ...], origin: str, itemsize: int = _FLOAT_BYTES, most: int | None = None
) -> None:
    """Refuse numbers that would take more than ``most`` bytes, or 4 GiB, with a DataError."""
    most = MAX_BYTES if most is None else most
    size = math.prod(shape) * itemsize
    if size > most:
        raise DataError(
            f"{origin}: numbers of shape {shape} would take {size / (1 << 30):.1f} GiB, more than "
            f"{most / (1 << 30):g} GiB; use fewer records or smaller inputs"
        )


def expect_length(length: int, records: int, origin: str) -> None:
    """Refuse a part that is not of these records: a DataError where its length is another one."""
    if length != records:
        raise DataError(f"{origin}: has {length} entries for {records} records; one each is needed")


def expect_int64(numbers: NDArray[Any], origin: str) -> None:
    """Refuse unsigned numbers that would become negative as int64, with a DataError."""
    if numbers.dtype == np.uint64 and numbers.size and numbers.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"{origin}: {numbers.max()} is beyond int64, torch's largest whole number; give "
            "smaller numbers, or floats"
        )


def expect_finite(numbers: NDArray[Any], origin: str) -> None:
    """Refuse numbers that are NaN or infinite, with a DataError that names the first record."""
    if numbers.dtype.kind != "f" or not len(numbers):
        return
    size = max(1, _AT_ONCE * len(numbers) // max(1, numbers.size))
    blocks = (numbers[start : start + size] for start in range(0, len(numbers), size))
    sound = [np.isfinite(block).reshape(len(block), -1).all(axis=1) for block in blocks]
    broken = ~np.concatenate(sound)
    if broken.any():
        raise DataError(
            f"{origin}: {broken.sum()} of {len(numbers)} records hold NaN or infinity (first in "
            f"record {broken.argmax() + 1}); repair them or leave them out"
        )


def expect_names(names: Sequence[str], origin: str) -> None:
    """Refuse too many columns, none, or two of one name, with a DataError."""
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"{origin}: has {len(names)} columns, over the limit of {MAX_COLUMNS}; keep fewer, or "
            "store them in a NumPy archive"
        )
    if not names:
        raise DataError(f"{origin}: is empty; a header line and records are needed")
    places: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if places.setdefault(name, place) != place:
            raise DataError(
                f"{origin}: columns {places[name]} and {place} are both called {quote(name)}; "
                "rename one"
            )


def expect_few_cells(rows: int, columns: int, origin: str) -> None:
    """Refuse tables of over 20 million cells, with a DataError."""
    if rows * columns > MAX_CELLS:
        raise DataError(
            f"{origin}: has over {MAX_CELLS} cells ({columns} columns); use fewer records, or "
            "store them in a NumPy archive"
        )
