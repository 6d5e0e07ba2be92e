"""Failed trials, and the cheapest protection that they do not rule out.

Protection is taken to be monotone: what fails fails with less of it too. A trial that fails the
rules of the whole model rules out every protection that covers no more. One that fails the rules of
a layer says that this layer needs more; where a metric is relative, as a layer's share in a sum,
which grows when others are hidden, only wherever the others have at least as much.

The cheapest protection that no lesson rules out hits every one of them, as in an implicit hitting
set problem (Chandrasekaran, Karp, Moreno-Centeno and Vempala, "Algorithms for implicit hitting set
problems", 2011, section 2); it is a small integer program.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from gradaudit.protection.guards import HIDE, KINDS, OPEN, Guard, Kind, Protection

Price = Callable[[str, Guard], float]
"""Cost of a guard of a layer; never negative, unless the sum is bounded."""
_TIE = 1e-9
"""Small cost of any guard, so that of equal plans the one that changes fewest layers wins."""


@dataclass(frozen=True)
class ProtectionVerdict:
    """The rules' verdict on a protection.

    Attributes:
        layers: those whose own rows are beyond a limit.
        relative: those of which rows are that depend on the other layers.
        whole: whether a row of the model is.
        broken: why it cannot be judged; empty where it can.
        excess: how far the worst row is beyond its limit, over the limit's size; at most 0 where
            all are within, None where nothing was judged.
        failed: rows that are beyond a limit, in words.
    """

    layers: frozenset[str] = frozenset()
    relative: frozenset[str] = frozenset()
    whole: bool = False
    broken: str = ""
    excess: float | None = None
    failed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is beyond a limit."""
        return not (self.layers or self.relative or self.whole or self.broken)


@dataclass(frozen=True)
class Lesson:
    """A trial that did not pass."""

    protection: Protection
    verdict: ProtectionVerdict

    def forbids(self, other: Protection) -> bool:
        """Whether this failure rules out another protection too."""
        mine = self.protection
        if self.verdict.whole and mine.covers(other):
            return True
        if self.verdict.broken and other == mine:
            return True
        return any(
            mine.covers(theirs)
            and (layer in self.verdict.layers or self._no_less_elsewhere(other, layer))
            for (layer, mine), theirs in zip(self.protection, other.guards, strict=True)
            if layer in self.verdict.layers | self.verdict.relative
        )

    def _no_less_elsewhere(self, other: Protection, failed: str) -> bool:
        """Whether every layer but the one that failed has at least what it had."""
        return other.covers(self.protection.with_guard(failed, OPEN))


class Choices:
    """Every guard of every layer as a variable that is 0 or 1.

    Args:
        layers: in order.
        guards: that any layer may have.
        price: of a guard of a layer.
    """

    def __init__(self, layers: Sequence[str], guards: Sequence[Guard], price: Price) -> None:
        self.layers, self.guards, self._price = tuple(layers), tuple(guards), price
        self.prices = np.array([[price(layer, g) for g in self.guards] for layer in self.layers])

    def cost(self, protection: Protection) -> float:
        """Returns the cost of a protection."""
        return sum(self._price(layer, guard) for layer, guard in protection)

    def cheapest(
        self, lessons: Sequence[Lesson], kinds: Collection[Kind] = KINDS
    ) -> Protection | None:
        """Returns the cheapest protection that shares a layer and may pass; None without any.

        ``kinds`` are those of its guards.
        """
        rows = [self._shares_something(), *(r for lesson in lessons for r in self._rows(lesson))]
        touched = np.array([guard.kind != "open" for guard in self.guards]) * _TIE
        shape = self.prices.shape
        may = np.tile([guard.kind in kinds for guard in self.guards], shape[0])
        solution = milp(
            (self.prices + touched).ravel(),
            integrality=np.ones(self.prices.size, dtype=np.int64),
            bounds=Bounds(0, may.astype(float)),
            constraints=[
                LinearConstraint(self._one_each(), 1, 1),
                LinearConstraint(np.array([r for r, _ in rows]), [least for _, least in rows]),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if solution.x is None:
            return None
        chosen = np.asarray(solution.x).reshape(shape).argmax(axis=1)
        return Protection(self.layers, tuple(self.guards[place] for place in chosen))

    def _one_each(self) -> np.ndarray:
        return np.kron(np.eye(len(self.layers)), np.ones(len(self.guards)))

    def _shares_something(self) -> tuple[np.ndarray, float]:
        row = np.zeros(self.prices.shape)
        row[:, [guard != HIDE for guard in self.guards]] = 1
        return row.ravel(), 1.0

    def _rows(self, lesson: Lesson) -> Iterator[tuple[np.ndarray, float]]:
        """Coefficients of the variables, and what their sum is at least."""
        mine = lesson.protection
        beyond = np.array([[not guard.covers(g) for g in self.guards] for guard in mine.guards])
        below = np.array([[not g.covers(guard) for g in self.guards] for guard in mine.guards])
        if lesson.verdict.whole:
            yield beyond.astype(float).ravel(), 1.0
        if lesson.verdict.broken:
            same = np.array([[g == guard for g in self.guards] for guard in mine.guards])
            yield (~same).astype(float).ravel(), 1.0
        for place, layer in enumerate(self.layers):
            if layer in lesson.verdict.layers | lesson.verdict.relative:
                relative = layer not in lesson.verdict.layers
                row = below.astype(float) * relative
                row[place] = beyond[place]
                yield row.ravel(), 1.0
