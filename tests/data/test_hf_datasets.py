"""Folders as ``datasets.Dataset.save_to_disk`` writes them (checked against its release 5.2)."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from gradaudit.data import load_records
from gradaudit.errors import DataError, UsageError

CLASS = {"names": ["zebra", "ape", "cat"], "_type": "ClassLabel"}
FEATURES = {
    "image": {"_type": "Image"},
    "label": CLASS,
    "sex": {"dtype": "string", "_type": "Value"},
    "x": {"feature": {"dtype": "float32", "_type": "Value"}, "length": 3, "_type": "List"},
}


def png(value: int, size: tuple[int, int] = (4, 4)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255)).save(stream, "PNG")
    return stream.getvalue()


COLUMNS: dict[str, Any] = {
    "image": [{"bytes": png(value), "path": "../../secret.png"} for value in (0, 51, 102, 255)],
    "label": [0, 2, 0, 2],
    "sex": ["m", "f", "f", "m"],
    "x": pa.array([[1, 2, 3]] * 4, pa.list_(pa.float32(), 3)),
}


def saved(folder: Path, files: int = 2, **columns: Any) -> Path:
    """A folder of one data set."""
    folder.mkdir(parents=True)
    content = pa.table({**COLUMNS, **columns})
    names = [f"data-{place:05}-of-{files:05}.arrow" for place in range(files)]
    rows = len(content) // files
    for place, name in enumerate(names):
        part = content.slice(place * rows, rows)
        sink = pa.OSFile(str(folder / name), "wb")
        with sink, pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def test_the_only_column_of_pictures_is_the_input(tmp_path: Path) -> None:
    folder = saved(tmp_path / "d")
    records = load_records(f"hf-datasets:{folder}?label=label&attribute=sex")
    assert records.inputs.shape == (4, 3, 4, 4)
    reds = (records.inputs[:, 0, 0, 0] * 255).round().tolist()
    assert reds == [0, 51, 102, 255]
    assert records.labels.tolist() == [0, 2, 0, 2]
    assert records.classes == ("zebra", "ape", "cat")
    assert records.attributes["sex"].codes.tolist() == [1, 0, 0, 1]


def test_another_column_is_named_or_the_rest_is_a_table(tmp_path: Path) -> None:
    folder = saved(tmp_path / "d", tokens=[[1, 2], [3, 4], [5, 6], [0, 0]])
    lists = load_records(f"hf-datasets:{folder}?label=label&inputs=x")
    assert lists.inputs.tolist() == [[1, 2, 3]] * 4
    tokens = load_records(f"hf-datasets:{folder}?label=sex&inputs=tokens")
    assert tokens.discrete
    assert tokens.inputs[1].tolist() == [3, 4]
    rest = load_records(f"hf-datasets:{folder}?label=sex&drop=image,x,tokens")
    assert [feature.name for feature in rest.features] == ["label"]
    assert rest.features[0].values == ("cat", "zebra")


def test_whole_numbers_are_class_indices(tmp_path: Path) -> None:
    folder = saved(tmp_path / "d", y=[3, 1, 1, 3])
    records = load_records(f"hf-datasets:{folder}?label=y&inputs=x")
    assert records.labels.tolist() == [3, 1, 1, 3]
    assert records.classes == ("0", "1", "2", "3")


def test_a_split_is_named_or_test(tmp_path: Path) -> None:
    for split, sexes in (("train", ["m", "m", "f", "f"]), ("test", ["f", "f", "f", "m"])):
        saved(tmp_path / "d" / split, sex=sexes)
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for option, first in (("", 0), ("&split=train", 1)):
        records = load_records(f"hf-datasets:{tmp_path / 'd'}?label=sex{option}")
        assert int(records.labels[0]) == first
    with pytest.raises(UsageError, match="no split 'valid'"):
        load_records(f"hf-datasets:{tmp_path / 'd'}?label=sex&split=valid")
    with pytest.raises(UsageError, match="has no splits"):
        load_records(f"hf-datasets:{tmp_path / 'd' / 'test'}?label=sex&split=test")


@pytest.mark.parametrize(
    ("columns", "spec", "words"),
    [
        (
            {"image": [{"bytes": None, "path": "/etc/passwd"}] * 4},
            "",
            "picture 0 is not in the file",
        ),
        ({"image": [{"bytes": b"none", "path": ""}] * 4}, "", "picture 0: cannot be read"),
        ({"x": [[1], [2, 3], [4], [5]]}, "&inputs=x", "its lists differ in length"),
        ({"x": [["a"]] * 4}, "&inputs=x", "of text, its tokens"),
        ({}, "&inputs=sex", "lists of numbers are needed"),
    ],
)
def test_inputs_that_cannot_be_used(
    columns: dict[str, Any], spec: str, words: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "d", files=1, **columns)
    with pytest.raises(DataError, match=words):
        load_records(f"hf-datasets:{folder}?label=label{spec}")
