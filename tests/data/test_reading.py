"""Readers of files of others: what they return, and what their failures become."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gradaudit.data import load_records
from gradaudit.data.common.reading import read
from gradaudit.errors import DataError, GradauditError, UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.file"
    path.write_bytes(b"content")
    return path


def returning(path: Path, *, times: int) -> dict[str, Any]:
    return {"array": np.arange(3) * times, "text": path.read_text(), "list": [["a", None, 1.5]]}


def test_arrays_and_text_come_back(file: Path) -> None:
    made = read(returning, file, times=2)
    assert made["array"].tolist() == [0, 2, 4]
    assert made["array"].dtype == np.int64
    assert (made["text"], made["list"]) == ("content", [["a", None, 1.5]])


def failing(_: Path) -> dict[str, Any]:
    raise ZeroDivisionError("by\nzero")


def refusing(_: Path) -> dict[str, Any]:
    raise UsageError("another option is needed")


def greedy(_: Path) -> dict[str, Any]:
    return {"array": np.ones(1 << 31)}


def large(_: Path) -> dict[str, Any]:
    return {"array": np.zeros(300 << 20, np.int8)}


@pytest.mark.parametrize(
    ("reader", "error", "words"),
    [
        (failing, DataError, r"some\.file: cannot be read \(ZeroDivisionError: by zero"),
        (refusing, UsageError, "^another option is needed$"),
        (greedy, DataError, r"some\.file: cannot be read \(it takes more than 640 MiB of memory"),
        (large, DataError, r"some\.file: would unpack to 300 MiB, over 50 times the file"),
    ],
)
def test_a_reader_that_fails_is_one_line(
    file: Path, reader: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        read(reader, file)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_text_that_unpacks_beyond_the_memory_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(900):
            stream.write(b"0" * (1 << 20))
    with pytest.raises(
        DataError, match=r"t\.csv: cannot be read \(it takes more than .* of memory"
    ):
        load_records(f"csv:{path}?label=y")


def test_files_are_looked_at_before_a_reader_gets_them(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=words):
            read(returning, path, times=1)


def table(path: Path) -> str:
    rows = [(k, 1.5 * k, "xyz"[k % 3], k % 2) for k in range(40)]
    columns = dict(zip(("a", "b", "c", "y"), zip(*rows, strict=True), strict=True))
    if path.suffix == ".npz":
        np.savez(path, x=np.array(rows)[:, :2].astype(float), y=columns["y"])
        return f"npz:{path}?inputs=x&label=y"
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_feather(path)
    return f"csv:{path}?label=y"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather", "npz"])
def test_no_damage_ends_in_another_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    spec = table(path)
    whole = path.read_bytes()
    assert len(load_records(spec)) == 40
    draws = np.random.default_rng(0)
    refused = 0
    for _ in range(30):
        content = bytearray(whole)
        for place in draws.integers(0, len(content), draws.integers(1, 4)):
            content[place] = draws.integers(256)
        path.write_bytes(
            content[: draws.integers(1, len(content))] if draws.random() < 0.3 else content
        )
        try:
            load_records(spec)
        except GradauditError as error:
            refused += 1
            assert path.name in str(error)  # noqa: PT017 - either outcome is right
            assert str(error).isprintable()  # noqa: PT017
    assert refused > 5
