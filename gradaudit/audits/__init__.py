"""The audits, a folder or a file each; add one and it is a command, a column and a schema entry."""

from typing import Any

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.core.parts import classes_of, discover

__all__ = ["Audit", "AuditOptions", "Metric", "audits", "named"]


__getattr__ = classes_of("gradaudit.audits", Audit)


def audits() -> dict[str, type[Audit[Any]]]:
    """Every audit by its command name."""
    return discover("gradaudit.audits", Audit)


def named(name: str) -> str:
    """The command name of the audit that has this name or alias; the name itself where none has."""
    aliases = {alias: kind.name for kind in audits().values() for alias in kind.aliases}
    return aliases.get(name, name)
