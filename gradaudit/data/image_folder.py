"""Pictures in a folder, described by a table or by their sub-folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.columns import Inputs
from gradaudit.data.common.picture_adapter import PictureAdapter
from gradaudit.data.common.roles import Labels, assemble, labels_of, left_aside
from gradaudit.data.common.tables import TextTable, read_table
from gradaudit.data.records import Records
from gradaudit.errors import DataError, UsageError
from gradaudit.text import printable

_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_FILE_COLUMNS = ("file", "filename", "file_name", "image", "image_id", "path")


@dataclass(frozen=True, kw_only=True)
class ImageFolder(PictureAdapter):
    """Pictures in a folder.

    With a table, each of its lines names a picture in the folder; without one, the sub-folders are
    the classes.

    Attributes:
        table: CSV file, as it is or in the folder.
        file: the table's column of file names; ``file``, ``filename``, ``image`` or ``path`` is
            found by itself.
        label: column of the task's label.
        attribute: columns of private attributes; a quantity is split in halves at its median.
        user: column that says whose record it is.
        member: column that says whether a record was trained on.
        task: whether the label is a class or a number; told by its values if not said.
    """

    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "a folder of pictures, with a table or a sub-folder for each class"
    example: ClassVar[str] = "images:DIR?table=FILE.csv&label=COL&attribute=COL&size=32x32"

    table: str | None = None
    file: str | None = None
    label: str | None = None
    attribute: tuple[str, ...] = ()
    user: str | None = None
    member: str | None = None
    task: Literal["classification", "regression"] | None = None

    def load(self) -> Records:
        """Read the pictures."""
        folder = Path(self.source).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")
        return self._classes(folder) if self.table is None else self._described(folder, self.table)

    def _classes(self, folder: Path) -> Records:
        for option in ("file", "label", "attribute", "user", "member"):
            if getattr(self, option):
                raise UsageError(
                    f"images:{self.source}: {option}= names a column of a table; name the table "
                    "with table=FILE.csv"
                )
        kinds = {
            kind.name: [file for file in sorted(kind.iterdir()) if file.suffix.lower() in _SUFFIXES]
            for kind in sorted(folder.iterdir())
            if kind.is_dir()
        }
        classes = tuple(kind for kind, files in kinds.items() if files)
        if len(classes) < 2:
            raise DataError(
                f"{folder}: {len(classes)} sub-folders hold pictures; make one for each class, or "
                "name a table with table=FILE.csv"
            )
        codes = np.repeat(np.arange(len(classes)), [len(kinds[kind]) for kind in classes])
        files = [file for kind in classes for file in kinds[kind]]
        return assemble(self._pictures(files, folder), Labels(codes, classes, str(folder)))

    def _described(self, folder: Path, name: str) -> Records:
        here = Path(name).expanduser()
        table = read_table(here if here.is_file() else folder / name)
        if self.label is None:
            raise UsageError(f"{table.file}: name the column of the label with label=COL")
        label = labels_of(table.column(self.label), self.task)
        attributes = table.columns(self.attribute)
        user, member = table.column_if(self.user), table.column_if(self.member)
        name = self._file_column(table)
        files = [_inside(folder, cell, table.file) for cell in table.cells[name]]
        served = (name, self.label, *table.names(self.attribute), self.user, self.member)
        return assemble(
            self._pictures(files, folder),
            label,
            attributes,
            user=user,
            member=member,
            notes=left_aside(table.cells, served),
        )

    def _file_column(self, table: TextTable) -> str:
        name = self.file
        if name is None:
            name = next((name for name in _FILE_COLUMNS if name in table.cells), None)
        if name is None:
            raise UsageError(f"{table.file}: name the column of the file names with file=COL")
        return choose(name, table.cells, table.file, "column")

    def _pictures(self, files: Sequence[Path], folder: Path) -> Inputs:
        return self.prepared([(printable(str(file)), file) for file in files], str(folder))


def _inside(folder: Path, cell: str, table: str) -> Path:
    """A file that a table names, which must lie in the folder."""
    file = folder / cell.strip()
    if not file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{table}: {quote(cell)} is not inside {folder}; name files in the folder")
    return file
