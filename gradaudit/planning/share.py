"""Shows the progress of one audit within a scan's, in the seconds that it should take."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradaudit.progress import Advance, Progress


class Share:
    """Progress of an audit that advances the scan's progress by its expected seconds.

    How many tasks an audit has nobody knows beforehand, so each takes half of what is left.

    Args:
        outer: who is told of tasks and lines.
        advance: moves the outer task, by whole seconds.
        seconds: expected of the audit.
    """

    def __init__(self, outer: Progress, advance: Advance, seconds: float) -> None:
        self._outer, self._advance = outer, advance
        self._seconds = self._left = seconds
        self._done, self._told = 0.0, 0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Start a task of the audit."""
        share = self._left / 2
        self._left -= share
        with self._outer.task(description, total) as inner:

            def advance(units: int) -> None:
                inner(units)
                self._move(share * units / max(1, total))

            yield advance

    def say(self, line: str) -> None:
        """Show a result during the audit."""
        self._outer.say(line)

    def finish(self) -> None:
        """Advance by the expected seconds that no task took."""
        self._tell(round(self._seconds))

    def _move(self, seconds: float) -> None:
        self._done += seconds
        self._tell(int(self._done))

    def _tell(self, whole: int) -> None:
        if whole > self._told:
            self._advance(whole - self._told)
            self._told = whole
