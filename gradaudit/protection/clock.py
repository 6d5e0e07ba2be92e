"""Time for trials: what is left of the budget, less what verification takes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """When another trial may be begun, and how long it may take.

    A plan is measured on fresh records at last, fewer than those of the first measurement, so the
    time that this took is kept for it.

    Args:
        left: seconds that are left of the budget.
    """

    def __init__(self, left: Callable[[], float]) -> None:
        self._left = left
        self._opening = self._slowest = 0.0
        self._patience = -float("inf")
        self.satisfied = False
        """Whether some trial passed."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The first measurement; where it took all the time, as much again may bring a plan."""
        begun = time.monotonic()
        yield
        now = time.monotonic()
        self._opening, self._patience = now - begun, now + (now - begun)

    @contextmanager
    def trial(self) -> Iterator[float]:
        """A trial, and the seconds that it may take."""
        begun = time.monotonic()
        yield self.left
        self._slowest = max(self._slowest, time.monotonic() - begun)

    @property
    def left(self) -> float:
        """Seconds for trials; until one passes at least as many as the first measurement took."""
        left = self._left() - self._opening
        return left if self.satisfied else max(left, self._patience - time.monotonic())

    def more(self) -> bool:
        """Whether another trial may be begun: there is time for the longest so far."""
        return self.left > self._slowest
