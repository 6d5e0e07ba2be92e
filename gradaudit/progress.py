"""Progress reports of long work, independent of who shows them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """Opens one task at a time; the yielded function advances it by so many units."""

    def task(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Start a task of ``total`` units; tasks may be part of another one."""
        ...

    def say(self, line: str) -> None:
        """Tell what came out of some work, where the whole lasts."""
        ...


class Silent:
    """Progress that nobody watches."""

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Start a task whose advances go nowhere."""
        yield lambda units: None

    def say(self, line: str) -> None:
        """Say nothing."""
