"""Attacks that reconstruct private records from a shared update.

``from gradaudit.attacks import InvertingGradients``, and each other by the name of its class; they
are imported when they are first used.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.reconstruction"), name)
