"""Progress of long work, independent of who displays it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """Starts tasks; the yielded function advances a task by so many units."""

    def task(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Start a task of ``total`` units; tasks may be part of another one."""
        ...

    def say(self, line: str) -> None:
        """Show a result during work that takes long."""
        ...


class Silent:
    """Progress that is not displayed."""

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Start a task whose progress is not displayed."""
        yield lambda units: None

    def say(self, line: str) -> None:
        """Show nothing."""
