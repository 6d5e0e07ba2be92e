"""Columns of a table, or arrays of an archive, factorised; and as the numbers that a model takes.

The different values are kept in order, and for each record the index of its value, so whatever
looks at values looks at each of them once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.common.checks import expect_names, expect_to_fit, quote
from gradaudit.data.records import Feature
from gradaudit.errors import DataError, UsageError

MISSING = "(missing)"
MAX_VALUES = 1000
"""The most different values of an attribute or of a column that is encoded one-hot."""
MAX_CLASSES = 1_000_000
"""Largest number of classes of labels."""

_MISSING_CELLS = frozenset({"", "?", "na", "n/a", "nan", "null"})
_FEW_NUMBERS = 20
_FEW_VALUES = 50
_EXACT_DIGITS = 15
_FORMS = (
    "columns map each name, in the order of the inputs, to None (a number), (low, high) or a list "
    "of the categories' names"
)
NOT_A_TABLE = "scale=standard is for a table (records, columns); leave it out"


@dataclass(frozen=True)
class DataColumn:
    """A named column: record i holds ``values[codes[i]]``.

    Attributes:
        name: as in the header of the table or the key of the archive.
        origin: file and column, for messages.
        codes: (records,) int64.
        values: the different values, in the order of their numbers, else of their names.
        numbers: the values as numbers (NaN where missing), or None where one is not a number.
    """

    name: str
    origin: str
    codes: NDArray[np.int64]
    values: tuple[str, ...]
    numbers: NDArray[np.float64] | None = None

    @classmethod
    def of_text(cls, name: str, origin: str, cells: Sequence[str]) -> Self:
        """A column of text: numeric where every cell is a number or missing.

        Cells are stripped; an empty one, ``?``, ``NA``, ``N/A``, ``nan`` and ``null`` are missing.
        """
        index = {cell: position for position, cell in enumerate(dict.fromkeys(cells))}
        codes = np.fromiter(map(index.__getitem__, cells), np.int64, len(cells))
        return cls.of_codes(name, origin, codes, list(index))

    @classmethod
    def of_codes(cls, name: str, origin: str, codes: NDArray[Any], cells: Sequence[str]) -> Self:
        """Read a column whose record i holds the text ``cells[codes[i]]``, as ``of_text`` does."""
        stripped = [cell.strip() for cell in cells]
        names = [MISSING if cell.lower() in _MISSING_CELLS else cell for cell in stripped]
        occurring = np.unique(codes)
        if len(occurring) < len(names):
            codes, names = np.searchsorted(occurring, codes), [names[code] for code in occurring]
        numbers = _numbers(names)
        if numbers is None:
            return cls._of_names(name, origin, codes, names)
        return cls._of_numbers(name, origin, codes, numbers)

    @classmethod
    def of_array(cls, name: str, origin: str, array: NDArray[Any]) -> Self:
        """A column of a (records,) array of numbers, truth values or text; else a DataError."""
        if array.ndim != 1 or array.dtype.kind not in "biufU":
            raise DataError(
                f"{origin}: is {array.dtype} of shape {array.shape}; one number or text a record "
                "is needed"
            )
        whole = array.dtype.kind in "iu"  # those too long for a float64 are identifiers
        if array.dtype.kind == "U" or (whole and (np.abs(array) >= 10**_EXACT_DIGITS).any()):
            return cls.of_text(name, origin, array.astype(np.str_).tolist())
        distinct, codes = np.unique(array, return_inverse=True)
        return cls._of_numbers(name, origin, codes.astype(np.int64), distinct.astype(np.float64))

    @classmethod
    def _of_names(
        cls, name: str, origin: str, codes: NDArray[np.int64], names: Sequence[str]
    ) -> Self:
        distinct, inverse = np.unique(np.array(names, dtype=object), return_inverse=True)
        return cls(name, origin, inverse[codes], tuple(distinct.tolist()))

    @classmethod
    def _of_numbers(
        cls, name: str, origin: str, codes: NDArray[np.int64], numbers: NDArray[np.float64]
    ) -> Self:
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return cls(name, origin, inverse[codes], tuple(map(spell, distinct.tolist())), distinct)

    def __len__(self) -> int:
        return len(self.codes)

    def named(self, names: Sequence[str]) -> Self:
        """The column with the whole number i read as ``names[i]``; itself where one has no name."""
        known = self.numbers
        if known is None or not np.isin(known, np.arange(len(names))).all():
            return self
        return replace(self, values=tuple(names[int(i)] for i in known), numbers=None)

    @property
    def missing(self) -> int:
        """The number of records whose value is missing."""
        if MISSING not in self.values:
            return 0
        return int((self.codes == self.values.index(MISSING)).sum())

    @property
    def known(self) -> NDArray[np.float64]:
        """The different numbers that are not missing; none of text."""
        return np.empty(0) if self.numbers is None else self.numbers[~np.isnan(self.numbers)]

    @property
    def discrete(self) -> bool:
        """Whether the values read as names of something rather than as a quantity.

        Text does; so do at most 20 different whole numbers, or all of 0 … K−1.
        """
        most = MAX_VALUES if self.counting else _FEW_NUMBERS
        return self.numbers is None or (self.whole and len(self.known) <= most)

    @property
    def whole(self) -> bool:
        """Whether all values that are known are whole numbers."""
        return self.numbers is not None and np.array_equal(self.known, np.round(self.known))

    @property
    def counting(self) -> bool:
        """Whether the values are the whole numbers 0 … K−1, each of which occurs."""
        known = self.known
        return self.numbers is not None and np.array_equal(known, np.arange(len(known)))

    def quantities(self) -> NDArray[np.float64]:
        """Returns each record's number, (records,); NaN where it is missing.

        Raises:
            UsageError: the column holds text.
            DataError: a number is infinite, or too large for float32.
        """
        if self.numbers is None:
            example = next(value for value in self.values if not _is_number(value))
            raise UsageError(f"{self.origin}: holds text such as {quote(example)}, not numbers")
        numbers = self.numbers[self.codes]
        beyond = np.abs(numbers) > np.finfo(np.float32).max
        if beyond.any():
            raise DataError(
                f"{self.origin}: {beyond.sum()} values are infinite or too large (first in record "
                f"{beyond.argmax() + 1}); mark them as missing or leave the column out"
            )
        return numbers

    def expect_few_values(self, remedy: str, most: int = MAX_VALUES) -> None:
        """Refuse over ``most`` different values, or more than one for two records: a DataError."""
        limit = min(most, max(_FEW_VALUES, len(self) // 2))
        if len(self.values) > limit:
            text = [i for i, v in enumerate(self.values) if not _is_number(v) and v != MISSING]
            records = np.flatnonzero(np.isin(self.codes, text))
            hint = ""
            if len(records):
                cell = quote(self.values[self.codes[records[0]]])
                hint = f", such as {cell} in record {records[0] + 1},"
            raise DataError(
                f"{self.origin}: {len(self.values):,} different values{hint} among {len(self):,} "
                f"records are no categories (at most {limit:,}); {remedy}"
            )


def with_points(cells: Sequence[str], origin: str) -> Sequence[str]:
    """The cells with a point for a decimal comma, where all are numbers; text as it is.

    Raises:
        DataError: the column is text, and a cell of it a number with a point.
    """
    swapped = [cell.translate({ord("."): ",", ord(","): "."}) for cell in cells]
    if DataColumn.of_text("", origin, swapped).numbers is not None:
        return swapped
    odd = next((c for c in cells if "." in c and _is_number(c.strip())), None)
    if odd is not None:
        raise DataError(
            f"{origin}: {quote(odd)} has a point, and decimal=, says that numbers have a comma; "
            "write all numbers of the file alike"
        )
    return cells


def _numbers(names: Sequence[str]) -> NDArray[np.float64] | None:
    known = [name for name in names if name != MISSING]
    if not known or not all(map(_is_number, known)):
        return None
    return np.array([np.nan if name == MISSING else float(name) for name in names])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    exact = not text.isdigit() or len(text) <= _EXACT_DIGITS
    return exact and "_" not in text


def spell(number: float) -> str:
    """A number as the name of a value: whole ones without a point, the rest in full."""
    if np.isnan(number):
        return MISSING
    whole = number.is_integer() and abs(number) < 10**_EXACT_DIGITS
    return str(int(number)) if whole else repr(number)


Scale = Literal["none", "standard"]
Categories = Literal["one-hot", "codes"]


@dataclass(frozen=True)
class Inputs:
    """The inputs of a data set: (records, …) numbers, their schema, and what was done to them."""

    array: NDArray[Any]
    features: tuple[Feature, ...] = ()
    notes: dict[str, JsonValue] = field(default_factory=dict)


def encode(
    columns: Sequence[DataColumn],
    origin: str,
    scale: Scale = "none",
    categories: Categories = "one-hot",
) -> Inputs:
    """Columns side by side: text one-hot or as codes, numbers as they are or standardised.

    A code is the place of the value among the column's, from 0, for a model that looks it up in an
    embedding.

    A missing text is a category of its own; a missing number becomes the column's median. A
    standardised column has mean 0 and (population) deviation 1 over these records; a constant one
    becomes 0.

    Returns:
        (records, positions) float32 in the order of the columns; int64 where all are codes.

    Raises:
        DataError: no column is left, a text column has too many values to be categories, a number
            is infinite, or the whole would take too much memory.
    """
    coded = categories == "codes"
    text = [column.numbers is None for column in columns]
    widths = [len(c.values) if c.numbers is None and not coded else 1 for c in columns]
    if not columns:
        raise DataError(f"{origin}: no column is left to be an input; drop fewer")
    for column in columns:
        if column.numbers is None:
            column.expect_few_values("write plain numbers such as 1234.5, or fewer categories")
    expect_to_fit((len(columns[0]), sum(widths)), origin)
    inputs = np.zeros((len(columns[0]), sum(widths)), dtype=np.float32)
    starts = np.cumsum([0, *widths[:-1]]).tolist()
    features = tuple(
        _write(inputs, column, start, scale, coded=coded)
        for column, start in zip(columns, starts, strict=True)
    )
    whole = coded and all(text)
    array = inputs.astype(np.int64) if whole else inputs
    return Inputs(array, features, _notes(columns, scale, categories))


def standardise(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Scales each column to mean 0 and (population) deviation 1; a constant one becomes 0."""
    wide = inputs.astype(np.float64)
    constant = wide.max(axis=0) == wide.min(axis=0)
    deviation = np.where(constant, 1.0, wide.std(axis=0))
    centre = np.where(constant, wide[0], wide.mean(axis=0))
    return ((wide - centre) / deviation).astype(np.float32)  # type: ignore[no-any-return]


def numeric_features(inputs: NDArray[Any], names: Sequence[str] = ()) -> tuple[Feature, ...]:
    """The schema of inputs that are no table of text: one column a position of (records, columns).

    Args:
        inputs: (records, …); only real numbers of two dimensions have columns.
        names: the columns' names, where there is one for each; else they are numbered from 0.
    """
    if inputs.ndim != 2 or inputs.dtype.kind != "f":
        return ()
    width = inputs.shape[1]
    named = names if len(names) == width else [str(position) for position in range(width)]
    low, high = inputs.min(axis=0).tolist(), inputs.max(axis=0).tolist()
    return tuple(Feature(name, (i,), (low[i], high[i])) for i, name in enumerate(named))


def table_of(array: NDArray[Any], scale: Scale, origin: str, names: Sequence[str] = ()) -> Inputs:
    """Inputs in an array (records, …), of which the columns of a table may be standardised.

    Args:
        array: as it is read.
        scale: what is done to the columns of a table of real numbers.
        origin: where the array is from, for messages.
        names: the columns' names, where there is one for each.

    Raises:
        UsageError: other inputs are to be standardised.
    """
    if scale == "standard":
        if array.ndim != 2 or array.dtype.kind != "f":
            raise UsageError(f"{origin}: {NOT_A_TABLE}")
        array = standardise(array)
    features = numeric_features(array, names)
    return Inputs(array, features, {"scale": scale} if features else {})


def _write(
    inputs: NDArray[np.float32], column: DataColumn, start: int, scale: Scale, *, coded: bool
) -> Feature:
    if column.numbers is None and coded:
        inputs[:, start] = column.codes
        return Feature(column.name, (start,), values=column.values, coded=True)
    if column.numbers is None:
        inputs[np.arange(len(column)), start + column.codes] = 1
        positions = tuple(range(start, start + len(column.values)))
        return Feature(column.name, positions, values=column.values)
    numbers = column.quantities()
    if (missing := np.isnan(numbers)).any():
        numbers = np.where(missing, np.nanmedian(numbers), numbers)
    inputs[:, start] = standardise(numbers[:, None])[:, 0] if scale == "standard" else numbers
    low, high = float(inputs[:, start].min()), float(inputs[:, start].max())
    return Feature(column.name, (start,), (low, high))


def _notes(
    columns: Sequence[DataColumn], scale: Scale, categories: Categories
) -> dict[str, JsonValue]:
    """Returns the report's notes on the encoding: names of columns and counts of records."""
    numeric = [column for column in columns if column.numbers is not None]
    text = [column for column in columns if column.numbers is None]
    notes: dict[str, JsonValue] = {
        "scale": scale,
        "numeric": len(numeric),
        categories.replace("-", "_"): {column.name: len(column.values) for column in text},
        "imputed_by_median": {c.name: c.missing for c in numeric if c.missing},
        "missing_as_category": {c.name: c.missing for c in text if MISSING in c.values},
        "constant": [c.name for c in columns if len(c.values) == 1],
    }
    return {key: note for key, note in notes.items() if note or key in ("scale", "numeric")}


def declared_features(given: Any, inputs: NDArray[Any], origin: str) -> tuple[Feature, ...]:
    """Return the schema of a table (records, positions) that its user encoded.

    Args:
        given: names of numeric columns, or a mapping in the order of the positions: ``None`` for a
            number in its observed range, ``(low, high)`` for one of a known range, names for
            categories: a one-hot group of as many positions in real numbers, codes from 0 at one
            position in whole numbers.
        inputs: (records, positions).
        origin: the data, for messages.

    Raises:
        DataError: the columns are of another form or width, or the inputs contradict them.
    """
    if inputs.ndim != 2 or isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise DataError(
            f"{origin}: are of shape {inputs.shape}, and columns a {type(given).__name__}; {_FORMS}"
        )
    columns = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)
    expect_names([*map(str, given)], f"{origin}: columns")
    coded, start, features = inputs.dtype.kind in "iu", 0, []
    for name, kind in columns.items():
        where = f"{origin}: column {quote(str(name))}"
        parts = [*kind] if isinstance(kind, Sequence) and not isinstance(kind, str) else []
        names = tuple(part for part in parts if isinstance(part, str))
        width = len(names) if names and not coded else 1
        cells, positions = inputs[:, start : start + width], tuple(range(start, start + width))
        start += width
        if cells.shape[1] < width:
            break
        if names and len(names) == len(parts):
            expect_names(names, where)
            right = _in_group(cells, len(names))
            needed = f"a code from 0 to {len(names) - 1}" if coded else "a single 1 among zeros"
            features.append(Feature(str(name), positions, values=names, coded=coded))
        else:
            low, high = _range(kind, cells, where)
            right = (cells[:, 0] >= low) & (cells[:, 0] <= high)
            needed = f"a number from {low:g} to {high:g}"
            features.append(Feature(str(name), positions, (low, high)))
        if not right.all():
            record = int(right.argmin())
            raise DataError(
                f"{where}: record {record + 1} holds {cells[record].tolist()}, not {needed}"
            )
    if start != inputs.shape[1]:
        taken = "more" if start > inputs.shape[1] else str(start)
        raise DataError(
            f"{origin}: have {inputs.shape[1]} positions, and the columns take {taken}; {_FORMS}"
        )
    return tuple(features)


def _in_group(cells: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Whether each record has a single category: a code, or a 1 among zeros."""
    if cells.dtype.kind in "iu":
        return (cells[:, 0] >= 0) & (cells[:, 0] < count)
    return np.isin(cells, (0, 1)).all(axis=1) & (cells.sum(axis=1) == 1)  # type: ignore[no-any-return]


def _range(kind: Any, cells: NDArray[Any], origin: str) -> tuple[float, float]:
    """Return the declared range of a number, or the observed one where none is declared."""
    if kind is None:
        return float(cells.min()), float(cells.max())
    numbers = isinstance(kind, Sequence) and all(isinstance(part, int | float) for part in kind)
    if not numbers or len(kind) != 2 or not kind[0] <= kind[1]:
        raise DataError(f"{origin}: is {kind!r}; {_FORMS}")
    return float(kind[0]), float(kind[1])
