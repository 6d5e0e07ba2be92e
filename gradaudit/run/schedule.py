"""Schedules a scan's audits and their sizes so that it ends within its time budget.

What an audit takes is estimated before it was run, and known better once it was, at any size; what
the others took of their estimates tells of those that were not run. While the estimates of all
audits fit into the time, each is made as exactly as was asked. Where they do not, each gets its
share: the largest size that fits into it, the least if none does. What time is left then goes into
larger sizes, in the same order.

The constants and the order of turns were judged by playing schedules of 60 and 300 seconds, 200 for
each of AlexNet, ResNet-18, ViT and GPT-2, with what audits were recorded to take of their
estimates: 62 % of the audits have numbers, by weight, 79 % of the questions an answer, and 23 % of
the time goes into what is cut short. By priority alone it is 63, 75 and 23 %. Before there were
samples of layers, 58 % had numbers; without caution 48, and 46 % of the time was lost; with what
may fit in its turn before what surely does, 56 and 28 %. That of what may fit layers come before
the whole model changes no share by more than 0.3 points (1,600 scans), nor more caution or less
trust in what others took by more than 5.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from gradaudit.audits.base import Question
from gradaudit.audits.sizes import Size

CAUTION = 2.0
"""Factor by which the time of an audit that has not run yet may exceed its estimate."""
KNOWN = 1.2
"""Factor by which an audit may exceed the estimate from a run at another size."""
USUAL = 10.0
"""Largest factor by which other audits' times correct the estimate of one that has not run."""
LEAST = 5.0
"""Seconds that an audit without an estimated cost gets even where no time is left."""
MOMENT = 0.5
"""Seconds that any audit may take in addition to its estimate."""
SMALL = 0.25
"""Largest share of a size's time at which time is kept for the smallest size: with it 61.9 % of
28,200 single audits that were played so have numbers, without it 60.7 %."""


@dataclass(frozen=True)
class ScheduledRun:
    """The audit to run next, its size and its time limit.

    Attributes:
        place: number of the audit.
        size: how exactly.
        seconds: seconds that it may take; None without a limit.
    """

    place: int
    size: Size
    seconds: float | None


def in_turn(
    ladders: Sequence[Sequence[Size]], seconds: Callable[[Size], float]
) -> list[Sequence[Size]]:
    """Returns the audits in the order of their turns, those that answer most for their time first.

    For every question, and for attacks and what stands for them apart, the cheapest audit comes
    before all others; within both it goes by priority.
    """
    by_priority = sorted(ladders, key=lambda sizes: sizes[0].audit.priority)
    cheapest: dict[tuple[Question, bool], Sequence[Size]] = {}
    for sizes in by_priority:
        audit, cost = sizes[0].audit, seconds(sizes[0])
        for question in {metric.question for metric in audit.metrics if metric.question and cost}:
            known = cheapest.setdefault((question, audit.proxy), sizes)
            if cost < seconds(known[0]):
                cheapest[question, audit.proxy] = sizes
    first = {sizes[0].audit.name for sizes in cheapest.values()}
    return sorted(by_priority, key=lambda sizes: sizes[0].audit.name not in first)


class _AuditState:
    """State of an audit during the scan: its estimates, its pace, and the sizes done and left."""

    def __init__(self, sizes: Sequence[Size], estimate: Callable[[Size], float]) -> None:
        self.sizes = sizes
        self.estimates = [estimate(size) for size in sizes]
        self.pace: float | None = None
        """Seconds that it took, over the estimated seconds."""
        self.telling = False
        """Whether its pace tells something of others: it was neither cut short nor trivial."""
        self.reached = -1
        self.open = len(sizes) - 1
        """The largest size that may still fit."""
        self.cut = self.empty = False
        """Whether it was cut short once, or measured nothing, so that others come first."""

    @property
    def untried(self) -> bool:
        """Whether the audit has no numbers yet, and a size that may still fit."""
        return self.reached < 0 <= self.open

    @property
    def whole(self) -> bool:
        """Whether the audit's numbers are all of the whole model."""
        return not any(metric.per_layer for metric in self.sizes[0].audit.metrics)

    @property
    def idle(self) -> bool:
        """Whether the audit has nothing to do."""
        return not self.estimates[-1]


class Schedule:
    """Chooses a scan's next audit and its size.

    Args:
        ladders: the sizes of each audit, the audits that answer most for their time first.
        estimate: seconds that a size takes; 0 where there is nothing to do.
        left: seconds that are left; None without a limit.
    """

    def __init__(
        self,
        ladders: Sequence[Sequence[Size]],
        estimate: Callable[[Size], float],
        left: Callable[[], float | None],
    ) -> None:
        self._states = [_AuditState(sizes, estimate) for sizes in ladders]
        self._left = left

    def next(self) -> ScheduledRun | None:
        """Returns the most useful audit to run next; None where none fits."""
        left = self._left()
        waiting = [state for state in self._states if state.untried]
        if left is None:
            return self._turn(waiting[0], waiting[0].open, None) if waiting else None
        for state in waiting:
            if state.idle and not state.cut:
                spare = self._least(
                    [other for other in waiting if other is not state],
                    left,
                )
                return self._turn(state, state.open, max(left - spare, LEAST))
        if left <= 0:
            return None
        waiting.sort(key=lambda state: state.cut)
        return self._first(waiting, left) or self._larger(left) or self._cheapest(waiting, left)

    def together(self, workers: int, starting: float = 0.0) -> list[ScheduledRun]:
        """Returns audits for workers, the longest first; none is longer than a worker's share.

        None where there is no time for each as exactly as was asked, nor for workers to start
        (``starting`` seconds), or nothing to share out.
        """
        left = self._left()
        waiting = [state for state in self._states if state.untried and not state.idle]
        share = sum(state.estimates[state.open] for state in waiting) / workers
        alone = [state for state in waiting if state.estimates[state.open] <= share]
        alone.sort(key=lambda state: -state.estimates[state.open])
        needed = {state: self._seconds(state, state.open, CAUTION) for state in waiting}
        if (
            workers < 2
            or len(alone) < 2
            or (left is not None and sum(needed.values()) + CAUTION * starting > left)
        ):
            return []
        spare = sum(needed.values()) - sum(needed[state] for state in alone)
        seconds = None if left is None else left - spare
        return [self._turn(state, state.open, seconds) for state in alone]

    def done(
        self, turn: ScheduledRun, seconds: float, *, whole: bool, measured: bool = True
    ) -> None:
        """Record an audit's time, and whether it finished or was cut short.

        One that measured nothing, as the audit does not apply, tells nothing of others.
        """
        state = self._states[turn.place]
        index = state.sizes.index(turn.size)
        if estimate := state.estimates[index]:
            state.pace = max(seconds - MOMENT, min(seconds, estimate)) / estimate
            state.telling = whole and measured and seconds > MOMENT
        state.empty = whole and not measured
        if whole:
            state.reached = index
        else:
            state.open, state.cut = index - 1, True

    def _turn(self, state: _AuditState, index: int, seconds: float | None) -> ScheduledRun:
        return ScheduledRun(self._states.index(state), state.sizes[index], seconds)

    def _seconds(self, state: _AuditState, index: int, caution: float = 1.0) -> float:
        """Estimates the seconds of a size, with caution for an audit that has not run yet."""
        if state.idle:
            return 0.0
        if state.pace is not None:
            return MOMENT + KNOWN * state.pace * state.estimates[index]
        return MOMENT + caution * self._usual * state.estimates[index]

    @property
    def _usual(self) -> float:
        """Median ratio of the other audits' times to their estimates, limited to ``USUAL``."""
        paces = [c.pace for c in self._states if c.pace is not None and c.telling]
        return min(max(statistics.median(paces), 1 / USUAL), USUAL) if paces else 1.0

    def _first(self, waiting: Sequence[_AuditState], left: float) -> ScheduledRun | None:
        """Returns the first audit without numbers, at the size that its share of the time allows.

        What fits with caution comes before what fits without; of the latter, and while no audit
        has numbers, one that tells layers apart comes before all that do not.
        """
        enough = sum(self._seconds(state, state.open) for state in waiting) <= left
        fitting = []
        for caution, (number, state) in product((CAUTION, 1.0), enumerate(waiting)):
            index = state.open if enough else self._sharing(state, left / (len(waiting) - number))
            if self._seconds(state, index, caution) <= left:
                late = state.whole and (caution == 1.0 or not self._has_numbers)
                fitting.append((late, number, state, index))
        if not fitting:
            return None
        _, number, state, index = min(fitting, key=lambda each: each[0])
        spare = left - self._seconds(state, index, CAUTION)
        seconds = left - self._least(waiting[number + 1 :], spare)
        return self._turn(state, index, self._leaving_a_retreat(state, index, seconds))

    def _sharing(self, state: _AuditState, share: float) -> int:
        """Returns the largest size that fits into a share of the time, the least if none does."""
        sizes = range(state.open + 1)
        return max((i for i in sizes if self._seconds(state, i, CAUTION) <= share), default=0)

    @property
    def _has_numbers(self) -> bool:
        """Whether an audit that has something to do was done."""
        return any(state.reached >= 0 and not state.idle for state in self._states)

    def _leaving_a_retreat(self, state: _AuditState, index: int, seconds: float) -> float:
        """Limits a first run so that time for the smallest size is left if the run is cut short.

        Where it is cut short there is time for the least size, if that is a small part of it, at
        the pace that the turn then had at best. It has the time that is expected of it.
        """
        part = state.estimates[0] / (state.estimates[index] or 1.0)
        if state.idle or not 0 < part <= SMALL:
            return seconds
        expected = self._seconds(state, index)
        return min(seconds, max(expected, (seconds - MOMENT) / (1 + CAUTION * KNOWN * part)))

    def _least(self, waiting: Iterable[_AuditState], left: float) -> float:
        """Returns the seconds of the least sizes that fit into the time left, in order."""
        spared = 0.0
        for state in waiting:
            needed = self._seconds(state, 0, CAUTION)
            spared += needed if spared + needed <= left else 0.0
        return spared

    def _larger(self, left: float) -> ScheduledRun | None:
        """Of the audits for which a larger size fits, returns the one done most roughly.

        One that has numbers comes first: more records seldom help where it does not apply.
        """
        for state in sorted(self._states, key=lambda each: (each.empty, each.reached)):
            larger = state.reached + 1
            if 0 < larger <= state.open and self._seconds(state, larger) <= left:
                return self._turn(state, larger, left)
        return None

    def _cheapest(self, waiting: Sequence[_AuditState], left: float) -> ScheduledRun | None:
        """Returns the quickest audit where none fits and no audit has numbers yet."""
        if self._has_numbers:
            return None
        fresh = [state for state in waiting if not state.cut]
        cheapest = min(fresh, key=lambda state: state.estimates[0], default=None)
        return None if cheapest is None else self._turn(cheapest, 0, left)
