"""Progress on stderr: a live bar on a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gradaudit.progress import Advance, Progress, Silent
from gradaudit.text import printable

PATIENCE = 2.0
"""Seconds that a task may take before anybody is told."""

LINE_EVERY = 15.0
"""Seconds between lines where there is no terminal."""


def watcher(quiet: bool) -> Progress:
    """The progress that suits stderr."""
    if quiet:
        return Silent()
    return LiveBars() if sys.stderr.isatty() else Lines()


class LiveBars:
    """A bar for each task that lasts, gone when the task is done."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._begin = _timer(self._bars.start)
        self._open = 0
        self._since = time.monotonic()

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Show a bar once the outermost task has lasted ``PATIENCE`` seconds."""
        if not self._open:
            self._begin = _timer(self._bars.start)
            self._begin.start()
        self._open += 1
        task = self._bars.add_task(printable(description), total=total)
        try:
            yield lambda units: self._bars.advance(task, units)
        finally:
            self._open -= 1
            self._bars.remove_task(task)
            if not self._open:
                self._begin.cancel()
                self._begin.join()
                self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        if time.monotonic() > self._since + PATIENCE:
            self._console.print(printable(line), markup=False, highlight=False)


def _timer(begin: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(PATIENCE, begin)
    timer.daemon = True
    return timer


class Lines:
    """A line of text for each task that lasts, repeated while it goes on."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Tell how far the task is every ``LINE_EVERY`` seconds, first after ``PATIENCE``."""
        done = 0
        due = time.monotonic() + PATIENCE

        def advance(units: int) -> None:
            nonlocal done, due
            done += units
            now = time.monotonic()
            if now >= due and done < total:
                due = now + LINE_EVERY
                print(f"{printable(description)}: {done} of {total}", file=sys.stderr, flush=True)

        yield advance

    def say(self, line: str) -> None:
        """Print a line, once ``PATIENCE`` seconds are over."""
        if time.monotonic() > self._since + PATIENCE:
            print(printable(line), file=sys.stderr, flush=True)
