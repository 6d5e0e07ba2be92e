"""The audits, a folder or a file each; add one and it is a command, a column and a schema entry."""

from typing import Any

from gradaudit.audits.base import Audit, AuditCost, AuditOptions, Metric
from gradaudit.parts import discover

__all__ = ["Audit", "AuditCost", "AuditOptions", "Metric", "audits"]


def audits() -> dict[str, type[Audit[Any]]]:
    """Every audit by its command name."""
    return discover("gradaudit.audits", Audit)
