"""Reading JSON lines, an object a line, into columns of text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradaudit.data.common.checks import expect_few_cells, expect_names, quote
from gradaudit.errors import DataError
from gradaudit.text import printable

_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
_ONE_A_LINE = 'write an object a line, {"KEY": VALUE, …}'


def is_json(path: Path, first: str) -> bool:
    """Whether a file is called as JSON is, compressed or not, or its first line is an object."""
    if not _SUFFIXES.isdisjoint(path.suffixes[-2:]):
        return True
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


class JsonCells(Mapping[str, Sequence[str]]):
    """The values of each key as text, in the order of the lines; empty where one is null.

    Looking up a key raises a DataError that names the first line that lacks it, or that has a list
    or an object under it.
    """

    def __init__(self, lines: Iterable[str], origin: str) -> None:
        """Read the lines, of which empty ones are passed over.

        Raises:
            DataError: one is no JSON object, or has a key twice; there are none, or too many.
        """
        self._origin = origin
        self._lines: list[int] = []
        self._cells: dict[str, list[str | None]] = {}
        self._nested: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                self._add(number, _object(line, f"{origin}, line {number}"))
        if not self._lines:
            raise DataError(f"{origin}: there are no records; {_ONE_A_LINE}")
        expect_names(list(self._cells), origin)
        for cells in self._cells.values():
            cells += [None] * (len(self._lines) - len(cells))

    def _add(self, number: int, record: Mapping[str, Any]) -> None:
        for key, value in record.items():
            cells = self._cells.setdefault(key, [])
            cells += [None] * (len(self._lines) - len(cells))
            if isinstance(value, (dict, list)):
                self._nested.setdefault(key, number)
            cells.append("" if value is None else str(value))
        self._lines.append(number)
        expect_few_cells(len(self._lines), len(self._cells), self._origin)

    def __getitem__(self, key: str) -> Sequence[str]:
        cells = self._cells[key]
        if key in self._nested:
            raise DataError(
                f"{self._origin}, line {self._nested[key]}: key {quote(key)} holds a list or an "
                "object; one text or number a record is needed, or leave it out by "
                f"drop={printable(key, 60)}"
            )
        if None in cells:
            raise DataError(
                f"{self._origin}, line {self._lines[cells.index(None)]}: has no key {quote(key)}; "
                "write null where there is no value"
            )
        return [cell for cell in cells if cell is not None]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: object) -> bool:
        return key in self._cells


def _object(line: str, origin: str) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=_once)
        if "\\ud" in line.lower():
            json.dumps(
                record, ensure_ascii=False
            ).encode()  # half of a pair of surrogates is no text
    except (ValueError, RecursionError) as error:
        said = getattr(error, "msg", None) or error
        raise DataError(
            f"{origin}: is no JSON object ({printable(str(said), 100)}); {_ONE_A_LINE}"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{origin}: is JSON, but no object; {_ONE_A_LINE}")
    return record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {quote(twice)} twice")
    return record
