"""Makes a process ready to be forked for commands, so that each takes no longer than its work."""

import gc
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO

import typer.main

from gradaudit import cli
from gradaudit.__main__ import main


def warm(commands: Iterable[Sequence[str]]) -> None:
    """Make the command line, and run commands, which import and fill what is kept for later."""
    whole = cli.build()
    vars(cli)["build"] = lambda _=None: whole
    vars(typer.main)["get_command"] = cache(typer.main.get_command)
    for words in commands:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            run(words)
    gc.collect()
    gc.freeze()


def run(words: Sequence[str]) -> int:
    """Run a command here; its exit status."""
    sys.argv = ["gradaudit", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
