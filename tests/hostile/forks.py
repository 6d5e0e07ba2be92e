"""Runs command lines in forks of one process that has imported what they need.

So a row costs what its command does. A fork runs one command after the other, and ends with the
one that needs much memory, crashes or hangs; the next one has a fork of its own. Run as a program:
``forks.py JOBS RESULTS``, two JSON files; a job is ``[folder, words]``.
"""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import chdir, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from warmed import run, warm

SECONDS = 20
ADDRESSES = 4 << 30
"""What a command may use at most: processor seconds, and bytes beyond what is there before."""
CONTAINED = 0.5
"""Processor seconds of a command's library that is contained."""
GROWN = 30 << 20
"""Bytes that a fork's command may hold where another one follows it in the same fork."""

_ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
_MODEL = "-m zoo:mlp?inputs=2&hidden=3&classes=2"
_TABLE = f"{_MODEL} -d csv:table.csv?label=y"
_WARMING = (
    "gate none.json -o out.json",
    "render none.json",
    "compare none.json none.json",
    "scan --config none.yaml",
    f"scan {_TABLE} --policy none.yaml -o out.json",
    "scan --config out.json -o out.json",
    f"forward {_MODEL} -d none.py:data -o out.json",
    f"forward {_TABLE} -c none.pt -o out.json",
    f"copa-metric {_TABLE} -c none.pt -o out.json",
    f"attack reconstruct {_TABLE} --update none.pt -o out.json",
    f"dp-audit {_TABLE} -a a --mechanism none.py:noise -o out.json",
    f"sweep forward {_MODEL} -d images:none --over seed=1",
    *(
        f"forward {_MODEL} -d {data}"
        for data in (
            "images:none",
            "npz:none.npz",
            "parquet:none.parquet?label=y",
            "hf-datasets:none?label=y",
            "text:none.csv?text=text&label=y",
        )
    ),
)
"""Commands that fill what Python, Typer and the libraries keep for later; no file is there."""


class Outcome(NamedTuple):
    """How a command ended.

    Attributes:
        status: of the process; negative for the signal that ended it.
        out: what it wrote to standard output.
        err: what it wrote to standard error.
        seconds: of the processor, its children's included.
        peak: bytes of memory, its children's or its own, beyond those that are held before.
    """

    status: int
    out: str
    err: str
    seconds: float
    peak: int


def run_all(jobs: Sequence[tuple[Path, Sequence[str]]]) -> list[Outcome]:
    """Run each command in its folder, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "jobs", Path(folder) / "results"
        asked.write_text(json.dumps([(str(place), list(words)) for place, words in jobs]))
        own = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, __file__, asked, told], env=own, timeout=600)
        assert done.returncode == 0
        return [Outcome(*result) for result in json.loads(told.read_text())]


def _main(asked: Path, told: Path) -> None:
    import pandas  # noqa: F401 - imported for the forks
    import PIL.Image
    import pyarrow.parquet  # noqa: F401
    import safetensors.torch  # noqa: F401

    from gradaudit.core import contained
    from gradaudit.core.huggingface import library

    PIL.Image.init()
    for name in ("transformers", "peft", "transformers.models.gpt2.modeling_gpt2"):
        library(name)
    _shorten(contained)
    nothing = Path(told).with_name("nothing")
    nothing.mkdir()
    with chdir(nothing):
        Path("table.csv").write_text("a,b,y\n" + "1,2,no\n3,5,yes\n" * 8)
        warm(words.split() for words in _WARMING)
    jobs = [(Path(folder), words) for folder, words in json.loads(asked.read_text())]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        outcomes += _forked(jobs[len(outcomes) :])
    told.write_text(json.dumps(outcomes))


def _shorten(contained: ModuleType) -> None:
    """Let what takes for ever be ended after less than the second that a limit is at least."""
    limit, end = vars(contained)["_limit"], vars(contained)["_end"]

    def limited(seconds: int, memory: int, output: int) -> None:
        limit(seconds, memory, output)
        signal.setitimer(signal.ITIMER_PROF, CONTAINED)

    def ended(number: int, seconds: int, memory: int) -> str:
        return str(end(signal.SIGXCPU if number == signal.SIGPROF else number, seconds, memory))

    vars(contained).update(SECONDS=1, _limit=limited, _end=ended)


def _forked(jobs: Sequence[tuple[Path, Sequence[str]]]) -> list[Outcome]:
    """The outcomes of the first commands, at least of one: as many as a fork takes on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_run_each(jobs, writing))
    os.close(writing)
    with open(reading) as told:
        outcomes = [Outcome(*json.loads(line)) for line in told]
    _, status, used = os.wait4(child, 0)
    if status == 0:
        return outcomes
    folder, _ = jobs[len(outcomes)]
    seconds = used.ru_utime + used.ru_stime - sum(outcome.seconds for outcome in outcomes)
    ended = os.waitstatus_to_exitcode(status)
    return [*outcomes, Outcome(ended, *_written(folder), seconds, used.ru_maxrss << 10)]


def _run_each(jobs: Sequence[tuple[Path, Sequence[str]]], writing: int) -> int:
    """Run commands and write their outcomes, until one has held more than ``GROWN`` bytes."""
    for folder, words in jobs:
        with suppress(OSError):  # where it is not allowed, no command seems to need less
            Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
        begun, before = _seconds(), _memory("VmRSS")
        status = _run(folder, words)
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        grown = max(_memory("VmHWM"), children) - before
        outcome = Outcome(status, *_written(folder), _seconds() - begun, grown)
        os.write(writing, json.dumps(outcome).encode() + b"\n")
        if grown > GROWN:
            break
    return 0


def _seconds() -> float:
    return sum(os.times()[:4])


def _memory(name: str) -> int:
    """Bytes of this process by a field of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) << 10


def _written(folder: Path) -> tuple[str, str]:
    """What a command wrote to standard output and error."""
    out, err = (stream.read_text(errors="backslashreplace") for stream in _streams(folder))
    return out, err


def _streams(folder: Path) -> list[Path]:
    return [folder.with_suffix(suffix) for suffix in (".out", ".err")]


def _run(folder: Path, words: Sequence[str]) -> int:
    """The exit status of a command that runs in a folder."""
    for number, file in ((0, Path(os.devnull)), *enumerate(_streams(folder), start=1)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    _limit()
    try:
        status = run(words)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    addresses = pages * resource.getpagesize() + ADDRESSES
    seconds = math.ceil(_seconds()) + SECONDS
    resource.setrlimit(resource.RLIMIT_AS, (addresses, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    signal.alarm(3 * SECONDS)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
