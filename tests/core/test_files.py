"""What is read is a regular file of a bounded size; what is written is never what is read."""

import gzip
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from report_builder import make_report, row

from gradaudit.core.files import (
    destination,
    expect_file,
    expect_other_files,
    read_file,
    write_atomically,
)
from gradaudit.data import load_records
from gradaudit.data.common import checks, tables
from gradaudit.errors import DataError, GradauditError, UsageError


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_only_regular_files_are_read(tmp_path: Path, pipe: Path) -> None:
    for path, words in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (pipe, "is no regular file"),
        (Path("/dev/zero"), "is no regular file"),
        (Path("a\0b"), "null byte"),
    ):
        with pytest.raises(UsageError, match=words):
            expect_file(path)
    file = tmp_path / "file"
    file.write_bytes(bytes(10))
    assert read_file(file, 10) == bytes(10)
    with pytest.raises(UsageError, match="larger than 9 bytes"):
        read_file(file, 9)


@pytest.mark.parametrize(
    "arguments",
    [
        ("gate", "{}"),
        ("render", "{}"),
        ("compare", "{}", "{}"),
        ("gate", "sound.json", "--policy", "{}"),
        ("gate", "sound.json", "--baseline", "{}"),
        ("scan", "--dry-run", "--config", "{}"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "diabetes", "-c", "{}"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "csv:{}?label=y"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "npz:{}?inputs=x&label=y"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "text:{}?text=x&label=y"),
        ("sensitivity", "-m", "{}.py:net", "-d", "diabetes"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "{}.py:data"),
        ("sensitivity", "-m", "zoo:mlp?inputs=10", "-d", "diabetes", "--loss", "{}.py:loss"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_no_option_waits_for_what_is_no_file(
    arguments: tuple[str, ...], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically(Path("sound.json"), make_report(row("leak.bits", "fc1", 0.5)).to_json())
    for name in (kind, f"{kind}.py"):
        os.mkfifo(name) if kind == "pipe" else Path(name).mkdir()
    done = run(*(argument.replace("{}", kind) for argument in arguments))
    assert done.status in (2, 3)
    assert kind in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_labels_that_fit_no_records_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((4, 2), np.float32), y=np.zeros(10**6, np.int8))
    asked = f"npz:{path}?inputs=x&label=y"
    with pytest.raises(DataError, match=r"key 'y': has 1000000 entries for 4 records"):
        load_records(asked)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (",".join("abcdefghijk"), "has 11 columns, over the limit of 10"),
        ("a,b\n" + "1,2\n" * 30, r"has over 50 cells \(2 columns\)"),
    ],
)
def test_tables_are_bounded_in_columns_and_cells(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_COLUMNS", 10)
    monkeypatch.setattr(checks, "MAX_CELLS", 50)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=words):
        tables.read_table(path)


def test_what_is_read_is_not_written(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    write_atomically(report, make_report(row("leak.bits", "fc1", 0.5)).to_json())
    (tmp_path / "link.json").symlink_to(report)
    before = report.read_bytes()
    for command in ("gate", "render"):
        for name in ("r.json", "link.json", "../" + tmp_path.name + "/r.json"):
            done = run(command, report, "-o", tmp_path / name)
            assert (done.status, done.out) == (2, "")
            assert "is read by this command" in done.err
    assert report.read_bytes() == before
    expect_other_files([tmp_path / "other.json"], [report, None])


def test_links_are_followed_and_devices_left_alone(tmp_path: Path, pipe: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    for path in (pipe, Path(os.devnull), tmp_path):
        with pytest.raises(GradauditError, match="name a file to write"):
            write_atomically(path, "x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert destination(tmp_path / "fresh") == (tmp_path / "fresh").resolve()


def test_private_files_are_their_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "open", "x")
        write_atomically(tmp_path / "private", "x", private=True)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "private")]
    assert modes == [0o666, 0o600]
