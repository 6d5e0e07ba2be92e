"""What a second worker gives: wall time and processor time of audits at ``--jobs`` 1 and 2.

Each audit is a command of its own, start and imports included, run in turn at both; what is told is
the best of the repeats. ``short`` is the same for commands of some seconds, which a second worker
should not make dearer. Where something else runs beside it, the clock says little: the last number
is what the processors' time comes to where the first process and the busiest worker take turns.

    python benchmarks/jobs.py [--repeats 3] [--jobs 2] [--only floor,subspace] [--short]
        [--root OTHER_CHECKOUT]
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parents[1]
PICTURES = ("-d", "benchmarks/jobs.py:pictures")
DIGITS = ("-m", "sample_models/models.py:digits_cnn", "-d", "digits", "-a", "slant")
TABLE = ("-d", "diabetes", "-a", "sex", "--mechanism", "dp:clip=1,sigma=0.5")
LONG: dict[str, tuple[str, ...]] = {
    "sensitivity": ("-m", "zoo:lenet?shape=3x32x32", *PICTURES, "--samples", "96"),
    "copa-metric": ("-m", "zoo:vgg9?shape=3x32x32", *PICTURES, "--records", "16"),
    "floor": ("-m", "zoo:deep-leakage?shape=3x32x32", *PICTURES, "--sigma", "0.01"),
    "subspace": (*DIGITS, "--permutations", "5000"),
    "vinfo": (*DIGITS, "--repeats", "12"),
    "attack property": (*DIGITS, "--repeats", "12"),
    "attack reconstruct": (*DIGITS, "--records", "8"),
    "attack membership": ("-m", "zoo:lenet?shape=3x32x32", *PICTURES),
    "attack tracing": (*DIGITS,),
    "scan": (),
    "dp-audit": (
        *("-m", "zoo:mlp?inputs=10&hidden=16000&classes=2", *TABLE),
        *("--restarts", "8", "--trials", "10000"),
    ),
}
SHORT: dict[str, tuple[str, ...]] = {
    "sensitivity": DIGITS,
    "copa-metric": DIGITS,
    "floor": ("-m", "zoo:cnn3?shape=1x8x8", "-d", "digits", "--sigma", "0.01"),
    "subspace": DIGITS,
    "dp-audit": ("-m", "zoo:mlp?inputs=10&classes=2", *TABLE, "--trials", "500"),
}


def pictures() -> dict[str, object]:
    """Smooth random pictures of 3×32×32, and an attribute that tells their mean."""
    draw = np.random.default_rng(0)
    coarse = draw.normal(size=(400, 3, 8, 8))
    fine = np.kron(coarse, np.ones((4, 4))) / 4 + draw.normal(size=(400, 3, 32, 32)) / 10
    return {
        "inputs": (fine + 0.5).astype(np.float32),
        "labels": draw.integers(0, 10, 400),
        "attributes": {"bright": (coarse.mean(axis=(1, 2, 3)) > 0).astype(int)},
    }


class Taken(NamedTuple):
    """Wall seconds; processor seconds of all processes, the first and the busiest other."""

    wall: float
    cpu: float
    first: float
    longest: float


def run(audit: str, options: tuple[str, ...], jobs: int, root: Path) -> Taken:
    """One command, which must end well or with a failed policy."""
    begun = time.monotonic()
    words = [*audit.split(), *options, "--jobs", str(jobs), "-q"]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "gradaudit", *words],
        cwd=HERE,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        seconds: dict[int, float] = {}
        while process.poll() is None:
            seconds |= in_session(process.pid)
            time.sleep(0.05)
        if process.returncode not in (0, 1):
            raise SystemExit(process.stderr and process.stderr.read().decode())
    first = seconds.pop(process.pid)
    server = seconds.pop(min(seconds), 0.0) if seconds else 0.0
    wall = time.monotonic() - begun
    return Taken(
        wall, first + server + sum(seconds.values()), first, max(seconds.values(), default=0)
    )


def in_session(session: int) -> dict[int, float]:
    """Seconds of the processor that each process of a session has taken."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks = int(fields[11]) + int(fields[12])
                found[int(path.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(LONG))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--root", type=Path, default=HERE)
    given = parser.parse_args()
    for audit in given.only.split(","):
        options = (SHORT if given.short else LONG)[audit]
        taken: dict[int, list[Taken]] = {1: [], given.jobs: []}
        for _ in range(given.repeats):
            for jobs, times in taken.items():
                times.append(run(audit, options, jobs, given.root))
        one, more = (Taken(*map(min, zip(*times, strict=True))) for times in taken.values())
        print(
            f"{audit:18s} wall {one.wall:6.1f} and {more.wall:6.1f} s, {one.wall / more.wall:.2f} "
            f"times as fast; processor {one.cpu:6.1f} and {more.cpu:6.1f} s, of that "
            f"{more.first:.1f} in the first process and {more.longest:.1f} in a worker: "
            f"in turns {one.cpu / (more.first + more.longest):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
