"""Runs the command line in this process and keeps what it wrote."""

from typing import NamedTuple

from typer.testing import CliRunner

from gradaudit.cli import build


class Result(NamedTuple):
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


def run(*arguments: object, width: int = 100, **environment: str) -> Result:
    """Run ``gradaudit ARGUMENTS`` without a terminal."""
    done = CliRunner().invoke(
        build(),
        [str(argument) for argument in arguments],
        env={"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb", **environment},
    )
    return Result(done.exit_code, done.stdout, done.stderr)
