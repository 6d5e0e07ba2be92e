"""Which audit comes next, and how exactly, so that a scan is done when its time is.

What an audit takes is estimated before it was run, and known better once it was, at any size. While
the estimates of all audits fit into the time, each is made as exactly as was asked. Where they do
not, each gets its share: the largest size that fits into it, the least if none does. What time is
left then goes into larger sizes, in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradaudit.audits.sizes import Size

CAUTION = 2.0
"""What an estimate may be wrong by: one that was not tried out, in seconds over seconds."""
KNOWN = 1.2
"""What one may be wrong by of an audit that was run at another size."""
LEAST = 5.0
"""Seconds that an audit has of which nothing is expected, even where none are left."""
MOMENT = 0.5
"""Seconds that any audit may take."""


@dataclass(frozen=True)
class Turn:
    """What to run next.

    Attributes:
        place: number of the audit.
        size: how exactly.
        seconds: what it may take; None without a limit.
    """

    place: int
    size: Size
    seconds: float | None


class _Course:
    """What is known of an audit while the scan goes on."""

    def __init__(self, sizes: Sequence[Size], estimate: Callable[[Size], float]) -> None:
        self.sizes = sizes
        self.estimates = [estimate(size) for size in sizes]
        self.pace: float | None = None
        self.reached = -1
        self.open = len(sizes) - 1
        """The largest size that may still fit."""
        self.cut = False
        """Whether it was cut short once, so that others come first."""

    def seconds(self, index: int) -> float:
        """About what a size takes, with caution."""
        if not self.estimates[-1]:
            return 0.0
        if self.pace is None:
            return MOMENT + CAUTION * self.estimates[index]
        return MOMENT + KNOWN * self.pace * self.estimates[index]

    def largest(self, share: float) -> int:
        """The largest size that takes no more than its share; the least if none does."""
        fitting = [i for i in range(self.open + 1) if self.seconds(i) <= share]
        return max(fitting, default=0)

    @property
    def untried(self) -> bool:
        """Whether it has no numbers, and may get some."""
        return self.reached < 0 <= self.open


class Schedule:
    """The turns of a scan.

    Args:
        ladders: the sizes of each audit, the audits that tell most for their time first.
        estimate: seconds that a size takes; 0 where there is nothing to do.
        left: seconds that are left; None without a limit.
    """

    def __init__(
        self,
        ladders: Sequence[Sequence[Size]],
        estimate: Callable[[Size], float],
        left: Callable[[], float | None],
    ) -> None:
        self._courses = [_Course(sizes, estimate) for sizes in ladders]
        self._left = left

    def next(self) -> Turn | None:
        """The turn that serves most; None where nothing more fits."""
        left = self._left()
        if left is None:
            return self._unlimited()
        return self._first(left) or self._larger(left)

    def done(self, turn: Turn, seconds: float, *, whole: bool) -> None:
        """Learn from a turn that took so long, and was cut short unless it is whole."""
        course = self._courses[turn.place]
        index = course.sizes.index(turn.size)
        if estimate := course.estimates[index]:
            course.pace = max(seconds - MOMENT, min(seconds, estimate)) / estimate
        if whole:
            course.reached = index
        else:
            course.open, course.cut = index - 1, True

    def _unlimited(self) -> Turn | None:
        for place, course in enumerate(self._courses):
            if course.untried:
                return Turn(place, course.sizes[-1], None)
        return None

    def _first(self, left: float) -> Turn | None:
        """The first audit that has no numbers yet, at the size that its share allows."""
        untried = [(place, c) for place, c in enumerate(self._courses) if c.untried]
        waiting = sorted(untried, key=lambda each: each[1].cut)
        for place, course in waiting:
            if not (course.estimates[-1] or course.cut):
                others = [other for _, other in waiting if other is not course]
                return Turn(place, course.sizes[-1], max(left - _spared(others, left), LEAST))
        enough = sum(course.seconds(course.open) for _, course in waiting) <= left
        for number, (place, course) in enumerate(waiting):
            share = left if enough else left / (len(waiting) - number)
            index = course.largest(share)
            if course.estimates[index] <= left:
                others = [other for _, other in waiting[number + 1 :]]
                spare = _spared(others, left - course.seconds(index))
                return Turn(place, course.sizes[index], left - spare)
            course.open = -1
        return None

    def _larger(self, left: float) -> Turn | None:
        """The first of the roughest audits of which a larger size fits."""
        grown = [
            (course.reached, place)
            for place, course in enumerate(self._courses)
            if 0 <= course.reached < course.open
        ]
        for reached, place in sorted(grown):
            course = self._courses[place]
            if course.seconds(reached + 1) <= left:
                return Turn(place, course.sizes[reached + 1], left)
        return None


def _spared(courses: Sequence[_Course], left: float) -> float:
    """Seconds for the least sizes of those that fit into what is left, the first ones first."""
    spared = 0.0
    for course in courses:
        if spared + course.seconds(0) <= left:
            spared += course.seconds(0)
    return spared
