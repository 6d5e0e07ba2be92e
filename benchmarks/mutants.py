"""Which faults no test sees: mutants of the rooms below, and their tests against each.

    python benchmarks/mutants.py [ROOM … | ROOM/MODULE …] [--sample COUNT] [--seed SEED]

Cosmic Ray writes the mutants. Each meets the tests of its own module and the quick ones of its
room, the quickest first, in a process forked for it, where no library is loaded anew and no file is
changed; one that hangs is as good as killed. Tests that never pass the line that it changes are
spared. Mutants of annotations alone are left out, as they change nothing. A sample is of each
room's. A test that starts a fresh process sees none of it.
"""

import argparse
import ast
import importlib.machinery
import importlib.util
import io
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import ndiff
from importlib.abc import MetaPathFinder
from itertools import islice, zip_longest
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

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
PACKAGE, TESTS = ROOT / "gradaudit", ROOT / "tests"
ROOMS = ("audits/dp_audit", "audits/vinfo", "games", "judging", "ranks", "statistics")
FATES = ("killed", "survived", "timed out")
SECONDS = 240
"""For the tests of a mutant, at most."""
ALWAYS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
LEFT_OUT = ("_Eq_Is", "NotEq_IsNot", "VariableInserter", "VariableReplacer")
"""Identity of equal constants is up to the interpreter; what is of variables needs to be told."""


@dataclass(frozen=True)
class Mutant:
    path: Path
    operator: str
    occurrence: int

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def source(self) -> str:
        operator = get_operator(self.operator)()
        return str(mutate_code(self.path.read_text(), operator, self.occurrence))

    @property
    def place(self) -> range:
        """The lines of the statement that it changes, the first ones of one with a body."""
        before, after = self.path.read_text().splitlines(), self.source.splitlines()
        changed = next(n for n, (a, b) in enumerate(zip_longest(before, after), 1) if a != b)
        spans = (_span(node) for node in ast.walk(ast.parse("\n".join(before))))
        around = (span for span in spans if changed in span)
        return min(around, key=len, default=range(changed, changed + 1))

    def __str__(self) -> str:
        lines = ndiff(self.path.read_text().splitlines(), self.source.splitlines())
        changed = [" ".join(line.split()) for line in lines if line[0] in "-+"]
        return f"{self.path.relative_to(ROOT)}: " + "  ".join(changed)


def _span(node: ast.AST) -> range:
    """Lines of a statement, without its body."""
    if not isinstance(node, ast.stmt) or node.end_lineno is None:
        return range(0)
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno
    return range(node.lineno, max(end, node.lineno) + 1)


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


class Watch:
    """A pytest plugin: which lines every test passes, how long it takes, and whether it is slow."""

    def __init__(self, room: str) -> None:
        self.folder = f"{PACKAGE / room}/"
        self.test = ""
        self.passing: dict[str, dict[int, set[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.slow: set[str] = set()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """What ``sys.settrace`` calls for every frame, and for every line of the room's."""
        name, line = frame.f_code.co_filename, frame.f_lineno
        if not name.startswith(self.folder):
            return None
        self.passing.setdefault(name, {}).setdefault(line, set()).add(self.test)
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test, began = item.nodeid, time.monotonic()
        yield
        self.test, self.seconds[item.nodeid] = "", time.monotonic() - began
        if item.get_closest_marker("slow"):
            self.slow.add(item.nodeid)


@dataclass(frozen=True)
class Asked:
    """The seconds of a room's tests, the quickest first, its slow ones, and what passes a line."""

    tests: dict[str, float]
    slow: set[str]
    passing: dict[str, dict[int, set[str]]]

    def about(self, mutant: Mutant) -> list[str]:
        """Tests that may see it: those of its module, and quick ones of the room.

        Any may see what is passed while its module is loaded, as constants are.
        """
        lines = self.passing.get(str(mutant.path), {})
        passed = {test for line in mutant.place for test in lines.get(line, ())}
        own = f"{own_tests(mutant.path).relative_to(ROOT)}::"
        known = (test for test in self.tests if test not in self.slow or test.startswith(own))
        return [test for test in known if "" in passed or test in passed]


def asked(name: str) -> Asked:
    """By running the tests of modules and the quick ones of their room, in a forked process."""
    with tempfile.TemporaryFile() as file:
        if not (pid := os.fork()):
            with redirect_stdout(io.StringIO()) as said:
                try:
                    pickle.dump(_watched(name), file)
                    file.flush()
                except Exception as error:
                    print(said.getvalue(), repr(error), file=sys.stderr)
                finally:
                    os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        try:
            found: Asked = pickle.load(file)
        except EOFError:
            sys.exit(f"{name}: the tests fail without a mutant")
    return found


def _watched(name: str) -> Asked:
    room = name if (PACKAGE / name).is_dir() else name.rpartition("/")[0]
    own = [path for path in map(own_tests, modules(name)) if path.exists()]
    quick = ["-m", "not slow", str(TESTS / room), *(f"--ignore={path}" for path in own)]
    watch = Watch(room)
    sys.settrace(watch.trace)
    for run in (map(str, own), quick):
        assert pytest.main([*ALWAYS, "-x", *run], [watch]) == pytest.ExitCode.OK
    sys.settrace(None)
    tests = sorted(watch.seconds.items(), key=itemgetter(1))
    return Asked(dict(tests), watch.slow, watch.passing)


def fate(mutant: Mutant, known: Asked) -> str:
    """What becomes of a mutant in a process of its own."""
    if not (tests := known.about(mutant)):
        return "survived"
    patience = min(SECONDS, 30 + 10 * sum(known.tests[test] for test in tests))
    pid = os.fork()
    if not pid:
        os.setsid()
        killed = True
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                sys.meta_path.insert(0, Finder(mutant))
                killed = pytest.main([*ALWAYS, "-x", *tests]) != pytest.ExitCode.OK
        finally:
            os._exit(killed)
    try:
        return reaped(pid, time.monotonic() + patience)
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


def own_tests(path: Path) -> Path:
    """The file of tests that mirrors a module."""
    return TESTS / path.parent.relative_to(PACKAGE) / f"test_{path.stem}.py"


def modules(name: str) -> list[Path]:
    place = PACKAGE / name
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def chosen(name: str, sample: int | None, seed: int) -> Iterator[Mutant]:
    every = [mutant for path in modules(name) for mutant in mutants(path)]
    if sample is not None:
        random.Random(seed).shuffle(every)
    return islice(filter(changes, every), sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wanted", nargs="*", default=ROOMS, metavar="ROOM")
    parser.add_argument("--sample", type=int, help="how many of each room are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    fates: dict[str, Counter[str]] = {}
    try:
        for name in options.wanted:
            known = asked(name)
            for mutant in chosen(name, options.sample, options.seed):
                end = fate(mutant, known)
                fates.setdefault(mutant.module, Counter())[end] += 1
                print(".", end="", file=sys.stderr, flush=True)
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
