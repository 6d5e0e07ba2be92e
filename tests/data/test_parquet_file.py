"""Parquet and Arrow tables give the records of the same table as CSV."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from gradaudit.data import load_records
from gradaudit.data.records import fingerprint
from gradaudit.errors import DataError, UsageError

COLUMNS: dict[str, list[Any]] = {
    "age": [30, 41, None, 65],
    "hours": [1.5, 40.0, float("nan"), 0.1],
    "sex": ["m", "f", None, "f"],
    "old": [True, False, True, False],
    "who": ["a", "b", "a", "b"],
    "label": ["no", "yes", "yes", "no"],
}
OPTIONS = "label=label&attribute=sex&user=who&drop=old"


def table() -> pa.Table:
    return pa.table({**COLUMNS, "sex": pa.array(COLUMNS["sex"]).dictionary_encode()})


def stream(path: Path, content: pa.Table, **options: Any) -> None:
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, content.schema, **options) as w,
    ):
        w.write_table(content, max_chunksize=3)


def whole(path: Path, content: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content)


def parquet(path: Path, content: pa.Table) -> None:
    pq.write_table(content, path, row_group_size=2, compression="zstd")


def plain(path: Path, content: pa.Table) -> None:
    feather.write_feather(content, str(path), compression="uncompressed")


def packed(path: Path, content: pa.Table) -> None:
    feather.write_feather(content, str(path), compression="zstd")


@pytest.mark.parametrize("write", [parquet, stream, whole, plain, packed])
def test_they_are_the_records_of_the_same_csv_file(
    write: Callable[[Path, pa.Table], None], tmp_path: Path, csv_file: Callable[..., Path]
) -> None:
    write(tmp_path / "table", table())
    rows = zip(*COLUMNS.values(), strict=True)
    lines = (",".join("" if cell is None else str(cell) for cell in row) for row in rows)
    path = csv_file(",".join(COLUMNS), *lines)
    read = load_records(f"parquet:{tmp_path / 'table'}?{OPTIONS}")
    same = load_records(f"csv:{path}?{OPTIONS}")
    assert fingerprint(read) == fingerprint(same)
    assert (read.features, read.notes) == (same.features, same.notes)
    assert read.adapter == "parquet"


def test_columns_that_are_no_table_are_dropped_or_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet(path, pa.table({"x": [1, 2], "pixels": [[1], [2]], "raw": [b"1", b"2"], "y": [0, 1]}))
    with pytest.raises(DataError, match=r"column 'pixels' holds list.*text or dates are needed"):
        load_records(f"parquet:{path}?label=y")
    records = load_records(f"parquet:{path}?label=y&drop=pixels,raw")
    assert records.inputs.shape == (2, 1)
    with pytest.raises(UsageError, match="no column 'z'"):
        load_records(f"parquet:{path}?label=z&drop=pixels,raw")


def test_without_the_library_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"install gradaudit\[parquet\]"):
        load_records(f"parquet:{tmp_path / 't.parquet'}?label=y")


def _arrow(path: Path, new: Callable[..., Any]) -> list[int]:
    """Write three batches of 16 records; where each of them ends."""
    table = pa.table({"x": [float(i) for i in range(48)], "y": [i % 2 for i in range(48)]})
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        ends = []
        for batch in table.to_batches(max_chunksize=16):
            writer.write_batch(batch)
            ends.append(sink.tell())
    return ends


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_that_was_cut_is_not_read_in_part(new: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    ends = _arrow(path, new)
    content = path.read_bytes()
    assert len(load_records(f"parquet:{path}?label=y")) == 48
    mark = b"\xff\xff\xff\xff" + bytes(4)
    marked = [content[:end] + mark + content[end:] for end in ends[:-1]]
    for cut in (*(content[:end] for end in ends), *marked):
        path.write_bytes(cut)
        with pytest.raises(DataError, match="write it again"):
            load_records(f"parquet:{path}?label=y")
