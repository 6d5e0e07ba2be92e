"""The audits, a folder or a file each; add one and it is a command, a column and a schema entry."""

from typing import Any

from gradaudit.audits.base import Audit, AuditCost, AuditOptions, Metric
from gradaudit.parts import classes_of, discover

__all__ = ["Audit", "AuditCost", "AuditOptions", "Metric", "audits"]


__getattr__ = classes_of("gradaudit.audits", Audit)


def audits() -> dict[str, type[Audit[Any]]]:
    """Every audit by its command name."""
    return discover("gradaudit.audits", Audit)
