import fcntl
import hmac
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict
from gradaudit.errors import UsageError
from gradaudit.executors.units import FOLDER, NOTHING_KEPT, Units, locked, units_beside
from gradaudit.report import Measurement


class Counted:
    """Counts how often it is asked for its value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.value


@dataclass
class NotOurs:
    number: int


ROW = Measurement(audit="leak", metric="bits", layer="fc1", status="measured", value=0.25, n=3)
VALUES = {
    "a record": DegenerateVerdict("it repeats", float("inf")),
    "rows": [ROW],
    "arrays": {"a": (np.arange(6.0).reshape(2, 3), np.float64(2.5), np.array([True]))},
    "codes": np.arange(4, dtype=np.int32)[::2],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_is_kept_comes_back(tmp_path: Path, value: Any) -> None:
    make = Counted(value)
    units = Units(tmp_path).of("vinfo", 3)
    first, again = units.once(make), units.once(make)
    assert make.calls == 1
    assert repr(again) == repr(first) == repr(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    units = Units(tmp_path)
    tensor = torch.arange(6).to(dtype).view(2, 3).T
    units.once(lambda: {"w": tensor})
    kept = units.once(lambda: {"w": torch.zeros(())})["w"]
    assert kept.dtype == dtype
    assert torch.equal(kept, tensor)


def test_units_are_told_apart_by_all_their_words(tmp_path: Path) -> None:
    units = Units(tmp_path)
    names = [("a", "b"), ("ab",), ("a", "b", 1), ("a", "b", "1"), ()]
    values = [units.of(*words).once(lambda n=n: n) for n, words in enumerate(names)]
    assert values == [0, 1, 2, 3, 4]
    assert [units.of(*words).once(lambda: -1) for words in names] == values


def test_without_a_folder_nothing_is_kept() -> None:
    make = Counted(1)
    assert [NOTHING_KEPT.once(make), NOTHING_KEPT.of("a").once(make)] == [1, 1]
    assert make.calls == 2


def test_what_cannot_be_kept_is_made_again(tmp_path: Path) -> None:
    make = Counted(lambda: 1)
    assert Units(tmp_path).once(make)() == Units(tmp_path).once(make)() == 1
    assert make.calls == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, KeyError, NotImplementedError, RecursionError])
def test_no_value_that_cannot_be_kept_breaks_the_work(
    tmp_path: Path, error: type[Exception]
) -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise error

    value = Stubborn()
    assert Units(tmp_path).once(lambda: value) is value


def test_a_full_disk_loses_nothing_but_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise UsageError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr("gradaudit.executors.units.write_atomically", full)
    assert Units(tmp_path).once(lambda: 5) == 5


class Canary:
    def __reduce__(self) -> Any:
        return os.system, ("touch canary",)


def signed_by_another(path: Path, content: bytes) -> bytes:
    return hmac.digest(b"x" * 32, path.name.encode() + content, "sha256") + content


def moved(path: Path, content: bytes) -> bytes:
    """A unit of ours under another name."""
    Units(path.parent).of("other").keep(Canary())
    (other,) = set(path.parent.iterdir()) - {path}
    return other.read_bytes()


FORGED: dict[str, Callable[[Path, bytes], bytes]] = {
    "nothing": lambda path, content: b"",
    "too short": lambda path, content: b"short",
    "no signature": lambda path, content: content,
    "another's": signed_by_another,
    "moved": moved,
    "cut off": lambda path, content: path.read_bytes()[:-1],
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_is_damaged_or_not_ours_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forge: Callable[[Path, bytes], bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    units = Units(tmp_path / "units")
    (tmp_path / "units").mkdir()
    units.once(lambda: 1)
    (file,) = (tmp_path / "units").iterdir()
    file.write_bytes(forge(file, pickle.dumps(Canary())))
    assert units.once(lambda: 7) == 7
    assert units.once(lambda: 8) == 7
    assert not (tmp_path / "canary").exists()


def test_a_pipe_is_no_unit(tmp_path: Path) -> None:
    units = Units(tmp_path)
    units.keep(1)
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert units.kept() is None


@pytest.mark.parametrize("state", ["open to others", "a link", "too short"])
def test_a_key_that_others_may_know_signs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    units = Units(tmp_path)
    units.keep(1)
    assert units.kept() == 1
    key = tmp_path / "state" / "gradaudit" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    if state == "open to others":
        key.chmod(0o644)
    elif state == "a link":
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    else:
        key.write_bytes(b"short")
    assert units.kept() is None


def test_without_a_place_for_the_key_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "units").mkdir()
    units = Units(tmp_path / "units")
    assert units.once(lambda: 1) == 1
    assert units.all() == []


@pytest.mark.parametrize("kind", ["a link", "a folder that others may read"])
def test_a_folder_that_is_not_the_users_alone_is_refused(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o755)
    (precious / "id").write_text("mine")
    folder = tmp_path / FOLDER.format("r.json")
    if kind == "a link":
        folder.symlink_to(precious)
    else:
        precious.rename(folder)
    with pytest.raises(UsageError, match="is not yours alone"), units_beside(tmp_path / "r.json"):
        pass  # pragma: no cover
    assert (folder / "id").read_text() == "mine"


def test_only_units_are_forgotten(tmp_path: Path) -> None:
    units = Units(tmp_path)
    units.keep(1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("a" * 64)).mkdir()
    units.forget()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "a" * 64}


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    units = Units(tmp_path / "gone")
    units.keep(1)
    units.forget()
    assert (units.kept(), units.all()) == (None, [])


def test_what_a_killed_run_was_writing_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    kept = {".r.json.original", ".r.json.ab12cd_9", ".other.json.gradaudit-ab12cd_9"}
    for name in (*kept, ".r.json.gradaudit-ab12cd_9"):
        (tmp_path / name).touch()
    (tmp_path / ".r.json.gradaudit-folder").mkdir()
    kept.add(".r.json.gradaudit-folder")
    with units_beside(tmp_path / "r.json"):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, FOLDER.format("r.json")}


def test_units_are_gone_when_the_command_ended_well(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with units_beside(output) as units:
        units.once(lambda: 1)
        folder = tmp_path / FOLDER.format("r.json")
        assert len(list(folder.iterdir())) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
        units.forget()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("made", "left"), [(0, 0), (1, 1)])
def test_units_stay_where_it_failed(tmp_path: Path, made: int, left: int) -> None:
    output = tmp_path / "r.json"

    def interrupted() -> None:
        with units_beside(output) as units:
            for number in range(made):
                units.of(number).once(lambda: 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(list(tmp_path.iterdir())) == left
    with units_beside(output) as units:
        assert units.of(0).once(lambda: 2) == (1 if made else 2)


def test_two_commands_do_not_write_one_file(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with (
        units_beside(output),
        pytest.raises(UsageError, match=r"r\.json: another run is writing there"),
        units_beside(output),
    ):
        pass  # pragma: no cover
    with units_beside(output):
        pass


def test_a_lock_is_free_again_where_its_holder_was_killed(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        handle = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)
    with locked(tmp_path, "--out"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.json.unfinished").write_text("")
    with (
        pytest.raises(UsageError, match=r"r\.json\.unfinished: File exists; name another folder"),
        units_beside(tmp_path / "r.json"),
    ):
        pass  # pragma: no cover
