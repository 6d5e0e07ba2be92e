"""What ``dp-audit`` is asked for wrongly ends like any other wrong request."""

import pytest
from command_line import run

SUBJECT = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes", "-a", "sex")


@pytest.mark.parametrize("mechanism", ["nonsense", "dp:clip=1", "dp:clip=one,sigma=1"])
def test_a_wrong_mechanism_is_wrong_usage(mechanism: str) -> None:
    done = run("dp-audit", *SUBJECT, "--mechanism", mechanism)
    assert done.status == 2
    assert done.out == ""
    assert mechanism in done.err
    assert done.err.count("\n") == 1
