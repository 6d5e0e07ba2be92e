"""Search for layers to blur so that rules on floors hold, or to hide instead."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np

from gradaudit.protection.floor_rules import FloorBounds
from gradaudit.protection.guards import HIDE, Guard, Protection
from gradaudit.protection.levels import LEAST, MOST, Levels

_DIGITS = 3
_CHEAPER = 1e-6
_DROWNED = 3.45
"""The x from which on 99.9 % of an update are lost: it is hidden instead."""


@dataclass(frozen=True)
class _Blurred:
    """Layers with noise, and what it costs to hide the others."""

    x: Mapping[str, float]
    cost: float


class Blurring:
    """The search for a cheapest noise that keeps bounds.

    All layers that may be shared are, at first; then one is hidden, shared again, or swapped with
    another as long as that is cheaper, each time with the best noise for what is left.

    Args:
        bounds: the rules on floors.
        weights: what hiding each layer costs.
        sizes: root mean square of each layer's elements.
        more: whether there is time to look for something cheaper.
    """

    def __init__(
        self,
        bounds: FloorBounds,
        weights: Mapping[str, float],
        sizes: Mapping[str, float],
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        self._bounds, self._weights, self._more = bounds, weights, more
        self._sizes = {name: math.log(size) if size else 0.0 for name, size in sizes.items()}
        self._reserve = 0.0

    def learn(self, excess: float) -> None:
        """Keep more distance from the limits: what was planned was beyond them on other records.

        Args:
            excess: how far beyond, over the limit's size.
        """
        self._reserve += max(excess, 0.0)

    def completed(self, protection: Protection) -> Protection | None:
        """The cheapest found that protects no layer less and keeps the bounds.

        None where none that shares a layer does.
        """
        about = set(protection.shared) & self._bounds.layers
        if not about:
            return protection
        least = {
            name: self._x(name, guard)
            for name, guard in protection
            if name in about - self._bounds.hopeless
        }
        rest = protection.hiding(about)
        blurred = self._best(least, may_be_empty=bool(rest.shared))
        if blurred is None:
            return None
        for name, x in blurred.x.items():
            if x < _DROWNED:
                rest = rest.with_guard(name, self._guard(name, x))
        return rest if rest.shared else None

    def uniform(self, layers: tuple[str, ...]) -> Guard | None:
        """The least noise that is enough, the same for all layers; None where there is none."""
        about = {name: -math.inf for name in layers if name in self._bounds.layers}
        if not about or about.keys() & self._bounds.hopeless:
            return None
        levels = self._levels(about)
        x = levels.lifted(-levels.sizes)
        return None if x is None else self._guard(levels.layers[0], float(x[0]))

    def holds(self, protection: Protection) -> bool:
        """Whether a protection keeps the bounds."""
        about = [(n, guard) for n, guard in protection if n in self._bounds.layers]
        shared = {name: guard for name, guard in about if guard != HIDE}
        if any(guard.kind != "noise" for guard in shared.values()):
            return False
        x = {name: self._x(name, guard) for name, guard in shared.items()}
        levels = self._levels(x)
        return not self._bounds.hopeless & x.keys() and levels.kept(levels.least)

    def _best(self, least: Mapping[str, float], *, may_be_empty: bool) -> _Blurred | None:
        """The cheapest set that single steps from all layers shared lead to."""
        best = self._solved(least, least.keys(), None)
        while better := self._better(least, best, may_be_empty=may_be_empty):
            best = better
        return best

    def _better(
        self, least: Mapping[str, float], found: _Blurred | None, *, may_be_empty: bool
    ) -> _Blurred | None:
        """The first that is cheaper, with one layer more or less hidden, or two swapped."""
        shared = set(found.x) if found else set(least)
        for other in _neighbours(shared, set(least)):
            if not (other or may_be_empty):
                continue
            if not self._more():
                return None
            solved = self._solved(least, other, found)
            if solved and (found is None or solved.cost < found.cost - _CHEAPER):
                return solved
        return None

    def _solved(
        self, least: Mapping[str, float], shared: Collection[str], warm: _Blurred | None
    ) -> _Blurred | None:
        """The best noise on these layers, with the others of ``least`` hidden."""
        hidden = sum(self._weights[name] for name in least.keys() - set(shared))
        levels_least = {name: x for name, x in least.items() if name in shared}
        if not levels_least:
            return _Blurred({}, hidden)
        levels = self._levels(levels_least).boxed()
        if levels is None:
            return None
        starts = [np.array([warm.x.get(name, MOST) for name in levels_least])] if warm else []
        x = levels.cheapest(starts)
        if x is None:
            return None
        return _Blurred(dict(zip(levels_least, x.tolist(), strict=True)), hidden + levels.cost(x))

    def _levels(self, least: Mapping[str, float]) -> Levels:
        return Levels.of(self._bounds, least, self._weights, self._sizes, self._reserve)

    def _x(self, name: str, guard: Guard) -> float:
        """The x of the noise that a layer has already."""
        return math.log(guard.amount) - self._sizes[name] if guard.kind == "noise" else LEAST

    def _guard(self, name: str, x: float) -> Guard:
        """Noise of three digits, rounded up."""
        exact = Decimal(math.exp(x + self._sizes[name]))
        return Guard("noise", float(Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(exact)))


def _neighbours(shared: Collection[str], every: Collection[str]) -> Iterator[set[str]]:
    """The sets with one layer less, one more, or two swapped, in order."""
    inside, outside = sorted(shared), sorted(set(every) - set(shared))
    yield from (set(shared) - {name} for name in inside)
    yield from (set(shared) | {name} for name in outside)
    yield from (set(shared) - {one} | {other} for one in inside for other in outside)
