"""Folders that Hugging Face's ``datasets`` wrote by ``save_to_disk``, as untrusted data.

``state.json`` names the Arrow files beside it, ``dataset_info.json`` has the features' types, and
``dataset_dict.json`` the splits, each a folder of this kind.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from gradaudit.core.files import read_file
from gradaudit.data.common.arrays import as_inputs, scaled
from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.labelled_folder import inside
from gradaudit.data.common.picture_files import Picture, PictureAdapter
from gradaudit.data.common.roles import in_order, left_aside
from gradaudit.data.common.table_columns import MAX_CLASSES, NOT_A_TABLE, Inputs, table_of
from gradaudit.data.common.tables import TextTable, read_frame, read_table
from gradaudit.data.common.tabular import Tabular
from gradaudit.data.records import Records
from gradaudit.errors import DataError, UsageError

IMAGE, CLASS_LABEL = "Image", "ClassLabel"
_MAX_BYTES = 16 << 20
_MAX_FILES = 10_000
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


@dataclass(frozen=True)
class SavedDataset:
    """A saved data set.

    Attributes:
        files: its Arrow files.
        features: what ``datasets`` knows of the columns, by name.
        notes: the split that was read and those that were not, where there are several.
        origin: the folder, for messages.
    """

    files: Sequence[Path]
    features: Mapping[str, Mapping[str, Any]]
    notes: dict[str, JsonValue]
    origin: str

    def of_kind(self, kind: str) -> list[str]:
        """Return the columns of a type of ``datasets``."""
        return [name for name, feature in self.features.items() if feature.get("_type") == kind]

    def read(self, array: str | None = None) -> TextTable:
        """Read the columns, with the names of classes in the place of their numbers.

        Raises:
            UsageError: the library is not installed.
            DataError: a file is damaged, or a class has no name.
        """
        table = read_table(*self.files, origin=self.origin, array=array)
        cells = dict(table.cells)
        for name in self.of_kind(CLASS_LABEL):
            names = _labels(self.features[name])
            codes, texts = cells.get(name, (None, []))
            known = {str(code): label for code, label in enumerate(names)}
            if codes is not None and names:
                cells[name] = codes, [known.get(text, text) for text in texts]
        return replace(table, cells=cells)

    def class_names(self, table: TextTable, column: str | None) -> tuple[str, ...]:
        """Return the names of a column's classes by number: its own, or the numbers."""
        if column is None or column not in table.cells:
            return ()
        if names := _labels(self.features.get(column, {})):
            return tuple(names)
        numbers = (
            [int(text) for text in table.cells[column][1] if text] if column in table.whole else []
        )
        counted = numbers and min(numbers) >= 0 and max(numbers) < MAX_CLASSES
        return tuple(map(str, range(max(numbers) + 1))) if counted else ()


def open_folder(folder: Path, split: str | None) -> SavedDataset:
    """The saved data set in the folder, or in the folder of one of its splits.

    Raises:
        UsageError: there is no such folder or split, or the library is not installed.
        DataError: it is none that ``save_to_disk`` wrote, or a file in it is damaged.
    """
    folder = folder.expanduser()
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder")
    notes: dict[str, JsonValue] = {}
    if (folder / _SPLITS).exists():
        splits = _plain_names(_json(folder / _SPLITS).get("splits"), folder / _SPLITS)
        chosen = choose(split or "test", splits, str(folder), "split")
        notes = {"split": chosen, **left_aside(splits, [chosen], "splits_left")}
        folder = folder / chosen
    elif split is not None:
        raise UsageError(f"{folder}: has no splits; leave out split=")
    state = folder / _STATE
    if not state.exists():
        raise DataError(f"{folder}: is no folder that datasets wrote by save_to_disk; no {_STATE}")
    files = _json(state).get("_data_files")
    entries = files if isinstance(files, list) else []
    listed = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    paths = [inside(folder, name, str(state)) for name in _plain_names(listed, state)]
    return SavedDataset(paths, _features(folder / _INFO), notes, str(folder))


def _features(path: Path) -> dict[str, Mapping[str, Any]]:
    features = _json(path).get("features") if path.exists() else {}
    if not isinstance(features, dict):
        return {}
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def _labels(feature: Mapping[str, Any]) -> list[str]:
    names = feature.get("names") if feature.get("_type") == CLASS_LABEL else None
    plain = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return list(names) if plain and names and len(set(names)) == len(names) else []


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: is damaged ({type(error).__name__}); save the data again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: is not what datasets writes; save the data again")
    return content


def _plain_names(names: object, path: Path) -> list[str]:
    """Names of files or folders beside the one that lists them."""
    if not isinstance(names, list) or not 0 < len(names) <= _MAX_FILES:
        raise DataError(f"{path}: names no files; save the data again")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
            raise DataError(f"{path}: {quote(str(name))} is not beside it; files have no folder")
    return names


@dataclass(frozen=True, kw_only=True)
class HfDatasets(PictureAdapter, Tabular):
    """A data set that ``datasets`` saved: its Arrow files are read, and no code of anybody's.

    The column of inputs holds pictures, lists of numbers, or lists of whole numbers, which are
    tokens. Where none is named it is the only one of pictures that is not dropped; where there is
    none of these, all others are a table. Class labels have the order of their names, whole numbers
    are the model's class indices. Nothing is ever downloaded; ``gradaudit[parquet]`` is needed.

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
        images = saved.of_kind(IMAGE)
        table = saved.read(None if self.inputs in images else self.inputs)
        column = self.inputs or self._only(images, table)
        sure = self.task is None and bool(_labels(saved.features.get(self.label or "", {})))
        adapter = replace(self, task="classification") if sure else self
        if column is None:
            records = adapter.records_of(table)
        else:
            column = choose(column, table.cells, table.file, "column")
            shown = column in images
            inputs = self._images(saved, column) if shown else self._arrays(table, column)
            labels = adapter.labels_in(table)
            used = (column, *table.names(self.drop))
            records = adapter.described(table, inputs, labels, used=used)
        records = replace(records, notes={**records.notes, **saved.notes})
        names = saved.class_names(table, self.label)
        return in_order(records, names, self.source) if names and records.classes else records

    def _only(self, images: Sequence[str], table: TextTable) -> str | None:
        """Return the only column of pictures that is not dropped."""
        shown = set(images) & set(table.cells) - set(table.names(self.drop))
        return shown.pop() if len(shown) == 1 else None

    def _images(self, saved: SavedDataset, column: str) -> Inputs:
        origin = f"{saved.origin}: column {quote(column)}"
        if self.scale == "standard":
            raise UsageError(f"{origin}: {NOT_A_TABLE}")
        return self.read_pictures(saved_pictures, saved.files, origin, column=column)

    def _arrays(self, table: TextTable, column: str) -> Inputs:
        origin, raw = f"{table.file}: column {quote(column)}", table.array
        assert raw is not None
        array = as_inputs(raw, origin, tokens=raw.dtype.kind in "iu" and raw.ndim == 2)
        if self.normalize is not None:
            return self.normal(array, origin, scaled(raw))
        inputs = table_of(array, self.scale, origin)
        return replace(inputs, notes=scaled(raw, inputs.notes))


def saved_pictures(*files: Path, origin: str, column: str) -> list[tuple[str, Picture]]:
    """Read the bytes of pictures in Arrow files; what lies elsewhere is not looked for."""
    cells = [cell for file in files for cell in read_frame(file)[column].to_pylist()]
    pictures = []
    for index, cell in enumerate(cells):
        content = (cell or {}).get("bytes")
        name = f"{origin}: picture {index}"
        if content is None:
            raise DataError(
                f"{name} is not in the file but elsewhere; save the data set with its pictures "
                "(Dataset.cast_column with Image(), then save_to_disk)"
            )
        pictures.append((name, content))
    return pictures
