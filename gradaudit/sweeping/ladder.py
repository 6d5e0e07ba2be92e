"""The ladder of realism: from the attacker's best case to a federation, one change a rung."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gradaudit.deployment import RUNGS

NAME = "rung"
"""Key of the rung in a row's variant."""
FIRST = "diagnostic"
R = TypeVar("R")


@dataclass(frozen=True)
class Rung(Generic[R]):
    """A rung of a sweep: its settings, and the change from the rung below."""

    title: str
    run: R


def ladder(values: dict[str, Any], of: Callable[[tuple[str, ...]], R]) -> list[Rung[R]]:
    """Returns the rungs on which something changes.

    Args:
        values: what the federation says, by name of settings and options.
        of: what is run where the federation decides these settings alone; equal where nothing
            changes.
    """
    known: tuple[str, ...] = ()
    rungs = [Rung(FIRST, of(known))]
    for names in RUNGS:
        known += names
        run = of(known)
        if run != rungs[-1].run:
            rungs.append(Rung("+ " + ", ".join(_words(values, names)), run))
    return rungs


def _words(values: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Formats these settings as ``name value``."""
    for name in names:
        if values.get(name) not in (None, (), 0):
            value = values[name]
            said = " then ".join(value) if isinstance(value, tuple) else value
            yield f"{name.replace('_', '-')} {said}"
