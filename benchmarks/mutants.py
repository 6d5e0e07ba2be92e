"""Which faults no test sees: mutants of five rooms, and the tests of each against it.

    python benchmarks/mutants.py [ROOM … | ROOM/MODULE …] [--sample COUNT] [--seed SEED]

Cosmic Ray writes the mutants. Each meets the tests of its own module, and then the quick ones of
its room, in a process forked for it, where no library is loaded anew and no file is changed; one
that hangs is as good as killed. Mutants of annotations alone are left out, as they change nothing.
A sample is of each room's. A test that starts a fresh process sees none of it.
"""

import argparse
import ast
import importlib.machinery
import importlib.util
import io
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import ndiff
from importlib.abc import MetaPathFinder
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType

os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
import scipy.stats
import sklearn.ensemble
import torch
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

LOADED = (hypothesis, pytest, scipy.stats, sklearn.ensemble, torch)
ROOT = Path(__file__).parents[1]
ROOMS = ("dp", "judging", "ranks", "inference", "statistics")
FATES = ("killed", "survived", "timed out")
SECONDS = 240
LEFT_OUT = ("_Eq_Is", "NotEq_IsNot", "VariableInserter", "VariableReplacer")
"""Identity of equal constants is up to the interpreter; what is of variables needs to be told."""


@dataclass(frozen=True)
class Mutant:
    path: Path
    operator: str
    occurrence: int

    @property
    def room(self) -> str:
        return self.path.parent.name

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def source(self) -> str:
        operator = get_operator(self.operator)()
        return str(mutate_code(self.path.read_text(), operator, self.occurrence))

    def __str__(self) -> str:
        lines = ndiff(self.path.read_text().splitlines(), self.source.splitlines())
        changed = [" ".join(line.split()) for line in lines if line[0] in "-+"]
        return f"{self.path.relative_to(ROOT)}: " + "  ".join(changed)


class Finder(MetaPathFinder, importlib.machinery.SourceFileLoader):  # type: ignore[misc]
    """Finds and loads a mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutant.source, self.mutant.path, "exec")


def mutants(path: Path) -> Iterator[Mutant]:
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in operator_names():
        if name.endswith(LEFT_OUT):
            continue
        positions = get_operator(name)().mutation_positions
        count = sum(1 for node in nodes for _ in positions(node))
        yield from (Mutant(path, name, occurrence) for occurrence in range(count))


def changes(mutant: Mutant) -> bool:
    """Whether a mutant is Python, and not its module again."""
    try:
        return without_annotations(mutant.source) != without_annotations(mutant.path.read_text())
    except SyntaxError:
        return False


def without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
            case ast.arg():
                node.annotation = None
            case ast.FunctionDef():
                node.returns = None
    return ast.dump(tree)


def fate(mutant: Mutant) -> str:
    """What becomes of a mutant in a process of its own."""
    pid = os.fork()
    if not pid:
        os.setsid()
        killed = True
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                killed = not survives(mutant)
        finally:
            os._exit(killed)
    try:
        return reaped(pid, time.monotonic() + SECONDS)
    except KeyboardInterrupt:
        os.killpg(pid, signal.SIGKILL)
        raise


def reaped(pid: int, until: float) -> str:
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "killed" if status else "survived"
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "timed out"


def survives(mutant: Mutant) -> bool:
    sys.meta_path.insert(0, Finder(mutant))
    tests = ROOT / "tests" / mutant.room
    own = tests / f"test_{mutant.path.stem}.py"
    quick = ["-m", "not slow", str(tests), f"--ignore={own}"]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    runs = ([str(own)], quick) if own.exists() else (quick,)
    return all(pytest.main([*options, *run]) == pytest.ExitCode.OK for run in runs)


def modules(name: str) -> list[Path]:
    place = ROOT / "gradaudit" / name
    return sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def chosen(wanted: Sequence[str], sample: int | None, seed: int) -> Iterator[Mutant]:
    for name in wanted:
        every = [mutant for path in modules(name) for mutant in mutants(path)]
        if sample is not None:
            random.Random(seed).shuffle(every)
        yield from islice(filter(changes, every), sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wanted", nargs="*", default=ROOMS, metavar="ROOM")
    parser.add_argument("--sample", type=int, help="how many of each room are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    for name in options.wanted:
        if fate(Mutant(modules(name)[0], "core/NoOp", 0)) != "survived":
            sys.exit(f"{name}: the tests fail without a mutant")
    fates: dict[str, Counter[str]] = {}
    try:
        for mutant in chosen(options.wanted, options.sample, options.seed):
            end = fate(mutant)
            fates.setdefault(mutant.module, Counter())[end] += 1
            if end != "killed":
                print(f"{end:<9} {mutant}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(table(fates))


def table(fates: dict[str, Counter[str]]) -> str:
    rows = [*sorted(fates.items()), ("all", sum(fates.values(), Counter()))]
    return "\n".join(
        f"{name:<40}" + ", ".join(f"{counts[end]:>5} {end}" for end in FATES)
        for name, counts in rows
    )


if __name__ == "__main__":
    main()
