"""Runs the command line in this process and keeps what it wrote."""

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from gradaudit.cli import build

HANGS = 600
"""Seconds after which a process is taken to hang, however busy the machine."""


class Result(NamedTuple):
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


def run(*arguments: object, width: int = 100, given: str = "", **environment: str) -> Result:
    """Run ``gradaudit ARGUMENTS`` without a terminal; ``given`` comes in on standard input."""
    return invoke(build(), *arguments, given=given, COLUMNS=str(width), **environment)


def invoke(app: Typer, *arguments: object, given: str = "", **environment: str) -> Result:
    """Run a Typer application without a terminal; what it lets through is raised."""
    status, out, err = invoke_raw(app, *arguments, given=given, **environment)
    return Result(status, out.decode(), err.decode())


def invoke_raw(
    app: Typer,
    *arguments: object,
    encoding: str = "utf-8",
    given: str = "",
    **environment: str,
) -> tuple[int, bytes, bytes]:
    """The same with what is written as it is, to streams of an encoding."""
    env = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **environment}
    with CliRunner(charset=encoding).isolation(input=given, env=env) as (out, err, _):
        status = _status(app, [str(argument) for argument in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        return status, out.getvalue(), err.getvalue()


def _status(app: Typer, arguments: list[str]) -> int:
    try:
        command(app).main(args=arguments, prog_name="gradaudit")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@cache
def command(app: Typer) -> Any:
    """What Typer makes of an application, which takes it longer than most commands do."""
    return get_command(app)


LIGHT = """
import json, sys
from gradaudit.cli import main
commands, heavy = json.loads(sys.argv[1])
for arguments in commands:
    sys.argv = ["gradaudit", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code in (None, 0, 1), (arguments, end.code)
    assert not set(heavy) & set(sys.modules), (arguments, set(heavy) & set(sys.modules))
"""


def expect_light(commands: Sequence[Sequence[object]], heavy: Collection[str]) -> None:
    """Run commands one after the other in a process of their own that imports nothing heavy."""
    asked = json.dumps([[[str(word) for word in words] for words in commands], sorted(heavy)])
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, asked],
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
