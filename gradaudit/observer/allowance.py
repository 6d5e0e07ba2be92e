"""A share of the time that training takes, and what each piece of work has taken so far."""

import math
import time
from collections.abc import Callable, Hashable

from gradaudit.errors import UsageError

_FIRST = 5e-4
"""Seconds that a piece is taken to need before it ran, and"""
_EACH = 4e-9
"""seconds for each element that it reads."""
_SAFETY = 1.2


class Allowance:
    """Seconds that may be spent: a share of those that were worked.

    What is not spent is kept for later; what was overspent is owed.

    Attributes:
        share: of the time that training takes.
        left: seconds.
        worked: seconds of training in all.
        spent: seconds in all.
    """

    def __init__(self, share: float) -> None:
        self.share, self.left = share, 0.0
        self.worked = self.spent = 0.0

    def earn(self, seconds: float) -> None:
        """Add seconds of training work.

        Raises:
            UsageError: that is no time.
        """
        if not 0 <= seconds < math.inf:
            raise UsageError(f"seconds: {seconds:g} is not how long training took")
        self.worked += seconds
        self.left += self.share * seconds

    def spend(self, seconds: float) -> None:
        """Subtract seconds that observing took."""
        self.spent += seconds
        self.left -= seconds


class PieceTimes:
    """How long pieces of work take, learned from their last time, and a fifth more for safety."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def expected(self, key: Hashable, elements: int) -> float:
        """Seconds, about."""
        return _SAFETY * self._seconds.get(key, _FIRST + _EACH * elements)

    def took(self, key: Hashable, seconds: float) -> None:
        """Remember how long it took; of a shorter time than before half is believed."""
        known = self._seconds.get(key, seconds)
        self._seconds[key] = max(seconds, (known + seconds) / 2)


def stopwatch() -> Callable[[], float]:
    """Seconds since now."""
    begun = time.perf_counter()
    return lambda: time.perf_counter() - begun
