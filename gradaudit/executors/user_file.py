"""An executor from the user's own file."""

from __future__ import annotations

import atexit
from concurrent.futures import Executor

from gradaudit.core.text import first_line
from gradaudit.core.user_code import load_callable
from gradaudit.errors import UsageError, foreign
from gradaudit.executors.base import GivenExecutor


class UserFile(GivenExecutor):
    """A ``concurrent.futures.Executor`` that a function or class of the user's file returns.

    It is called without arguments, once. What it runs is ``submit(function, *args)`` with a
    function of this package and bytes, so its workers must have the package installed. It is shut
    down when the process ends.
    """

    name = "file"
    summary = "a function in a Python file that returns a concurrent.futures.Executor"
    example = "path/to/file.py:NAME"

    def __init__(self, target: str) -> None:
        option = f"--executor {target}"
        make = load_callable(target, "--executor")
        try:
            with foreign():
                executor = make()
        except Exception as error:
            raise UsageError(f"{option}: calling it failed with {first_line(error)}") from error
        if not isinstance(executor, Executor):
            kind = type(executor).__name__
            raise UsageError(f"{option}: returned a {kind}; return a concurrent.futures.Executor")
        atexit.register(executor.shutdown, wait=False)
        super().__init__(target, executor)
