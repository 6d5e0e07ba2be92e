"""Costs of protecting a layer: its weight in the model, one measure a file."""

from gradaudit.core.parts import discover
from gradaudit.core.specs import pick
from gradaudit.protection.costs.base import Cost

__all__ = ["Cost", "choose_cost", "costs"]


def costs() -> dict[str, type[Cost]]:
    """Every measure by its name."""
    return discover(__name__, Cost)


def choose_cost(name: str) -> Cost:
    """The measure of that name.

    Raises:
        UsageError: there is none.
    """
    return pick(name, costs(), f"--cost {name}", "cost")()
