"""The audits, one a file; add a file and it is a command, a table column and a schema entry."""

from typing import Any

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.parts import discover

__all__ = ["Audit", "AuditOptions", "Metric", "audits"]


def audits() -> dict[str, type[Audit[Any]]]:
    """Every audit by its command name."""
    return discover("gradaudit.audits", Audit)
