"""Folders that Hugging Face's ``datasets`` wrote by ``save_to_disk``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gradaudit.data.common.arrays import as_inputs
from gradaudit.data.common.arrow_frame import Frame
from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.class_order import in_order
from gradaudit.data.common.columns import Inputs, numeric_features
from gradaudit.data.common.hf_folder import IMAGE, open_folder
from gradaudit.data.common.picture_adapter import PictureAdapter
from gradaudit.data.common.pictures import Picture
from gradaudit.data.common.roles import assemble, labels_of
from gradaudit.data.common.tabular import Tabular
from gradaudit.data.records import Records
from gradaudit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class HfDatasets(PictureAdapter, Tabular):
    """A data set that ``datasets`` saved: its Arrow files are read, and no code of anybody's.

    The column of inputs holds pictures, lists of numbers, or lists of whole numbers, which are
    tokens. Where none is named it is the only one of pictures that is not dropped; where there is
    none of these, all others are a table. Class labels have the order of their names, whole numbers
    are the model's class indices. Nothing is ever downloaded; ``gradaudit[datasets]`` is needed.

    Attributes:
        inputs: column of the inputs.
        split: which of several; ``test`` where none is named.
    """

    name: ClassVar[str] = "hf-datasets"
    summary: ClassVar[str] = "a folder of Hugging Face's datasets, made by save_to_disk"
    example: ClassVar[str] = "hf-datasets:DIR?label=COL&inputs=COL&attribute=COL&split=test"

    inputs: str | None = None
    split: str | None = None

    def load(self) -> Records:
        """Read the folder."""
        saved = open_folder(Path(self.source), self.split)
        column = self._column(saved.frame, saved.of_kind(IMAGE))
        if column is None:
            records = self.records_of(saved.frame.table())
        else:
            records = self._of_column(saved.frame, column, column in saved.of_kind(IMAGE))
        names = saved.class_names(self.label)
        return in_order(records, names, self.source) if names and records.classes else records

    def _column(self, frame: Frame, images: list[str]) -> str | None:
        """The column of the inputs, None where they are a table."""
        if self.inputs is not None:
            return choose(self.inputs, frame.schema.names, frame.origin, "column")
        shown = set(images) - set(frame.table().names(self.drop))
        return shown.pop() if len(shown) == 1 else None

    def _of_column(self, frame: Frame, column: str, images: bool) -> Records:
        table = frame.table()
        return assemble(
            self._images(frame, column) if images else self._arrays(frame, column),
            labels_of(table.column(self.label), self.task),
            table.columns(self.attribute),
            user=table.column_if(self.user),
            member=table.column_if(self.member),
        )

    def _images(self, frame: Frame, column: str) -> Inputs:
        origin = f"{frame.origin}: column {quote(column)}"
        return self.prepared(list(_decoded(frame, column, origin)), origin)

    def _arrays(self, frame: Frame, column: str) -> Inputs:
        origin = f"{frame.origin}: column {quote(column)}"
        raw = frame.array(column)
        array = as_inputs(raw, origin, tokens=raw.dtype.kind in "iu" and raw.ndim == 2)
        if self.normalize is not None:
            return self.normal(array, origin, {})
        return Inputs(array, numeric_features(array))


def _decoded(frame: Frame, column: str, origin: str) -> Iterator[tuple[str, Picture]]:
    """Pictures from the bytes in the file; what lies elsewhere is not looked for."""
    cells = (cell for chunk in frame.chunks(column) for cell in chunk.to_pylist())
    for index, cell in enumerate(cells):
        content = (cell or {}).get("bytes")
        name = f"{origin}: picture {index}"
        if content is None:
            raise DataError(
                f"{name} is not in the file but elsewhere; save the data set with its pictures "
                "(Dataset.cast_column with Image(), then save_to_disk)"
            )
        yield name, content
