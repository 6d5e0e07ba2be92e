import fcntl
import os
from pathlib import Path

import pytest

from gradaudit.errors import UsageError
from gradaudit.executors.locking import locked


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "run", "--out run"),
        pytest.raises(UsageError, match="--out run: another run is writing there"),
        locked(tmp_path / "run", "--out run"),
    ):
        pass  # pragma: no cover
    with locked(tmp_path / "run", "--out run"):
        pass
    assert not (tmp_path / "run").exists()


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
    (tmp_path / "run").write_text("")
    with (
        pytest.raises(UsageError, match=r"run: File exists; name another folder"),
        locked(tmp_path / "run", "--out run"),
    ):
        pass  # pragma: no cover
