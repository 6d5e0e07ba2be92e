"""Texts in JSON lines, Parquet files and saved data sets; and two columns of them as pairs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import SENTENCES

from gradaudit.data import load_records
from gradaudit.errors import DataError

ROWS: list[dict[str, Any]] = [
    {
        "id": k,
        "premise": SENTENCES[k % 8],
        "hypothesis": SENTENCES[(k * 3 + 1) % 8],
        "y": ("no", "yes")[k % 2],
        "sex": "fm"[k // 2 % 2],
        "old": k > 3,
    }
    for k in range(8)
]


def lines_in(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def csv_in(path: Path) -> Path:
    rows = [ROWS[0].keys(), *(row.values() for row in ROWS)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def parquet_in(path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(ROWS), path)
    return path


def saved_in(folder: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    folder.mkdir()
    content = arrow.Table.from_pylist([{**row, "y": 1 - k % 2} for k, row in enumerate(ROWS)])
    sink = arrow.OSFile(str(folder / "data.arrow"), "wb")
    with sink, arrow.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    features = {"y": {"_type": "ClassLabel", "names": ["yes", "no"]}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


ASKED = "text=premise&label=y&attribute=sex,old&user=id&length=6"


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.txt"])
def test_json_lines_are_read_as_a_table_of_the_same_texts(tmp_path: Path, name: str) -> None:
    expected = load_records(f"text:{csv_in(tmp_path / 't.csv')}?{ASKED}")
    found = load_records(f"text:{lines_in(tmp_path / name, ROWS)}?{ASKED}")
    assert found.digest == expected.digest
    assert found.notes == expected.notes
    assert found.notes["left"] == ["hypothesis"]


def test_parquet_and_saved_data_sets_hold_texts_too(tmp_path: Path) -> None:
    expected = load_records(f"text:{csv_in(tmp_path / 't.csv')}?{ASKED}")
    found = load_records(f"text:{parquet_in(tmp_path / 't.parquet')}?{ASKED}")
    assert found.digest == expected.digest
    saved = load_records(f"text:{saved_in(tmp_path / 'saved')}?{ASKED}")
    assert torch.equal(saved.inputs, expected.inputs)
    assert (saved.classes, saved.labels.tolist()) == (("yes", "no"), [1, 0] * 4)


GOOD = '{"t": "a b", "y": 1}\n{"t": "c", "y": 0}\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD + '{"t": "x"}\n', r"t\.jsonl, line 3: has no key 'y'; write null"),
        (GOOD + '\n{"y": 1}\n', r"line 4: has no key 't'"),
        (GOOD + '{"t": ["x"], "y": 1}\n', r"line 3: key 't' holds a list or an object"),
        (GOOD + '{"t": "x", "y": 1, "t": "z"}\n', r"line 3: is no JSON object \(key 't' twice\)"),
        (GOOD + "[1]\n", r"line 3: is JSON, but no object; write an object a line"),
        ('[{"t": "x", "y": 1}]\n', r"line 1: is JSON, but no object"),
        ('{\n"t": "x"}\n', r"line 1: is no JSON object"),
        (GOOD + '{"t": "\\ud800", "y": 1}\n', r"line 3: is no JSON object"),
        ('{"t": ' + '[' * 100_000 + "\n", r"line 1: is no JSON object"),
        (GOOD + '{"t": "x", "y": null}\n', r"key|column 'y': 1 of 3 labels are missing"),
        ("\n", "there are no records"),
    ],
)  # fmt: skip
def test_a_line_at_fault_is_named_with_its_key(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(DataError, match=says):
        load_records(f"text:{tmp_path / 't.jsonl'}?text=t&label=y")


def test_json_lines_are_a_table_of_numbers_too(tmp_path: Path) -> None:
    rows = [{"a": k / 2, "job": "xy"[k % 2], "tags": ["p"], "y": k % 2} for k in range(4)]
    path = lines_in(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=r"line 1: key 'tags' holds a list .*"):
        load_records(f"csv:{path}?label=y")
    records = load_records(f"csv:{path}?label=y&drop=tags")
    assert records.inputs.tolist() == [[0, 1, 0], [0.5, 0, 1], [1, 1, 0], [1.5, 0, 1]]
