"""What commands take: the work, the start, a second worker, or this checkout beside another.

    python -m benchmarks.speed.commands [--only forward,sensitivity,vinfo,dp-audit,scan]
        [--rounds 3] [--other FOLDER] [--jobs 1] [--start]

Every command is run in turn with the others, each in a process of its own; medians are told, of CPU
seconds of a process and its children and of seconds on the clock. With ``--other`` the commands of
another checkout take turns with ours, and rows that differ by more than 1e-9 are counted. With
``--jobs 2`` two workers take turns with one. With ``--start`` every command is run twice in one
process: the second run is the work itself, and what the first took beyond it is the start, beside
that of ``import torch``.
"""

import json
import math
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, SAMPLES, Spent, arguments, spent_by

DIGITS = (
    *("--model", f"{SAMPLES / 'models.py'}:digits_cnn", "--data", "digits"),
    *("--checkpoint", SAMPLES / "digits" / "round-10.safetensors"),
)
DIABETES = ("--model", f"{SAMPLES / 'models.py'}:diabetes_mlp", "--data", "diabetes")
WIDE = ("-m", "zoo:mlp?inputs=10&hidden=16000&classes=2", "-d", "diabetes")
COMMANDS: dict[str, tuple[object, ...]] = {
    "list": ("list",),
    "forward": ("forward", *DIGITS, "--samples", 16),
    "sensitivity": ("sensitivity", *DIGITS, "--samples", 16),
    "vinfo": (
        *("vinfo", *DIGITS, "--samples", 200, "--attribute", "ink", "--layer", "fc2"),
        *("--repeats", 2, "--family", "logistic"),
    ),
    "dp-audit": (
        *("dp-audit", *DIABETES, "--attribute", "sex", "--trials", 100),
        *("--mechanism", "dp:clip=1,sigma=1"),
    ),
    "scan": ("scan", "--quick"),
    "whole scan": ("scan",),
    "long subspace": ("subspace", *DIGITS, "-a", "slant", "--permutations", 5000),
    "long vinfo": ("vinfo", *DIGITS, "-a", "slant", "--repeats", 12),
    "long property": ("attack", "property", *DIGITS, "-a", "slant", "--repeats", 12),
    "long reconstruct": ("attack", "reconstruct", *DIGITS, "--records", 8),
    "long dp-audit": (
        *("dp-audit", *WIDE, "-a", "sex", "--mechanism", "dp:clip=1,sigma=0.5"),
        *("--restarts", 8, "--trials", 10_000),
    ),
}
TWICE = """
import sys, time
from gradaudit.__main__ import main
for _ in range(2):
    begun = time.process_time()
    try:
        main()
    except SystemExit as end:
        assert end.code in (None, 0, 1), end.code
print(time.process_time() - begun, file=sys.stderr)
"""
TOLERANCE = 1e-9
Rows = dict[str, Any]


def ran(name: str, root: Path, jobs: int, program: tuple[str, ...]) -> tuple[Spent, Rows]:
    """What a command took, and the rows of its report by what tells them apart."""
    command = list(COMMANDS[name])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        more = [] if name == "list" else ["--jobs", jobs, "-q", "-o", report]
        spent = spent_by([*program, *command, *more], root, Path(folder))
        if spent.status not in (0, 1):
            raise SystemExit(spent.errors)
        rows = json.loads(report.read_text())["measurements"] if report.exists() else []
    key = "audit", "metric", "layer", "variant"
    return spent, {json.dumps([row[part] for part in key]): row for row in rows}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


def starts(names: list[str], rounds: int) -> None:
    """Seconds before the work begins, beside those of ``import torch``."""
    torch, whole, again = [], defaultdict(list), defaultdict(list)
    for _ in range(rounds):
        torch.append(spent_by(["-c", "import torch"]).cpu)
        for name in names:
            spent, _ = ran(name, ROOT, 1, ("-c", TWICE))
            again[name].append(float(spent.errors.splitlines()[-1]))
            whole[name].append(spent.cpu - again[name][-1])
    alone = statistics.median(torch)
    print(f"import torch {alone:.2f}")
    for name in names:
        total, work = statistics.median(whole[name]), statistics.median(again[name])
        print(f"{name:15} {total:6.2f}, start {total - work:5.2f} = {(total - work) / alone:.2f} ×")


def main() -> None:
    given = arguments(__doc__)
    names = given.only.split(",")
    if given.start:
        starts(names, given.rounds)
        return
    ways = {"this": (ROOT, 1)}
    if given.other:
        ways = {"other": (given.other.resolve(), 1), **ways}
    if given.jobs > 1:
        ways[f"{given.jobs} jobs"] = (ROOT, given.jobs)
    for name in names:
        found: dict[str, list[Spent]] = defaultdict(list)
        for _ in range(given.rounds):
            rows: list[Rows] = []
            for way, (root, jobs) in ways.items():
                spent, own = ran(name, root, jobs, ("-m", "gradaudit"))
                found[way].append(spent)
                rows.append(own)
        first, last = rows[0], rows[-1]
        differing = [key for key in {*first, *last} if not same(first.get(key), last.get(key))]
        told = (
            f"{way} {statistics.median(each.cpu for each in taken):.2f} CPU s, "
            f"{statistics.median(each.wall for each in taken):.2f} s"
            for way, taken in found.items()
        )
        print(f"{name}: {'; '.join(told)}; {len(differing)} of {len(last)} rows differ", flush=True)
        print(*differing[:5], sep="\n", end="" if not differing else "\n")


if __name__ == "__main__":
    main()
