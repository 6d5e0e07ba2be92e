"""The verdict of ``dp-audit --claimed-epsilon`` as a CI job meets it: the exit status."""

import json

import pytest
from command_line import run

AUDIT = (
    *("dp-audit", "-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes?scale=standard"),
    *("-a", "sex", "--trials", "400", "--restarts", "2", "--iterations", "4", "-f", "json", "-q"),
)
NEARLY_OPEN = ("--mechanism", "dp:clip=1,sigma=0.05")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (NEARLY_OPEN, 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "2000"), 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "500"), 1, "epsilon"),  # the law's own is 970
        ((*NEARLY_OPEN, "--claimed-epsilon", "500", "--exit-zero"), 0, ""),
        ((*NEARLY_OPEN, "--claimed-epsilon", "1"), 1, "epsilon is at least"),
        (("--mechanism", "dp:clip=1,sigma=0", "--claimed-epsilon", "9"), 1, "epsilon is infinite"),
    ],
)
def test_a_bound_or_a_law_above_the_claim_fails(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = run(*AUDIT, *arguments)
    assert done.status == status, done.err
    assert done.err.startswith(f"gradaudit: dp-audit: {message}" if message else "")
    assert bool(done.err) == bool(message)
    assert json.loads(done.out)["measurements"]
