"""Costs of protecting a layer: its weight in the model, one measure a file."""

from gradaudit.errors import UsageError
from gradaudit.parts import discover
from gradaudit.protection.costs.base import Cost
from gradaudit.specs import suggest

__all__ = ["Cost", "choose_cost", "costs"]


def costs() -> dict[str, type[Cost]]:
    """Every measure by its name."""
    return discover(__name__, Cost)


def choose_cost(name: str) -> Cost:
    """The measure of that name.

    Raises:
        UsageError: there is none.
    """
    known = costs()
    if name not in known:
        raise UsageError(
            f"--cost {name}: no such cost{suggest(name, known)}; there are: {', '.join(known)}"
        )
    return known[name]()
