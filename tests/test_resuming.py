"""Commands that are killed at any moment go on from what is done, and end with the same report.

One process imports everything once and forks a child for every run, so that a run takes no longer
than its work.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import HANGS

TABLE = ("-m", "zoo:mlp?inputs=10&hidden=4&classes=2", "-d", "diabetes", "-a", "sex", "-q")
SCAN = """
sensitivity: {probes: 4}
vinfo: {repeats: 2, batches: 8, family: [logistic], correlation: false}
subspace: {permutations: 19}
attack_property: {shadow: 60, batches: 8, trials: 40, repeats: 1, rounds: 1, family: [logistic]}
attack_reconstruct: {method: ["dlg:iterations=3"], restarts: 1, batches: 2}
dp_audit: {mechanism: "dp:clip=1,sigma=1", trials: 100, restarts: 1, iterations: 2}
"""
COMMANDS = {
    "scan": ("scan", *TABLE, "--config", "scan.yaml", "--samples", "40"),
    "vinfo": (
        *("vinfo", *TABLE, "--repeats", "3", "--batches", "10", "--batch-size", "4"),
        *("--family", "logistic", "--no-correlation"),
    ),
    "attack reconstruct": (
        *("attack", "reconstruct", *TABLE, "--method", "dlg:iterations=8", "--restarts", "2"),
        *("--batches", "6"),
    ),
    "attack property": (
        *("attack", "property", *TABLE, "--repeats", "3", "--trials", "60", "--shadow", "80"),
        *("--batches", "10", "--batch-size", "4", "--rounds", "1", "--family", "logistic"),
    ),
    "tradeoff": (
        *("tradeoff", *TABLE, "--defense", "dp:clip=1,sigma=0.1|1,per=release"),
        *("--rounds", "2", "--batches", "2", "--iterations", "4", "--restarts", "1"),
        *("--repeats", "2"),
    ),
    "sweep": ("sweep", "subspace", *TABLE, "--permutations", "19", "--over", "seed=1,2,3,4"),
    "dp-audit": (
        *("dp-audit", *TABLE, "--mechanism", "dp:clip=1,sigma=1", "--trials", "400"),
        *("--restarts", "2", "--iterations", "8", "--sweep-sigma", "0.5", "--sweep-sigma", "2"),
    ),
}
KILLS = 9
"""Of every command; in all more than sixty."""

FORKS = """
import json, os, random, signal, sys, time
from pathlib import Path

name, command, kills = json.loads(sys.argv[1])
import gradaudit, gradaudit.runner, gradaudit.subject, gradaudit.units
from gradaudit.__main__ import main
from gradaudit.cli import build
build()

def start(output):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["gradaudit", *command, "-o", output]
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stderr.flush()
        os._exit(status)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

begun = time.monotonic()
statuses = [ended(start("whole.json"))]
taken = time.monotonic() - begun
moments, units = random.Random(name), []
for number in range(kills):
    child = start("killed.json")
    time.sleep(moments.uniform(0, taken / 2))
    os.kill(child, signal.SIGKILL if number % 3 else signal.SIGTERM)
    statuses.append(ended(child))
    folder = Path("killed.json.unfinished")
    units.append(len(list(folder.iterdir())) if folder.exists() else 0)
statuses.append(ended(start("killed.json")))
print(json.dumps([statuses, units, sorted(path.name for path in Path().iterdir())]))
"""
_RUN = {"started", "finished", "seconds", "command"}


def killed_again_and_again(folder: Path, name: str) -> tuple[list[int], list[int], list[str]]:
    (folder / "scan.yaml").write_text(SCAN)
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps([name, COMMANDS[name], KILLS])],
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def without_times(file: Path) -> dict[str, Any]:
    report = json.loads(file.read_text())
    facts = {key: fact for key, fact in report["provenance"].items() if key not in _RUN}
    return {**report, "provenance": facts}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on_and_ends_with_the_same_report(tmp_path: Path, name: str) -> None:
    statuses, units, left = killed_again_and_again(tmp_path, name)
    log = (tmp_path / "log").read_text()
    assert (statuses[0], statuses[-1]) == (0, 0), log
    assert set(statuses[1:-1]) <= {-9, -15, 143, 0}
    assert max(units) > 0
    assert left == ["killed.json", "log", "scan.yaml", "whole.json"]
    assert without_times(tmp_path / "killed.json") == without_times(tmp_path / "whole.json")
