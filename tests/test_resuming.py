"""Commands that are killed at any moment go on from what is done, and end with the same report.

One process runs every command once and forks a child for every other run, so that a run takes no
longer than its work.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from command_line import HANGS
from dp_subject import subject

from gradaudit.audits import Audit, AuditOptions, Metric
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.audits.rows import Rows
from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
from gradaudit.cli.perform import unfinished
from gradaudit.config import OutputSettings
from gradaudit.defenses import parse_defense
from gradaudit.errors import short_of_memory
from gradaudit.executors.stopping import Stopped
from gradaudit.executors.units import Units
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.run.fingerprint import fingerprint
from gradaudit.run.runner import run
from gradaudit.subject import Subject

TABLE = ("-m", "zoo:mlp?inputs=10&hidden=4&classes=2", "-d", "diabetes", "-a", "sex", "-q")
COMMANDS = {
    "attack reconstruct": (
        *("attack", "reconstruct", *TABLE, "--method", "dlg:iterations=1", "--restarts", "1"),
        *("--batches", "4"),
    ),
    "tradeoff": (
        *("tradeoff", *TABLE, "--defense", "dp:clip=1,sigma=0.1|1,per=release"),
        *("--rounds", "2", "--batches", "2", "--method", "dlg:optimiser=adam"),
        *("--iterations", "2", "--restarts", "1", "--repeats", "2", "--participants", "2"),
    ),
    "sweep": (
        "sweep",
        "subspace",
        *TABLE,
        "--permutations",
        "19",
        "--over",
        "seed=1,2,3,4,5,6,7,8",
    ),
    "dp-audit": (
        *("dp-audit", *TABLE, "--mechanism", "dp:clip=1,sigma=1", "--trials", "400"),
        *("--restarts", "2", "--iterations", "8", "--sweep-sigma", "0.5", "--sweep-sigma", "2"),
    ),
}
KILLS = 4
"""Of every command, each at a moment of another quarter of its time; in all twenty.

More follow until one has finished units before it, which a busy machine may let pass unseen."""

FORKS = """
import gc, json, os, random, signal, sys, time
from pathlib import Path
from warmed import run, warm

commands, kills = json.loads(sys.argv[1])
told, out = {}, os.dup(1)
for number, file in ((1, os.devnull), (2, "log")):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)

def start(command, output):
    child = os.fork()
    if child:
        return child
    status = run([*command, "-o", output])
    sys.stderr.flush()
    os._exit(status)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def kept(output):
    return len(list(Path().glob(f"{output}.unfinished/*")))

def runs(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

warm(())
moments = random.Random(0)
for name, command in commands.items():
    killed, units = f"{name} killed.json", []
    begun = time.monotonic()
    statuses = [run([*command, "-o", f"{name}.json"])]
    taken = time.monotonic() - begun
    gc.freeze()
    for number in range(kills + 20):
        if number >= kills and any(units):
            break
        begun, child = time.monotonic(), start(command, killed)
        moment = begun + 0.8 * taken * (number + moments.random()) / kills
        late = begun + 20 * taken
        while time.monotonic() < moment:
            time.sleep(0.005)
            if not runs(child):
                taken = time.monotonic() - begun  # warm, it takes less
                break
        while number >= kills - 1 and not kept(killed) and runs(child) and time.monotonic() < late:
            time.sleep(0.001)  # at least one goes on from something
        os.kill(child, signal.SIGKILL if number % 3 else signal.SIGTERM)
        statuses.append(ended(child))
        units.append(kept(killed))
    statuses.append(ended(start(command, killed)))
    told[name] = statuses, units, [path.name for path in Path().glob(f"*{killed}*")]
os.write(out, json.dumps(told).encode())
"""
_RUN = {"started", "finished", "seconds", "command"}


class Told(NamedTuple):
    """What became of one command: exit statuses, units after every kill, files that are left."""

    statuses: list[int]
    units: list[int]
    left: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Told]:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps([COMMANDS, KILLS])],
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return {name: Told(*fates) for name, fates in json.loads(done.stdout).items()}


def without_times(file: Path) -> dict[str, Any]:
    report = json.loads(file.read_text())
    facts = {key: fact for key, fact in report["provenance"].items() if key not in _RUN}
    return {**report, "provenance": facts}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on_and_ends_with_the_same_report(
    folder: Path, told: dict[str, Told], name: str
) -> None:
    statuses, units, left = told[name]
    assert (statuses[0], statuses[-1]) == (0, 0), (folder / "log").read_text()
    assert set(statuses[1:-1]) <= {0, 143, -signal.SIGTERM, -signal.SIGKILL}
    assert max(units) > 0
    assert left == [f"{name} killed.json"]
    assert without_times(folder / left[0]) == without_times(folder / f"{name}.json")


class Hungry(Audit[AuditOptions]):
    """Needs no more than 2²⁸ bytes, and finds out when it has begun."""

    name: ClassVar[str] = "hungry"
    summary: ClassVar[str] = "How much memory there was."
    metrics = (Metric(id="bytes", title="Bytes", per_layer=False),)
    headline = ("bytes",)
    error: ClassVar[Exception] = MemoryError()
    enough: ClassVar[int] = 1 << 28

    def run(self, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        there = subject.units.of("there").once(lambda: subject.memory)
        yield Rows(type(self)).measured("bytes", there)
        if subject.memory > self.enough:
            raise self.error


SHORT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_an_audit_short_of_memory_goes_on_with_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """And from what was finished with as much: numbers may depend on it."""
    monkeypatch.setattr(Hungry, "error", error)
    report = run(subject("sex"), [Hungry(AuditOptions())], units=Units(tmp_path))
    assert [row.value for row in report.measurements] == [1 << 28]
    assert report.provenance["broken"] == {}


def test_an_audit_that_no_memory_suffices_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hungry, "enough", 0)
    report = run(subject("sex"), [Hungry(AuditOptions())])
    (fault,) = report.provenance["broken"].values()
    assert fault.startswith("MemoryError: (test_resuming.py, line ")


class Doubled(Hungry):
    """Whose numbers of double precision never fit."""

    least: ClassVar = {"single": True}

    def run(self, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        there = subject.units.of("there").once(lambda: subject.target.precision)
        assert there is subject.target.precision
        if subject.target.precision is torch.float64:
            raise self.error
        yield Rows(type(self)).measured("bytes", subject.memory)


def test_what_fits_in_single_precision_alone_is_taken_so_and_says_it(tmp_path: Path) -> None:
    audited = subject("sex")
    report = run(audited, [Doubled(AuditOptions())], units=Units(tmp_path))
    (row,) = report.measurements
    assert (row.value, row.details) == (audited.memory, {"dtype": "float32"})
    assert report.provenance["dtype"] == "float64"
    assert report.provenance["broken"] == {}


def test_a_real_shortage_is_one() -> None:
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(1 << 60)
    with pytest.raises(MemoryError) as numpys:
        np.empty(1 << 55)
    assert short_of_memory(torchs.value)
    assert short_of_memory(numpys.value)
    assert not short_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def nudged(audited: Subject) -> Subject:
    model = copy.deepcopy(audited.target.model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    return replace(audited, targets=(replace(audited.target, model=model),))


OTHERS: dict[str, Callable[[Subject], Subject]] = {
    "seed": lambda audited: replace(audited, seed=1),
    "samples": lambda audited: replace(audited, samples=7),
    "records": lambda audited: replace(audited, records=audited.records.take(np.arange(50))),
    "weights": nudged,
    "layers": lambda audited: replace(audited, layers=audited.layers[1:]),
    "hidden": lambda audited: replace(audited, hidden=("0",)),
    "defenses": lambda audited: replace(audited, defenses=(parse_defense("sign"),)),
    "mode": lambda audited: replace(audited, targets=(replace(audited.target, mode="train"),)),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_run_has_another_fingerprint(change: Callable[[Subject], Subject]) -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))
    assert fingerprint(change(audited), audit) != fingerprint(audited, audit)


def test_options_and_the_files_that_they_name_are_in_the_fingerprint(tmp_path: Path) -> None:
    audited = subject("sex")
    code = tmp_path / "mine.py"

    def of(**options: Any) -> str:
        return fingerprint(audited, DpAudit(DpAudit.Options(**options)))

    prints = [of(), of(trials=200)]
    for text in ("a = 1", "a = 2"):
        code.write_text(text)
        prints.append(of(mechanism=f"{code}:a"))
    assert len(set(prints)) == 4
    assert prints[-1] == of(mechanism=f"{code}:a")


def test_settings_of_a_models_folder_are_in_the_fingerprint(tmp_path: Path) -> None:
    described = replace(subject("sex").target, description=f"hf:m?adapter={tmp_path}")
    audited, prints = replace(subject("sex"), targets=(described,)), []
    for alpha in (1, 2):
        (tmp_path / "adapter_config.json").write_text(f'{{"lora_alpha": {alpha}}}')
        prints.append(fingerprint(audited, Sensitivity(SensitivityOptions())))
    assert prints[0] != prints[1]


def test_workers_and_memory_are_not_in_the_fingerprint() -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))
    other = replace(audited, jobs=4, memory=1 << 20)
    assert fingerprint(other, audit) == fingerprint(audited, audit)


@pytest.mark.slow
def test_units_of_another_run_are_left_alone(tmp_path: Path) -> None:
    audit = Sensitivity(SensitivityOptions(probes=8))
    units = Units(tmp_path)
    first = run(subject("sex"), [audit], units=units)
    kept = len(list(tmp_path.iterdir()))
    other = run(subject("sex", seed=1), [audit], units=units)
    assert len(list(tmp_path.iterdir())) == 2 * kept
    again = run(subject("sex"), [audit], units=units)
    assert first.measurements == again.measurements
    assert first.provenance["seconds"] == again.provenance["seconds"]
    assert first.measurements != other.measurements
    assert len(list(tmp_path.iterdir())) == 2 * kept


@pytest.mark.parametrize(("made", "more"), [(0, ""), (1, "; the same command goes on from r.json")])
def test_an_interruption_says_where_it_goes_on(tmp_path: Path, made: int, more: str) -> None:
    def interrupted() -> None:
        with unfinished(OutputSettings(output=(tmp_path / "r.json",))) as units:
            for number in range(made):
                units.of(number).once(lambda: 1)
            raise Stopped(signal.SIGINT)

    with pytest.raises(Stopped) as stop:
        interrupted()
    assert stop.value.words.removesuffix(".unfinished") == f"interrupted{more}"


def test_without_an_output_nothing_is_kept() -> None:
    with unfinished(OutputSettings()) as units:
        assert not units
