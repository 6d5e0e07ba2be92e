"""gradaudit measures, layer by layer, what a shared gradient gives away.

The API is imported when it is first used, so that commands which need no torch stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradaudit._version import __version__
from gradaudit.errors import (
    AuditError,
    CheckpointError,
    DataError,
    GradauditError,
    NotApplicable,
    PartWarning,
    UsageError,
)
from gradaudit.presentation import Presentation, register

if TYPE_CHECKING:
    from gradaudit.api import AuditTarget as Target
    from gradaudit.api import audit
    from gradaudit.judging import gate, passed
    from gradaudit.observer import Observer, watch
    from gradaudit.report import Report

__all__ = [
    "AuditError",
    "CheckpointError",
    "DataError",
    "GradauditError",
    "NotApplicable",
    "Observer",
    "PartWarning",
    "Report",
    "Target",
    "UsageError",
    "__version__",
    "audit",
    "gate",
    "passed",
    "watch",
]

_HOMES = {
    "audit": "api.audit",
    "gate": "judging.gate",
    "passed": "judging.passed",
    "Report": "report.Report",
    "Target": "api.AuditTarget",
    "Observer": "observer.Observer",
    "watch": "observer.watch",
    "attacks": "attacks",
    "audits": "audits",
    "defenses": "defenses",
}
"""Where each name is, and the packages that hold parts by the names of their classes."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(".")
    home = import_module(f"{__name__}.{module}")
    return getattr(home, attribute) if attribute else home


def _presentation() -> Presentation:
    return import_module("gradaudit.formats.report_display")


register(_presentation)
