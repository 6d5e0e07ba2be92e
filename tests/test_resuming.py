"""Commands that are killed at any moment go on from what is done, and end with the same report.

One process imports everything once and forks a child for every run, so that a run takes no longer
than its work.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import HANGS

TABLE = ("-m", "zoo:mlp?inputs=10&hidden=4&classes=2", "-d", "diabetes", "-a", "sex", "-q")
AUDITS = [f"--audits={name}" for name in ("sensitivity", "vinfo", "subspace", "dp-audit")]
SCAN = """
sensitivity: {probes: 8}
vinfo: {repeats: 2, batches: 10, family: [logistic], correlation: false}
subspace: {permutations: 19}
dp_audit: {mechanism: "dp:clip=1,sigma=1", trials: 100, restarts: 1, iterations: 2}
"""
COMMANDS = {
    "scan": ("scan", *TABLE, "--config", "scan.yaml", "--samples", "40", *AUDITS),
    "vinfo": (
        *("vinfo", *TABLE, "--repeats", "3", "--batches", "10", "--batch-size", "4"),
        *("--family", "logistic", "--no-correlation"),
    ),
    "attack reconstruct": (
        *("attack", "reconstruct", *TABLE, "--method", "dlg:iterations=8", "--restarts", "2"),
        *("--batches", "6"),
    ),
    "attack property": (
        *("attack", "property", *TABLE, "--repeats", "3", "--trials", "120", "--shadow", "80"),
        *("--batches", "10", "--batch-size", "4", "--rounds", "1", "--family", "logistic"),
    ),
    "tradeoff": (
        *("tradeoff", *TABLE, "--defense", "dp:clip=1,sigma=0.1|1,per=release"),
        *("--rounds", "2", "--batches", "2", "--iterations", "4", "--restarts", "1"),
        *("--repeats", "2", "--participants", "2"),
    ),
    "sweep": ("sweep", "subspace", *TABLE, "--permutations", "19", "--over", "seed=1,2,3,4,5,6,7,8"),
    "dp-audit": (
        *("dp-audit", *TABLE, "--mechanism", "dp:clip=1,sigma=1", "--trials", "400"),
        *("--restarts", "2", "--iterations", "8", "--sweep-sigma", "0.5", "--sweep-sigma", "2"),
    ),
}
KILLS = 9
"""Of every command; in all more than sixty."""

FORKS = """
import json, os, pkgutil, random, signal, sys, time
from importlib import import_module
from pathlib import Path

commands, kills = json.loads(sys.argv[1])
import gradaudit, torch._dynamo, torch._decomp.decompositions_for_jvp
from gradaudit.__main__ import main
for module in pkgutil.walk_packages(gradaudit.__path__, "gradaudit."):
    import_module(module.name)

def start(command, output):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["gradaudit", *command, "-o", output]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stderr.flush()
        os._exit(status)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

moments, told = random.Random(0), {}
for name, command in commands.items():
    whole, killed = f"{name}.json", f"{name} killed.json"
    begun = time.monotonic()
    statuses, units = [ended(start(command, whole))], []
    taken = time.monotonic() - begun
    for number in range(kills):
        child = start(command, killed)
        time.sleep(moments.uniform(0, 0.8 * taken))
        os.kill(child, signal.SIGKILL if number % 3 else signal.SIGTERM)
        statuses.append(ended(child))
        kept = Path(killed + ".unfinished")
        units.append(len(list(kept.iterdir())) if kept.exists() else 0)
    statuses.append(ended(start(command, killed)))
    told[name] = statuses, units, [path.name for path in Path().glob(f"*{killed}*")]
print(json.dumps(told))
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
    (folder / "scan.yaml").write_text(SCAN)
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps([COMMANDS, KILLS])],
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=False,
        cwd=folder,
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
