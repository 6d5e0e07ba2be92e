"""Tables that describe records: columns become labels, attributes, users, and inputs too."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.arrays import Archive
from gradaudit.data.common.roles import (
    Labels,
    assemble,
    labels_of,
    left_aside,
    named_label,
)
from gradaudit.data.common.table_columns import Inputs, encode
from gradaudit.data.common.tables import TextTable
from gradaudit.data.records import Records


@dataclass(frozen=True, kw_only=True)
class DescribedRecords(DataAdapter):
    """The options of all records that a table describes, whatever their inputs are.

    Attributes:
        label: column or key of the task's label.
        attribute: those of private attributes; a quantity is split in halves at its median.
        user: column that says whose record it is.
        member: column that says whether a record was trained on.
    """

    label: str | None = None
    attribute: tuple[str, ...] = ()
    user: str | None = None
    member: str | None = None

    def described(
        self, table: TextTable | Archive, inputs: Inputs, labels: Labels, used: Iterable[str]
    ) -> Records:
        """Records of these inputs and labels with the table's columns; a note names unused ones.

        Args:
            table: of columns of the records.
            inputs: of the records.
            labels: of the records.
            used: the columns that inputs are made of, or that are left out on request.
        """
        served = (*used, self.label, *table.names(self.attribute), self.user, self.member)
        return assemble(
            inputs,
            labels,
            map(table.column, table.names(self.attribute)),
            user=None if self.user is None else table.column(self.user),
            member=None if self.member is None else table.column(self.member),
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
    inputs, those of attributes are. A first column without a name that counts the records from 0,
    as pandas writes its index, is left out too.

    Attributes:
        drop: columns that are no inputs; they can still be attributes.
        columns: ``one-hot`` groups or ``codes`` of categories; all whole numbers where every
            column is one.
        scale: ``none`` for numbers as the file has them, ``standard`` for mean 0 and deviation 1
            over these records.
        task: whether the label is a class or a number; its values decide where it is not given.
    """

    drop: tuple[str, ...] = ()
    columns: Literal["one-hot", "codes"] = "one-hot"
    scale: Literal["none", "standard"] = "none"
    task: Literal["classification", "regression"] | None = None

    def labels_in(self, table: TextTable) -> Labels:
        """The task's labels."""
        return labels_of(table.column(named_label(self.label, "COL", table.file)), self.task)

    def records_of(self, table: TextTable) -> Records:
        """The table's records, encoded."""
        dropped = table.names(self.drop)
        elsewhere = {self.label, self.user, self.member, *dropped}
        index = None if table.index in elsewhere else table.index
        elsewhere.add(index)
        columns = [table.column(name) for name in table.cells if name not in elsewhere]
        inputs = encode(columns, table.file, self.scale, self.columns)
        inputs.notes.update({"dropped": list(dropped)} if dropped else {})
        inputs.notes.update({"index": index} if index else {})
        return self.described(table, inputs, self.labels_in(table), used=table.cells)
