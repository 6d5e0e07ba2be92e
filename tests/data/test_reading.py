"""Readers of files of others: what they return, and what their failures become."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradaudit.data.common.reading import read
from gradaudit.errors import DataError, UsageError


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


def test_files_are_looked_at_before_a_reader_gets_them(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=words):
            read(returning, path, times=1)
