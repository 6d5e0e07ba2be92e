"""One column of a table or one array of an archive, factorised.

The different values are kept in order, and for each record the index of its value, so whatever
looks at values looks at each of them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.common.checks import quote
from gradaudit.errors import DataError, UsageError

MISSING = "(missing)"
MAX_VALUES = 1000

_MISSING_CELLS = frozenset({"", "?", "na", "n/a", "nan", "null"})
_FEW_NUMBERS = 20
_FEW_VALUES = 50
_EXACT_DIGITS = 15


@dataclass(frozen=True)
class Column:
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
        stripped = [cell.strip() for cell in index]
        names = [MISSING if cell.lower() in _MISSING_CELLS else cell for cell in stripped]
        numbers = _numbers(names)
        if numbers is None:
            return cls._of_names(name, origin, codes, names)
        return cls._of_numbers(name, origin, codes, numbers)

    @classmethod
    def of_array(cls, name: str, origin: str, array: NDArray[Any]) -> Self:
        """A column of a (records,) array of numbers, truth values or text.

        Raises:
            DataError: the array has another shape or kind.
        """
        if array.ndim != 1 or array.dtype.kind not in "biufU":
            raise DataError(
                f"{origin}: is {array.dtype} of shape {array.shape}; one number or text a record "
                "is needed"
            )
        if array.dtype.kind == "U" or _inexact(array):
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
    def discrete(self) -> bool:
        """Whether the values read as names of something rather than as a quantity.

        Text does; so do at most 20 different whole numbers, or all of 0 … K−1.
        """
        if self.numbers is None:
            return True
        known = self.numbers[~np.isnan(self.numbers)]
        if not np.array_equal(known, np.round(known)):
            return False
        counting = np.array_equal(known, np.arange(len(known)))
        return len(known) <= (MAX_VALUES if counting else _FEW_NUMBERS)

    def quantities(self) -> NDArray[np.float64]:
        """Each record's number, (records,), NaN where missing.

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

    def expect_few_values(self, remedy: str) -> None:
        """Refuse a column whose values are names of single records.

        Raises:
            DataError: over 1,000 different values, or more than one for two records.
        """
        limit = min(MAX_VALUES, max(_FEW_VALUES, len(self) // 2))
        if len(self.values) > limit:
            text = [value for value in self.values if not _is_number(value) and value != MISSING]
            hint = f", such as {quote(text[0])}," if text else ""
            raise DataError(
                f"{self.origin}: {len(self.values):,} different values{hint} among {len(self):,} "
                f"records are no categories; {remedy}"
            )


def _numbers(names: Sequence[str]) -> NDArray[np.float64] | None:
    if not all(name == MISSING or _is_number(name) for name in names):
        return None
    if all(name == MISSING for name in names):
        return None
    return np.array([np.nan if name == MISSING else float(name) for name in names])


def _inexact(array: NDArray[Any]) -> bool:
    """Whether the array holds whole numbers too long for a float64, as identifiers are."""
    return array.dtype.kind in "iu" and bool((np.abs(array) >= 10**_EXACT_DIGITS).any())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    too_long_to_be_exact = text.isdigit() and len(text) > _EXACT_DIGITS
    return "_" not in text and not too_long_to_be_exact


def spell(number: float) -> str:
    """A number as the name of a value: whole ones without a point, the rest in full."""
    if np.isnan(number):
        return MISSING
    return (
        str(int(number))
        if number.is_integer() and abs(number) < 10**_EXACT_DIGITS
        else repr(number)
    )
