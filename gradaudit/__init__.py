"""gradaudit measures, layer by layer, what a shared gradient gives away.

The API is imported when it is first used, so that commands which need no torch stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradaudit._version import __version__
from gradaudit.presentation import Presentation, register

if TYPE_CHECKING:
    from gradaudit.api import audit
    from gradaudit.judging import gate, passed
    from gradaudit.models.target import Target
    from gradaudit.observer import Observer, watch
    from gradaudit.report import Report

__all__ = ["Observer", "Report", "Target", "__version__", "audit", "gate", "passed", "watch"]

_HOMES = {
    "audit": "api",
    "gate": "judging",
    "passed": "judging",
    "Report": "report",
    "Target": "models.target",
    "Observer": "observer",
    "watch": "observer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def _presentation() -> Presentation:
    return import_module("gradaudit.formats.presentation")


register(_presentation)
