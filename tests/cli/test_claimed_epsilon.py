"""The verdict of ``dp-audit --claimed-epsilon`` as a CI job meets it: the exit status."""

import json
from pathlib import Path

import pytest
from command_line import run
from forked import Forked

AUDIT = (
    *("dp-audit", "-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes?scale=standard"),
    *("-a", "sex", "--trials", "400", "--restarts", "2", "--iterations", "4", "-f", "json", "-q"),
)
NEARLY_OPEN = ("--mechanism", "dp:clip=1,sigma=0.05")
EXCEEDED = (*NEARLY_OPEN, "--claimed-epsilon", "1")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (NEARLY_OPEN, 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "500"), 0, ""),
        (EXCEEDED, 1, "epsilon is at least"),
        (("--mechanism", "dp:clip=1,sigma=0", "--claimed-epsilon", "9"), 1, "epsilon is infinite"),
    ],
)
def test_only_a_bound_above_the_claim_fails(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = run(*AUDIT, *arguments)
    assert done.status == status, done.err
    assert done.err.startswith(f"gradaudit: dp-audit: {message}" if message else "")
    assert bool(done.err) == bool(message)
    assert json.loads(done.out)["measurements"]


@pytest.mark.slow
def test_the_process_ends_with_that_status(tmp_path: Path) -> None:
    without_noise = ("--mechanism", "dp:clip=1,sigma=0", "--claimed-epsilon", "9")
    process = Forked((*AUDIT, *without_noise), tmp_path)
    out, err = process.communicate()
    assert process.returncode == 1, err
    assert json.loads(out)["measurements"]
