"""Pictures in a folder, described by a table or by their sub-folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gradaudit.data.common.labelled_folder import LabelledFolder
from gradaudit.data.common.picture_files import PictureAdapter, named_files
from gradaudit.data.common.table_columns import Inputs


@dataclass(frozen=True, kw_only=True)
class ImageFolder(LabelledFolder, PictureAdapter):
    """Pictures in a folder.

    With a table, each of its lines names a picture in the folder; without one, the sub-folders are
    the classes. The report names files that are not read.
    """

    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "a folder of pictures, with a table or a sub-folder for each class"
    example: ClassVar[str] = "images:DIR?table=FILE.csv&label=COL&attribute=COL&size=32x32"
    what: ClassVar[str] = "pictures"
    suffixes: ClassVar[frozenset[str]] = frozenset(
        {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
    )
    file_columns: ClassVar[tuple[str, ...]] = (
        *("file", "filename", "file_name", "image", "image_id", "path"),
    )

    def inputs_in(self, files: Sequence[Path], folder: str) -> Inputs:
        """The pictures, prepared."""
        return self.read_pictures(named_files, files, folder)
