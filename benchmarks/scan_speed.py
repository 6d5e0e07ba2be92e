"""CPU seconds of a scan by this checkout and by another, which take turns, and whether rows differ.

Each scan is a process of its own on one thread, in an empty folder. What is told are medians, and
that of the rounds' ratios, which a busy machine disturbs less.

    python benchmarks/scan_speed.py OTHER_CHECKOUT [--rounds 3] [-- --quick]
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
TOLERANCE = 1e-9
"""Of numbers that count as the same, in units of the larger or of one."""


def scanned(root: Path, arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """CPU seconds of a scan and its processes, and its rows by what tells them apart."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gradaudit", "scan", "--jobs", "1", "-o", "report.json"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, *arguments], cwd=folder, env=environment, capture_output=True, check=False
        )
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr.decode())
        report = json.loads((Path(folder) / "report.json").read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    key = "audit", "metric", "layer", "variant"
    rows = {json.dumps([row[name] for name in key]): row for row in report["measurements"]}
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, rows


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("arguments", nargs="*", help="of the scan, after --")
    given = parser.parse_args()
    roots = given.other.resolve(), HERE
    times: list[list[float]] = []
    for _ in range(given.rounds):
        seconds, rows = zip(*(scanned(root, given.arguments) for root in roots), strict=True)
        other, ours = rows
        differing = [key for key in {*other, *ours} if not same(other.get(key), ours.get(key))]
        print("other {:.1f}, this {:.1f} CPU seconds".format(*seconds), end="; ")
        print(f"{len(differing)} of {len(ours)} rows differ", *differing[:5], flush=True)
        times.append(list(seconds))
    before, now = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(ours / other for other, ours in times)
    print(f"medians: other {before:.1f}, this {now:.1f} CPU seconds; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
