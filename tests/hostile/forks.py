"""Runs command lines in forks of one process that has imported what they need.

So a row costs what its command does, and a crash, a hang and the memory are its own. Run as a
program: ``forks.py JOBS RESULTS``, two JSON files; a job is ``[folder, words]``.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from warmed import run, warm

SECONDS = 20
ADDRESSES = 4 << 30
"""What a fork may use at most: processor seconds, and bytes beyond what it starts with."""

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
        peak: bytes of memory, beyond those of a fork that does nothing.
    """

    status: int
    out: str
    err: str
    seconds: float
    peak: int


def run_all(jobs: Sequence[tuple[Path, Sequence[str]]]) -> list[Outcome]:
    """Run each command in its folder, one after the other."""
    with TemporaryDirectory() as folder:
        asked, told = Path(folder) / "jobs", Path(folder) / "results"
        asked.write_text(json.dumps([(str(place), list(words)) for place, words in jobs]))
        own = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, __file__, asked, told], env=own, timeout=600)
        assert done.returncode == 0
        return [Outcome(*result) for result in json.loads(told.read_text())]


def _main(asked: Path, told: Path) -> None:
    import PIL.Image
    import safetensors.torch  # noqa: F401 - imported for the forks

    from gradaudit.core import contained
    from gradaudit.core.huggingface import library

    PIL.Image.init()
    for name in ("transformers", "peft", "transformers.models.gpt2.modeling_gpt2"):
        library(name)
    vars(contained)["SECONDS"] = 1  # what takes for ever need not take longer
    nothing = Path(told).with_name("nothing")
    nothing.mkdir()
    with chdir(nothing):
        Path("table.csv").write_text("a,b,y\n" + "1,2,no\n3,5,yes\n" * 8)
        warm(words.split() for words in _WARMING)
    baseline = _forked(nothing, ["--version"]).peak
    jobs = json.loads(asked.read_text())
    outcomes = [_forked(Path(folder), words) for folder, words in jobs]
    told.write_text(json.dumps([o._replace(peak=o.peak - baseline) for o in outcomes]))


def _forked(folder: Path, words: Sequence[str]) -> Outcome:
    streams = [folder.with_suffix(suffix) for suffix in (".out", ".err")]
    child = os.fork()
    if child == 0:
        os._exit(_run(folder, words, streams))
    _, status, used = os.wait4(child, 0)
    out, err = (stream.read_text(errors="backslashreplace") for stream in streams)
    seconds = used.ru_utime + used.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), out, err, seconds, used.ru_maxrss << 10)


def _run(folder: Path, words: Sequence[str], streams: Sequence[Path]) -> int:
    for number, file in ((0, Path(os.devnull)), *enumerate(streams, start=1)):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ["TMPDIR"] = str(folder)
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
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(3 * SECONDS)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
