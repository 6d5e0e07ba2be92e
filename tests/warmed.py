"""A process that has imported what every command needs and is forked for each: see ``warm``."""

import gc
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO

import typer.main

import gradaudit
from gradaudit import cli
from gradaudit.__main__ import main


def warm(commands: Iterable[Sequence[str]]) -> None:
    """Import everything, make the command line, and run commands that fill what is kept for later.

    Frameworks that only integrations need are left out.
    """
    for module in pkgutil.walk_packages(gradaudit.__path__, "gradaudit."):
        if ".integrations." not in module.name:
            importlib.import_module(module.name)
    whole = cli.build()
    vars(cli)["build"] = lambda _: whole
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
