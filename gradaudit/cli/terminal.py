"""Progress on stderr: a live bar on a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from collections.abc import Iterator
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

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Show a bar once the task has lasted ``PATIENCE`` seconds."""
        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(printable(description), total=total)
        begin = threading.Timer(PATIENCE, bar.start)
        begin.daemon = True
        begin.start()
        try:
            yield lambda units: bar.advance(task, units)
        finally:
            begin.cancel()
            begin.join()
            bar.stop()


class Lines:
    """A line of text for each task that lasts, repeated while it goes on."""

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
