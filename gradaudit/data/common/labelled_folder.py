"""Folders of files, a record each, that a table describes or sub-folders divide into classes."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import JsonValue

from gradaudit.core.files import expect_file
from gradaudit.core.text import printable
from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.roles import Labels, assemble, labels_of, named_label
from gradaudit.data.common.table_columns import Inputs
from gradaudit.data.common.tables import TextTable, read_table
from gradaudit.data.common.tabular import DescribedRecords
from gradaudit.data.records import Records
from gradaudit.errors import DataError, UsageError

_MOST_NAMED = 20
_FORK = "._"
"""How macOS begins the name of a file's attributes, which it puts beside the file."""


@dataclass(frozen=True, kw_only=True)
class LabelledFolder(DescribedRecords):
    """A folder whose files are records.

    With a table, each of its lines names a file in the folder; without one, the sub-folders are
    the classes. The report names files that are not read.

    Attributes:
        table: CSV file or one of JSON lines, as it is or in the folder.
        file: the table's column of file names; ``file``, ``filename``, ``path`` and the like are
            found by themselves.
        task: whether the label is a class or a number; its values decide where it is not given.
    """

    what: ClassVar[str]
    """What the files hold, for messages."""
    suffixes: ClassVar[frozenset[str]]
    file_columns: ClassVar[tuple[str, ...]]
    """Names that the table's column of file names may have."""

    table: str | None = None
    file: str | None = None
    task: Literal["classification", "regression"] | None = None

    def load(self) -> Records:
        """Read the files."""
        folder = Path(self.source).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")
        return self._classes(folder) if self.table is None else self._described(folder, self.table)

    @abstractmethod
    def inputs_in(self, files: Sequence[Path], folder: str) -> Inputs:
        """The inputs in these files.

        Raises:
            UsageError: an option does not suit them.
            DataError: one cannot be read, or they differ in size.
        """

    def _classes(self, folder: Path) -> Records:
        for option in ("file", "label", "attribute", "user", "member"):
            if getattr(self, option):
                raise UsageError(
                    f"{self.name}:{self.source}: {option}= names a column of a table; name the "
                    "table with table=FILE.csv"
                )
        kinds = {
            kind.name: [
                inside(folder, f"{kind.name}/{f.name}", str(folder))
                for f in sorted(kind.iterdir())
                if f.suffix.lower() in self.suffixes and not f.name.startswith(_FORK)
            ]
            for kind in sorted(folder.iterdir())
            if kind.is_dir()
        }
        classes = tuple(kind for kind, files in kinds.items() if files)
        if len(classes) < 2:
            raise DataError(
                f"{folder}: {len(classes)} sub-folders hold {self.what}; make one for each class, "
                "or name a table with table=FILE.csv"
            )
        codes = np.repeat(np.arange(len(classes)), [len(kinds[kind]) for kind in classes])
        files = [file for kind in classes for file in kinds[kind]]
        labels = Labels(codes, classes, str(folder))
        return assemble(self.inputs_in(files, str(folder)), labels, notes=_unread(folder, files))

    def _described(self, folder: Path, name: str) -> Records:
        here = Path(name).expanduser()
        path = here if here.is_file() else folder / name
        table = read_table(path)
        labels = labels_of(table.column(named_label(self.label, "COL", table.file)), self.task)
        table.names((*self.attribute, *filter(None, (self.user, self.member))))
        name = self._file_column(table)
        files = [inside(folder, cell.strip(), table.file) for cell in table.texts(name)]
        records = self.described(table, self.inputs_in(files, str(folder)), labels, used=[name])
        return replace(records, notes=records.notes | _unread(folder, [*files, path]))

    def _file_column(self, table: TextTable) -> str:
        name = self.file
        if name is None:
            name = next((name for name in self.file_columns if name in table.cells), None)
        if name is None:
            raise UsageError(f"{table.file}: name the column of the file names with file=COL")
        return choose(name, table.cells, table.file, "column")


def _unread(folder: Path, files: Sequence[Path]) -> dict[str, JsonValue]:
    """The note that names files in a folder that are none of these; empty where there are none."""
    read = {os.path.realpath(file) for file in files}
    every = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    left = sorted(
        f.relative_to(folder).as_posix() for f in every if os.path.realpath(f) not in read
    )
    more = [f"{len(left) - _MOST_NAMED} more"] if len(left) > _MOST_NAMED else []
    return {"unread": [*left[:_MOST_NAMED], *more]} if left else {}


def inside(folder: Path, name: str, origin: str) -> Path:
    """The regular file of that name, which must lie in the folder, links followed."""
    file = folder / name
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        raise DataError(
            f"{origin}: {quote(name)} is not inside {folder}; copy the file into the folder"
        )
    try:
        return expect_file(file)
    except UsageError as error:
        raise DataError(printable(str(error), 1000)) from error
