"""Sends tasks to workers, and does them there: what crosses from one process to another."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pickle import PicklingError
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits

from gradaudit._version import __version__
from gradaudit.core.user_code import with_operators
from gradaudit.errors import UsageError

_DECIDING = ("torch", "numpy", "scipy", "scikit-learn")
"""Libraries whose versions change the numbers."""
_PROCESS = "process"


def shipped(value: object) -> bytes:
    """Returns a value in a form that workers can load, wherever its classes are defined.

    Raises:
        PicklingError: it cannot leave this process.
    """
    ship_by_value()
    return pickled(value)


def received(value: bytes) -> Any:
    """Loads a value that this command sent to the worker, or the worker to this command."""
    return with_operators(lambda: cloudpickle.loads(value))


def pickled(task: object) -> bytes:
    """Returns the task as bytes for workers; a PicklingError where it cannot be sent."""
    try:
        return cloudpickle.dumps(task)  # type: ignore[no-any-return]
    except TypeError as error:
        raise PicklingError(str(error)) from error


def opened(answer: bytes) -> tuple[Any, int]:
    """Returns a task's result and units, or raises its exception."""
    value, units, error = received(answer)
    if error is not None:
        raise error
    return value, units


def perform(number: int, task: bytes, asked: dict[str, str]) -> tuple[int, bytes]:
    """Does a task in a worker; returns its number, and its result or exception and its units."""
    reported: list[int] = []
    try:
        _expect_same(asked)
        work = received(task)
        _one_thread(asked)
        value, error = work(reported.append), None
    except Exception as raised:
        raised.add_note(traceback.format_exc())
        value, error = None, raised
    try:
        return number, cloudpickle.dumps((value, sum(reported), error))
    except Exception as unfit:
        return number, cloudpickle.dumps((None, 0, PicklingError(str(unfit))))


@cache
def versions() -> dict[str, str]:
    """Returns the versions that change the numbers, and the id of the asking process."""
    found = {"gradaudit": __version__, "Python": platform.python_version()}
    for name in _DECIDING:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found | {_PROCESS: f"{platform.node()}:{os.getpid()}"}


def _expect_same(asked: dict[str, str]) -> None:
    """Raise an error where the worker's versions differ from those of the asking process.

    Raises:
        UsageError: the numbers would be others.
    """
    for name, here in versions().items():
        if name != _PROCESS and asked[name] != here:
            raise UsageError(
                f"--executor: the worker on {platform.node()} has {name} {here}, and this machine "
                f"has {asked[name]}; install the same there, as numbers depend on it"
            )


def _one_thread(asked: dict[str, str]) -> None:
    """Set one thread, unless the worker is a thread of the asking process."""
    if asked[_PROCESS] == versions()[_PROCESS]:
        return
    threadpool_limits(1)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def ship_by_value() -> None:
    """Pickle modules by value that another process could not import, such as a user's file."""
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    names = {module.partition(".")[0] for module in tuple(sys.modules)}
    for name in names - {"__main__", "__mp_main__"}:
        module = sys.modules.get(name)
        ours = isinstance(module, ModuleType) and (
            getattr(module, "__file__", None) or hasattr(module, "__path__")
        )
        if ours and not any(find and find(name, None) for find in finders):
            cloudpickle.register_pickle_by_value(module)
