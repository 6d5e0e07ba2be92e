"""Every hostile file is refused in one line, at once, and leaves nothing behind."""

import pickle
import shlex
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from hostile import HOSTILE, Case
from hostile.case import CANARY
from hostile.checkpoints import Evaluated, System
from hostile.data import ARRAYS
from hostile.documents import YAML
from hostile.forks import Outcome, run_all

SECONDS = 2
BYTES = 300 << 20
"""What a refusal may take: of the processor, and of memory beyond what is there before."""

MEASURED = ("greedy", "modest")
MINE = f"""
    import sys, time

    def greedy():
        held = b"x" * ({BYTES} + (50 << 20))
        begun = time.process_time()
        while time.process_time() < begun + {SECONDS}:
            pass
        print("loud", file=sys.stderr)
        open({CANARY!r}, "w")
        modest()

    def modest():
        sys.exit(0)
"""

Files = dict[str, tuple[int, int]]


class Run(NamedTuple):
    """What a command did, and the files in its folder before and after."""

    outcome: Outcome
    before: Files
    after: Files


def files_in(folder: Path) -> Files:
    """Size and time of everything in a folder, by name; links are not followed."""
    found = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*")}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The whole table and what it is measured against, run once."""
    jobs: dict[str, tuple[Path, list[str]]] = {}
    for case in HOSTILE:
        folder = tmp_path_factory.mktemp("hostile")
        case.build(folder)
        jobs[str(case)] = folder, shlex.split(case.command)
    for name in MEASURED:
        folder = tmp_path_factory.mktemp("measured")
        (folder / "mine.py").write_text(dedent(MINE))
        jobs[name] = folder, ["forward", "-m", f"mine.py:{name}", "-d", "digits"]
    before = [files_in(folder) for folder, _ in jobs.values()]
    outcomes = run_all(list(jobs.values()))
    after = [files_in(folder) for folder, _ in jobs.values()]
    return dict(zip(jobs, map(Run, outcomes, before, after), strict=True))


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_it_is_refused_in_one_line_at_once_and_nothing_is_left_behind(
    case: Case, runs: dict[str, Run]
) -> None:
    outcome, before, after = runs[str(case)]
    assert (outcome.status, outcome.out) == (case.status, ""), outcome.err
    (line,) = outcome.err.splitlines()
    assert line.startswith("gradaudit: ")
    assert line.isprintable()
    assert len(line) < 1000
    assert case.file in line
    assert case.words in line
    assert after == before, "something was written, or the canary was made"
    assert outcome.seconds < case.seconds
    assert outcome.peak < case.memory


def test_the_table_is_one() -> None:
    assert len({str(case) for case in HOSTILE}) == len(HOSTILE) >= 80
    assert all(case.words for case in HOSTILE)


def loaded_objects(folder: Path) -> None:
    """Read an archive of objects as nobody should."""
    content = ARRAYS["objects as inputs"][0]
    assert isinstance(content, bytes)
    (folder / "x.npz").write_bytes(content)
    _ = np.load(folder / "x.npz", allow_pickle=True)["x"]


def loaded_tags(_: Path) -> None:
    """Read a policy as nobody should."""
    content = YAML["code"][0]
    assert isinstance(content, bytes)
    yaml.unsafe_load(content)


@pytest.mark.parametrize(
    "spring",
    [
        lambda _: pickle.loads(pickle.dumps(System())),
        lambda _: pickle.loads(pickle.dumps(Evaluated())),
        loaded_objects,
        loaded_tags,
    ],
    ids=["command", "expression", "array", "tag"],
)
def test_the_traps_would_spring(
    spring: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spring(tmp_path)
    assert (tmp_path / CANARY).exists()


def test_the_measures_would_tell(runs: dict[str, Run]) -> None:
    outcome, before, after = runs["greedy"]
    assert outcome.seconds > SECONDS
    assert outcome.peak > BYTES
    assert len(outcome.err.splitlines()) == 2
    assert after != before
    outcome, before, after = runs["modest"]
    assert (outcome.status, len(outcome.err.splitlines())) == (2, 1)
    assert outcome.seconds < SECONDS
    assert outcome.peak < BYTES
    assert after == before
