"""The terminal: progress on standard error, and standard output whose reader may stop early.

Progress is a live bar on a terminal, and elsewhere a line from time to time.
"""

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from typing_extensions import Buffer

from gradaudit.core.text import duration, printable
from gradaudit.progress import Advance, Progress, Silent

PATIENCE = 2.0
"""Seconds that a task may take before its progress is shown."""

LINE_EVERY = 30.0
"""Seconds between lines where there is no terminal."""


def watcher(quiet: bool) -> Progress:
    """Returns the progress display that suits stderr."""
    if quiet:
        return Silent()
    return LiveBars() if sys.stderr.isatty() else Lines()


class LiveBars:
    """Progress bar of the outermost task with the time left, removed when the task ends.

    What is done within it is named beside it.
    """

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
        self._within: list[str] = []
        self._outermost: TaskID | None = None
        self._since = time.monotonic()

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Show the outermost task's bar once it has lasted ``PATIENCE`` seconds."""
        if self._outermost is not None:
            with self._named(description):
                yield lambda units: None
            return
        bar = self._outermost = self._bars.add_task(printable(description), total=total)
        self._begin = _timer(self._bars.start)
        self._begin.start()
        try:
            with self._named(description):
                yield lambda units: self._bars.advance(bar, units)
        finally:
            self._outermost = None
            self._bars.remove_task(bar)
            self._begin.cancel()
            self._begin.join()
            self._bars.stop()

    @contextmanager
    def _named(self, description: str) -> Iterator[None]:
        """Show the names of the outermost and the innermost task while within."""
        self._within.append(printable(description))
        self._rename()
        try:
            yield
        finally:
            self._within.pop()
            self._rename()

    def _rename(self) -> None:
        if self._within and self._outermost is not None:
            names = dict.fromkeys((self._within[0], self._within[-1]))
            self._bars.update(self._outermost, description=" · ".join(names))

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        if time.monotonic() > self._since + PATIENCE:
            self._console.print(printable(line), markup=False, highlight=False)


def _timer(begin: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(PATIENCE, begin)
    timer.daemon = True
    return timer


class Lines:
    """A line of text from time to time, however many tasks there are.

    It names the tasks that go on, the outermost first, with what is done of each, and about how
    long the outermost takes yet.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._due = self._since + PATIENCE
        self._open: list[_Task] = []

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """Show the task in a line every ``LINE_EVERY`` seconds, first after ``PATIENCE``."""
        task = _Task(printable(description), total, time.monotonic())
        self._open.append(task)

        def advance(units: int) -> None:
            task.done += units
            now = time.monotonic()
            if now >= self._due and task.done < task.total:
                self._due = now + LINE_EVERY
                line = "; ".join([*map(str, self._open), *self._open[0].left(now)])
                print(line, file=sys.stderr, flush=True)

        try:
            yield advance
        finally:
            self._open.remove(task)

    def say(self, line: str) -> None:
        """Print a line, once ``PATIENCE`` seconds are over."""
        if time.monotonic() > self._since + PATIENCE:
            print(printable(line), file=sys.stderr, flush=True)


@dataclass(eq=False)
class _Task:
    """A task that goes on: what it is called, its size, when it began and how much is done."""

    description: str
    total: int
    begun: float
    done: int = 0

    def __str__(self) -> str:
        """The task with what is done of it; of a single unit there is nothing to say."""
        counted = f": {self.done} of {self.total}" if self.total > 1 else ""
        return f"{self.description}{counted}"

    def left(self, now: float) -> list[str]:
        """Returns about how long the rest takes at the pace so far; empty before any is done."""
        if not 0 < self.done < self.total:
            return []
        return [f"{duration((now - self.begun) * (self.total / self.done - 1))} left"]


class Pipe(io.FileIO):
    """A stream that drops what is written to it once its reader has gone."""

    def write(self, data: Buffer) -> int:
        """Write, and drop the output where the reader has gone; a full disk still raises an error.

        Raises:
            OSError: it cannot be written for another reason.
        """
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def let_readers_go() -> None:
    """Let a command whose reader stops early end with its own exit status."""
    with suppress(OSError, ValueError, AttributeError):  # there is none, or it is no file
        old = sys.stdout
        raw = Pipe(old.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=raw.isatty(),
        )
