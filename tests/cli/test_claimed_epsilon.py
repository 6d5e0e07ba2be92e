"""The verdict of ``dp-audit --claimed-epsilon`` as a CI job meets it: the exit status."""

import json
import subprocess
import sys

import pytest

AUDIT = (
    *("dp-audit", "-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes?scale=standard"),
    *("-a", "sex", "--trials", "400", "--restarts", "2", "--iterations", "4", "-f", "json", "-q"),
)
NEARLY_OPEN = ("--mechanism", "dp:clip=1,sigma=0.05")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradaudit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (NEARLY_OPEN, 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "500"), 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "1"), 1, "epsilon is at least"),
        (("--mechanism", "dp:clip=1,sigma=0", "--claimed-epsilon", "9"), 1, "epsilon is infinite"),
    ],
)
def test_only_a_bound_above_the_claim_fails(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = run(*AUDIT, *arguments)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(f"gradaudit: dp-audit: {message}" if message else "")
    assert bool(done.stderr) == bool(message)
    assert json.loads(done.stdout)["measurements"]
