"""Tables that describe records: columns become labels, attributes, users, and inputs too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.checks import expect_names, quote
from gradaudit.data.common.roles import (
    Labels,
    assemble,
    labels_of,
    left_aside,
    named_label,
    no_labels,
)
from gradaudit.data.common.table_columns import Inputs, encode
from gradaudit.data.common.tables import UNNAMED, TextTable
from gradaudit.data.records import Feature, Records
from gradaudit.errors import DataError

_FORMS = (
    "columns map each name, in the order of the inputs, to None (a number), (low, high) or a list "
    "of the categories' names"
)


@dataclass(frozen=True, kw_only=True)
class DescribedRecords(DataAdapter):
    """The options of all records that a table describes, whatever their inputs are.

    Attributes:
        label: column of the task's label.
        attribute: columns of private attributes; a quantity is split in halves at its median.
        user: column that says whose record it is.
        member: column that says whether a record was trained on.
    """

    label: str | None = None
    attribute: tuple[str, ...] = ()
    user: str | None = None
    member: str | None = None

    def described(
        self, table: TextTable, inputs: Inputs, labels: Labels, used: Iterable[str]
    ) -> Records:
        """Records of these inputs and labels with the table's columns; a note names unused ones.

        Args:
            table: a line for each record.
            inputs: of the records.
            labels: of the records.
            used: the columns that inputs are made of, or that are left out on request.
        """
        served = (*used, self.label, *table.names(self.attribute), self.user, self.member)
        return assemble(
            inputs,
            labels,
            table.columns(self.attribute),
            user=table.column_if(self.user),
            member=table.column_if(self.member),
            notes={**left_aside(table.cells, served), **table.notes},
        )


@dataclass(frozen=True, kw_only=True)
class Tabular(DescribedRecords):
    """The options of every table, of which each other column is an input.

    Columns keep the order of the file. Text becomes one-hot groups in the order of the names, or
    codes from 0 in that order, a column each, for a model that looks them up in embeddings;
    numbers stay as they are unless ``scale=standard`` is asked for. A missing text is a category
    of its own, a missing number becomes the median, and a date is a text; the report's data section
    and its scope say all of it. The columns of the label, the users and the membership are no
    inputs, those of attributes are; nor is a first column without a name that has another text in
    every record.

    Attributes:
        labels: ``none`` where there are none, for a loss of the outputs alone.
        drop: columns that are no inputs; they can still be attributes.
        categorical: columns of numbers that are codes of categories.
        columns: ``one-hot`` groups or ``codes`` of categories; all whole numbers where every
            column is one.
        scale: ``none`` for numbers as the file has them, ``standard`` for mean 0 and deviation 1
            over these records.
        task: whether the label is a class or a number; its values decide where it is not given.
    """

    labels: Literal["given", "none"] = "given"
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    columns: Literal["one-hot", "codes"] = "one-hot"
    scale: Literal["none", "standard"] = "none"
    task: Literal["classification", "regression"] | None = None

    def labels_in(self, table: TextTable, records: int) -> Labels:
        """The task's labels, none where that was said."""
        label = named_label(self.label, self.labels, "COL", table.file)
        if label is None:
            return no_labels(records, table.file)
        return labels_of(table.column(label), self.task)

    def records_of(self, table: TextTable) -> Records:
        """The table's records, encoded."""
        dropped, categorical = table.names(self.drop), table.names(self.categorical)
        elsewhere = {self.label, self.user, self.member, *dropped}
        columns = [table.column(name) for name in table.cells if name not in elsewhere]
        names = [c.name for c in columns[:1] if c.name == UNNAMED and c.names_records]
        columns = columns[len(names) :]
        chosen = [replace(c, numbers=None) if c.name in categorical else c for c in columns]
        inputs = encode(chosen, table.file, self.scale, self.columns)
        inputs.notes.update({"dropped": list(dropped)} if dropped else {})
        inputs.notes.update({"row_names": [*names]} if names else {})
        labels = self.labels_in(table, len(inputs.array))
        return self.described(table, inputs, labels, used=table.cells)


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
    if inputs.ndim != 2:
        raise DataError(
            f"{origin}: are of shape {inputs.shape}; columns go with (records, positions)"
        )
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise DataError(f"{origin}: columns are a {type(given).__name__}; {_FORMS}")
    named = given.items() if isinstance(given, Mapping) else [(name, None) for name in given]
    columns = [(str(name), kind) for name, kind in named]
    expect_names([name for name, _ in columns], f"{origin}: columns")
    coded, start, features = inputs.dtype.kind in "iu", 0, []
    for name, kind in columns:
        where = f"{origin}: column {quote(name)}"
        low, high, values = _declared(kind, where)
        positions = tuple(range(start, start + (1 if coded or not values else len(values))))
        start = positions[-1] + 1
        if start > inputs.shape[1]:
            break
        cells = inputs[:, positions]
        if values:
            _expect_categories(cells, len(values), where)
            features.append(Feature(name, positions, values=values, coded=coded))
        else:
            features.append(Feature(name, positions, _range(cells, low, high, where)))
    if start != inputs.shape[1]:
        width = "more" if start > inputs.shape[1] else str(start)
        raise DataError(
            f"{origin}: have {inputs.shape[1]} positions, and the columns take {width}; {_FORMS}"
        )
    return tuple(features)


def _declared(kind: Any, origin: str) -> tuple[float, float, tuple[str, ...]]:
    """Returns lowest and highest number, and the names of the categories; either means nothing."""
    if kind is None:
        return -np.inf, np.inf, ()
    parts = list(kind) if isinstance(kind, Sequence) and not isinstance(kind, str) else []
    if parts and all(isinstance(part, str) for part in parts):
        expect_names(parts, origin)
        return -np.inf, np.inf, tuple(parts)
    numbers = len(parts) == 2 and all(isinstance(part, int | float) for part in parts)
    if not numbers or not parts[0] <= parts[1]:
        raise DataError(f"{origin}: is {kind!r}; {_FORMS}")
    return float(parts[0]), float(parts[1]), ()


def _range(cells: NDArray[Any], low: float, high: float, origin: str) -> tuple[float, float]:
    """Returns the declared range of a number, or the observed one where none is declared."""
    outside = (cells[:, 0] < low) | (cells[:, 0] > high)
    if outside.any():
        record = int(outside.argmax())
        raise DataError(
            f"{origin}: record {record + 1} holds {cells[record, 0]:g}, outside {low:g} … {high:g}"
        )
    if np.isfinite(low):
        return low, high
    return float(cells.min()), float(cells.max())


def _expect_categories(cells: NDArray[Any], count: int, origin: str) -> None:
    """Refuse cells that are no one-hot group, or codes beyond the categories, with a DataError."""
    if cells.dtype.kind in "iu":
        wrong = (cells[:, 0] < 0) | (cells[:, 0] >= count)
        needed = f"a code from 0 to {count - 1}"
    else:
        wrong = ~np.isin(cells, (0, 1)).all(axis=1) | (cells.sum(axis=1) != 1)
        needed = "a single 1 among zeros"
    if wrong.any():
        record = int(wrong.argmax())
        raise DataError(
            f"{origin}: record {record + 1} holds {cells[record].tolist()}, not {needed}"
        )
