"""Which faults no test sees: Cosmic Ray's mutants of some rooms, against their tests.

    python -m benchmarks.mutants [ROOMS …] [--sample 0] [--seed 0]

A mutant meets the tests of its own module first, then the quick ones of its room; one that hangs is
as good as killed. All of it happens in a copy of the checkout. Left out are mutants of ``==`` to
``is``, as identity of equal constants is up to the interpreter. A sample is so many of each room's
(0: all); a room may be a module, ``judging/case``.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

from benchmarks.harness import ROOT, arguments

ROOMS = ("audits/dp_audit", "audits/vinfo", "games", "judging", "ranks", "core/statistics")
PYTEST = f"{sys.executable} -m pytest -x -q -p no:cacheprovider -p no:xdist"
PATIENCE, SECONDS = 10, 240
"""Times as long as without a mutant that the tests may take, and seconds at most."""


def modules(room: str) -> list[Path]:
    place = Path("gradaudit", room)
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def command(room: str, module: Path) -> str:
    """The module's own tests, slow ones too, and then the quick ones of the room."""
    tests = Path("tests", *module.parts[1:-1])
    own, folder = tests / f"test_{module.stem}.py", Path("tests", room)
    quick = f'{PYTEST} -m "not slow" {folder if folder.is_dir() else tests}'
    return f"sh -c '{PYTEST} {own} && {quick}'" if own.is_file() else quick


def changing(room: str) -> list[MutationSpec]:
    """The mutants of a room that may change what it does."""
    with use_db("session.sqlite") as session:
        init(modules(room), session, {})
        every = [item.mutations[0] for item in session.work_items]
    return [each for each in every if not each.operator_name.endswith(("_Eq_Is", "NotEq_IsNot"))]


@cache
def patience(test: str) -> float:
    """Seconds that a mutant has, by what the tests take without one."""
    begun = time.monotonic()
    outcome, said = run_tests(test, 10 * SECONDS)
    if outcome != TestOutcome.SURVIVED:
        sys.exit(f"{test}: the tests fail without a mutant\n{said}")
    return min(SECONDS, PATIENCE * (time.monotonic() - begun))


def tried(room: str, sample: int, seed: int) -> Counter[str]:
    """Print what survives in a room, and count the fates of its mutants."""
    mutants, fates = changing(room), Counter[str]()
    random.Random(seed).shuffle(mutants)
    for mutant in mutants[: sample or None]:
        test = command(room, mutant.module_path)
        found = mutate_and_test([mutant], test, patience(test))
        fates[str(found.test_outcome.value)] += 1
        print(".", end="", file=sys.stderr, flush=True)
        if found.test_outcome != TestOutcome.KILLED:
            print(found.diff or found.output, flush=True)
    return fates


def main() -> None:
    asked = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        left_out = shutil.ignore_patterns(".*", "__pycache__", "site")
        copy = shutil.copytree(ROOT, Path(folder) / "checkout", ignore=left_out)
        os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        os.chdir(copy)
        for room in asked.rooms or ROOMS:
            print(f"{room}: {dict(tried(room, asked.sample, asked.seed))}", flush=True)


if __name__ == "__main__":
    main()
