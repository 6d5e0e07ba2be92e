"""Columns of a table as the numbers a model takes, with the schema of where each column lies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.common.checks import expect_to_fit
from gradaudit.data.common.columns import MISSING, Column
from gradaudit.data.records import Feature
from gradaudit.errors import DataError
from gradaudit.text import printable

Scale = Literal["none", "standard"]


@dataclass(frozen=True)
class Inputs:
    """The inputs of a data set: (records, …) numbers, their schema, and what was done to them."""

    array: NDArray[Any]
    features: tuple[Feature, ...] = ()
    notes: dict[str, JsonValue] = field(default_factory=dict)


def encode(columns: Sequence[Column], origin: str, scale: Scale = "standard") -> Inputs:
    """Columns side by side: text one-hot, numbers as they are or standardised.

    A missing text is a category of its own; a missing number becomes the column's median. A
    standardised column has mean 0 and (population) deviation 1 over these records; a constant one
    becomes 0.

    Args:
        columns: of the same records.
        origin: their file, for messages.
        scale: whether numbers are standardised.

    Returns:
        (records, positions) float32 in the order of the columns.

    Raises:
        DataError: no column is left, a text column has too many values to be categories, a number
            is infinite, or the whole would take too much memory.
    """
    widths = [1 if column.numbers is not None else len(column.values) for column in columns]
    if not columns:
        raise DataError(f"{origin}: no column is left to be an input; drop fewer")
    for column in columns:
        if column.numbers is None:
            column.expect_few_values(f"take it out with drop={printable(column.name)}")
    expect_to_fit((len(columns[0]), sum(widths)), origin)
    inputs = np.zeros((len(columns[0]), sum(widths)), dtype=np.float32)
    starts = np.cumsum([0, *widths[:-1]]).tolist()
    features = tuple(
        _write(inputs, column, start, scale) for column, start in zip(columns, starts, strict=True)
    )
    return Inputs(inputs, features, _notes(columns, scale))


def standardise(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Each column to mean 0 and (population) deviation 1; a constant one to 0.

    Args:
        inputs: (records, positions) real numbers.
    """
    wide = inputs.astype(np.float64)
    constant = wide.max(axis=0) == wide.min(axis=0)
    deviation = np.where(constant, 1.0, wide.std(axis=0))
    centre = np.where(constant, wide[0], wide.mean(axis=0))
    scaled: NDArray[np.float32] = ((wide - centre) / deviation).astype(np.float32)
    return scaled


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


def _write(inputs: NDArray[np.float32], column: Column, start: int, scale: Scale) -> Feature:
    if column.numbers is None:
        inputs[np.arange(len(column)), start + column.codes] = 1
        positions = tuple(range(start, start + len(column.values)))
        return Feature(column.name, positions, values=column.values)
    numbers = column.quantities()
    numbers = np.where(np.isnan(numbers), np.nanmedian(numbers), numbers)
    inputs[:, start] = standardise(numbers[:, None])[:, 0] if scale == "standard" else numbers
    low, high = float(inputs[:, start].min()), float(inputs[:, start].max())
    return Feature(column.name, (start,), (low, high))


def _notes(columns: Sequence[Column], scale: Scale) -> dict[str, JsonValue]:
    """What the encoding did, for the report: names of columns and counts of records."""
    numeric = [column for column in columns if column.numbers is not None]
    text = [column for column in columns if column.numbers is None]
    notes: dict[str, JsonValue] = {
        "scale": scale,
        "numeric": len(numeric),
        "one_hot": {column.name: len(column.values) for column in text},
        "imputed_by_median": {c.name: c.missing for c in numeric if c.missing},
        "missing_as_category": {c.name: c.missing for c in text if MISSING in c.values},
        "constant": [c.name for c in columns if len(c.values) == 1],
        "count_the_records": [c.name for c in numeric if _counts_records(c)],
    }
    return {key: note for key, note in notes.items() if note or key in ("scale", "numeric")}


def _counts_records(column: Column) -> bool:
    """Whether the column is the number of the row, which says nothing of a record."""
    steps = np.diff(column.quantities())
    return len(steps) > 1 and bool((steps == 1).all())
