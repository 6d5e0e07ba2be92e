"""Importing this imports what workers need, in the process that they are forked from."""

import gc
import os
import pkgutil
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module

_NEEDED = ("gradaudit.subject", "gradaudit.runner", "scipy.stats", "sklearn.ensemble", "sympy")
"""torch takes the last one for derivatives in forward mode."""
_ROOMS = ("audits", "attacks", "families", "planning")
_POLL = 0.5
"""Seconds between two looks at whether the process that asked is still there."""


def _import_all() -> None:
    for name in _NEEDED:
        _import(name)
    for room in _ROOMS:
        package = import_module(f"gradaudit.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            _import(module.name)


def _import(name: str) -> None:
    with suppress(Exception):  # a worker says it that needs it
        import_module(name)


def _preload() -> None:
    """Import it all, and end where the process that asked does."""
    parent = os.getppid()

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _POLL, _POLL)
    gc.disable()
    _import_all()
    gc.freeze()  # so that workers do not copy it all to look for garbage
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


_preload()
