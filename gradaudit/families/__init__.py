"""Predictive families, found by discovery."""

from collections.abc import Iterable

from pydantic import JsonValue

from gradaudit.core.parts import discover
from gradaudit.core.specs import pick
from gradaudit.families.base import Family, Fitted, log_loss, under_prior

__all__ = ["Family", "Fitted", "families", "family", "log_loss", "sizes", "under_prior"]


def families() -> dict[str, type[Family]]:
    """Returns the families by name."""
    return discover("gradaudit.families", Family)


def family(name: str) -> Family:
    """Returns the family of this name.

    Raises:
        UsageError: there is none.
    """
    found: dict[str, type[Family]] = discover("gradaudit.families", Family, name)
    known = found if name in found else families()
    return pick(name, known, name, "predictive family")()


def sizes(names: Iterable[str]) -> dict[str, JsonValue]:
    """Returns the size of each family by name, for the detail ``LEARNERS`` of a row.

    Raises:
        UsageError: there is no family of a name.
    """
    return {name: family(name).size for name in names}
