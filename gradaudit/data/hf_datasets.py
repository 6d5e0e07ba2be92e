"""Folders that Hugging Face's ``datasets`` wrote by ``save_to_disk``, as untrusted data.

``state.json`` names the Arrow files beside it, ``dataset_info.json`` has the features' types, and
``dataset_dict.json`` the splits, each a folder of this kind.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from gradaudit.core.files import read_file
from gradaudit.data.common.arrays import as_inputs, scaled
from gradaudit.data.common.arrow import Frame, read_frames
from gradaudit.data.common.checks import choose, quote
from gradaudit.data.common.picture_files import Picture, PictureAdapter
from gradaudit.data.common.roles import in_order, left_aside
from gradaudit.data.common.table_columns import MAX_CLASSES, NOT_A_TABLE, Inputs, table_of
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
        frame: its columns.
        features: what ``datasets`` knows of them, by name.
        notes: the split that was read and those that were not, where there are several.
    """

    frame: Frame
    features: Mapping[str, Mapping[str, Any]]
    notes: dict[str, JsonValue] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[str]:
        """The columns of a type of ``datasets``."""
        return [name for name in self.frame.schema.names if _kind(self.features.get(name)) == kind]

    def class_names(self, column: str) -> tuple[str, ...]:
        """The names of a column's classes by number: its own, or the numbers; empty for text."""
        if column in self.frame.names:
            return tuple(self.frame.names[column])
        largest = self.frame.largest(column)
        return tuple(map(str, range(largest + 1))) if 0 <= largest < MAX_CLASSES else ()


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
    features = _features(folder / _INFO)
    named = {name: _labels(feature) for name, feature in features.items()}
    paths = [folder / name for name in _plain_names(listed, state)]
    names = {name: labels for name, labels in named.items() if labels}
    return SavedDataset(read_frames(paths, "datasets", str(folder), names), features, notes)


def _features(path: Path) -> dict[str, Mapping[str, Any]]:
    features = _json(path).get("features") if path.exists() else {}
    if not isinstance(features, dict):
        return {}
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def _kind(feature: Mapping[str, Any] | None) -> object:
    return feature.get("_type") if feature else None


def _labels(feature: Mapping[str, Any]) -> list[str]:
    names = feature.get("names") if _kind(feature) == CLASS_LABEL else None
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
        sure = self.task is None and self.label in saved.frame.names
        adapter = replace(self, task="classification") if sure else self
        column = self._column(saved.frame, saved.of_kind(IMAGE))
        if column is None:
            records = adapter.records_of(saved.frame.table())
        else:
            records = adapter._of_column(saved.frame, column, column in saved.of_kind(IMAGE))
        records = replace(records, notes={**records.notes, **saved.notes})
        names = saved.class_names(self.label) if self.label is not None else ()
        return in_order(records, names, self.source) if names and records.classes else records

    def _column(self, frame: Frame, images: list[str]) -> str | None:
        """The column of the inputs, None where they are a table."""
        if self.inputs is not None:
            return choose(self.inputs, frame.schema.names, frame.origin, "column")
        shown = set(images) - set(frame.table().names(self.drop))
        return shown.pop() if len(shown) == 1 else None

    def _of_column(self, frame: Frame, column: str, images: bool) -> Records:
        table = frame.table()
        inputs = self._images(frame, column) if images else self._arrays(frame, column)
        labels = self.labels_in(table, len(frame))
        return self.described(table, inputs, labels, used=(column, *table.names(self.drop)))

    def _images(self, frame: Frame, column: str) -> Inputs:
        origin = f"{frame.origin}: column {quote(column)}"
        if self.scale == "standard":
            raise UsageError(f"{origin}: {NOT_A_TABLE}")
        return self.prepared(list(_decoded(frame, column, origin)), origin)

    def _arrays(self, frame: Frame, column: str) -> Inputs:
        origin = f"{frame.origin}: column {quote(column)}"
        raw = frame.array(column)
        array = as_inputs(raw, origin, tokens=raw.dtype.kind in "iu" and raw.ndim == 2)
        if self.normalize is not None or self.channels is not None:
            return self.normal(array, origin, scaled(raw))
        inputs = table_of(array, self.scale, origin)
        return replace(inputs, notes=scaled(raw, inputs.notes))


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
