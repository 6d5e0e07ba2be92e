"""Search for layers to blur so that rules on floors hold, or to hide instead.

The cheapest noise levels: a layer whose elements have the root mean square r loses σ²/(r² + σ²) of
its update to noise of deviation σ: half at σ = r, and as σ grows all of it, as if it were hidden.
Over x = log(σ/r) the cost Σ_l w_l s(2x_l), with s the logistic function, is minimised by sequential
quadratic programming (D. Kraft, "A software package for sequential quadratic programming", 1988, as
SciPy's SLSQP) with the rules as smooth constraints, whose slopes are known.

The information ½ ln det(I + Σ_l e^(−2x_l) A_l) is convex in x, but the cost is not, and the floor
neither, so that there are local minima. It is begun from the same noise for all, the same loss for
all and the same information from all, each as little as passes, and none of these is cheaper than
what is found.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, brentq, minimize
from scipy.special import expit

from gradaudit.protection.floor_rules import FloorBound, FloorBounds
from gradaudit.protection.guards import HIDE, Guard, Protection

Floats = NDArray[np.float64]
LEAST, MOST = -8.0, 5.0
"""Range of x: losses of 1e-7, and of all but 5e-5, from where a layer may as well be hidden."""
_EXACT, _STEP = 1e-3, 0.05
"""Precision of x, and the distance from the start at which the search begins."""
_ROUNDS, _GAIN = 2, 1e-3
"""Most searches from one start, and the share of the cost that one must save to go on."""
_FAR = 1e3
"""Margin from which on all margins count as equal."""
_FAINT, _TINY = 1e-12, 1e-300
"""Share of the largest information, and information, below which a layer counts as having none."""


@dataclass(frozen=True)
class Levels:
    """Layers that are shared with noise, in order, and the range of that noise.

    Attributes:
        layers: their names.
        weights: what hiding each costs, (layers,).
        sizes: log r of each, (layers,).
        least: the smallest x of each, (layers,).
        bounds: the rules.
        reserve: margin that every bound keeps to its limit, as a share of the limit.
    """

    layers: tuple[str, ...]
    weights: Floats
    sizes: Floats
    least: Floats
    bounds: tuple[FloorBound, ...]
    reserve: float = 0.0

    @classmethod
    def of(
        cls,
        bounds: FloorBounds,
        least: Mapping[str, float],
        weights: Mapping[str, float],
        sizes: Mapping[str, float],
        reserve: float = 0.0,
    ) -> Self:
        """The levels of the layers of ``least``, with all bounds that count one of them."""
        names = tuple(least)
        weighing, scales, low = (np.array([by[n] for n in names]) for by in (weights, sizes, least))
        touching = (bound for bound in bounds.floors if _touched(bound, names))
        return cls(names, weighing, scales, low, tuple(touching), reserve)

    def boxed(self) -> Self | None:
        """Turns bounds on single layers into least levels; None where one cannot be kept."""
        least = self.least.copy()
        for bound in self.bounds:
            if len(touched := _touched(bound, self.layers)) == 1:
                alone = self._of(touched, bound)
                if (x := alone.lifted(alone.least)) is None:
                    return None
                place = self.layers.index(touched[0])
                least[place] = max(least[place], x[0])
        joint = tuple(bound for bound in self.bounds if len(_touched(bound, self.layers)) > 1)
        return replace(self, least=least, bounds=joint)

    def cost(self, x: Floats) -> float:
        """Returns the cost of the noise."""
        return float(self.weights @ expit(2 * x))

    def noise(self, x: Floats) -> dict[str, float]:
        """Returns the logarithm of each layer's σ."""
        return dict(zip(self.layers, (x + self.sizes).tolist(), strict=True))

    def cheapest(self, starts: Sequence[Floats] = ()) -> Floats | None:
        """Returns the x of the cheapest noise found; None where no noise is enough.

        Args:
            starts: more x to begin from, (layers,) each.
        """
        begun = [x for start in (*self._starts(), *starts) if (x := self.lifted(start)) is not None]
        points = [x for start in begun for x in self._improved(start)]
        return min(points, key=self.cost, default=None)

    def lifted(self, start: Floats) -> Floats | None:
        """Finds the least shift of ``start``, with no x below ``least``, that keeps every bound.

        None where not even a loss of about everything is enough.
        """

        def spare(shift: float) -> float:
            return self._spare(np.maximum(start + shift, self.least))

        low, high = LEAST - float(start.max()), MOST - float(start.min())
        near, step = min(max(0.0, low), high), _STEP
        enough = spare(near) >= 0
        while near != (other := min(max(near - step if enough else near + step, low), high)):
            if (spare(other) >= 0) != enough:
                ends = min(near, other), max(near, other)
                near, enough = float(brentq(spare, *ends, xtol=_EXACT)), True
                while spare(near) < 0:
                    near += _EXACT
                break
            near, step = other, 4 * step
        return np.maximum(start + near, self.least) if enough else None

    def kept(self, x: Floats) -> bool:
        """Whether every bound holds at its interval's unfavourable end."""
        return self._spare(x) >= 0

    def _spare(self, x: Floats) -> float:
        """Returns the smallest margin beyond the reserve, at the intervals' unfavourable ends."""
        noise = self.noise(x)
        spare = min((bound.safe(noise) for bound in self.bounds), default=_FAR) - self.reserve
        return max(-_FAR, min(spare, _FAR))

    def _of(self, names: Sequence[str], bound: FloorBound) -> Self:
        """Returns the search restricted to some of the layers and to one bound."""
        kept = [self.layers.index(name) for name in names]
        parts = (self.weights[kept], self.sizes[kept], self.least[kept])
        return type(self)(tuple(names), *parts, (bound,), self.reserve)

    def _starts(self) -> list[Floats]:
        """Yields starts of equal noise, equal loss, and about equal information from all layers."""
        known = [bound.informations for bound in self.bounds]
        traces = [
            [float(parts[name].mean.trace()) for parts in known if name in parts]
            for name in self.layers
        ]
        energy = np.array([max(of_layer, default=0.0) for of_layer in traces])
        energy = np.log(np.maximum(energy, energy.max() * _FAINT) + _TINY) / 2
        return [-self.sizes, np.zeros(len(self.layers)), energy - self.sizes]

    def _improved(self, start: Floats) -> list[Floats]:
        """Yields the start, and the points at which searches from there end.

        A search goes by the mean information, as it is smooth; how far the interval's end is from
        that is taken from where it begins, and what is found is lifted until the end keeps the
        bounds.
        """
        kept = [start]
        for _ in range(_ROUNDS):
            if (x := self.lifted(self._searched(kept[-1]))) is None:
                break
            kept.append(x)
            if self.cost(x) > (1 - _GAIN) * self.cost(kept[-2]):
                break
        return kept

    def _searched(self, start: Floats) -> Floats:
        if not self.bounds:
            return self.least
        noise = self.noise(start)
        gaps = np.array([b.margin(noise)[0] - b.safe(noise) + self.reserve for b in self.bounds])
        solution = minimize(
            self.cost,
            start,
            jac=self._prices,
            method="SLSQP",
            bounds=[(low, max(MOST, x)) for low, x in zip(self.least, start, strict=True)],
            constraints=NonlinearConstraint(self._margins, gaps, np.inf, jac=self._slopes),
            options={"maxiter": 100, "ftol": 1e-7},
        )
        return np.asarray(solution.x)

    def _prices(self, x: Floats) -> Floats:
        return np.asarray(2 * self.weights * expit(2 * x) * expit(-2 * x))

    def _margins(self, x: Floats) -> Floats:
        """Returns the margins of every bound by the mean information, (bounds,)."""
        noise = self.noise(x)
        return np.array([bound.margin(noise)[0] for bound in self.bounds])

    def _slopes(self, x: Floats) -> Floats:
        """Returns the slopes of every bound's margin by every x, (bounds, layers)."""
        noise = self.noise(x)
        slopes = [bound.margin(noise)[1] for bound in self.bounds]
        return np.array([[slope.get(name, 0.0) for name in self.layers] for slope in slopes])


def _touched(bound: FloorBound, names: Sequence[str]) -> list[str]:
    """Layers with noise that a bound counts; those of a row that is hidden do not."""
    if bound.row is not None and bound.row not in names:
        return []
    return [name for name in names if name in bound.informations]


_DIGITS = 3
_CHEAPER = 1e-6
_DROWNED = 3.45
"""The x from which on 99.9 % of an update are lost: it is hidden instead."""


@dataclass(frozen=True)
class _Blurred:
    """Layers with noise, and what it costs to hide the others."""

    x: Mapping[str, float]
    cost: float


class NoiseSearch:
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
        """Increase the distance to the limits, as the plan exceeded them on other records.

        Args:
            excess: how far the plan was beyond the limit, as a share of the limit.
        """
        self._reserve += max(excess, 0.0)

    def completed(self, protection: Protection) -> Protection | None:
        """Returns the cheapest protection that keeps the bounds and protects no layer less.

        None where none that shares a layer does.
        """
        about = set(protection.shared) & self._bounds.layers
        if not about:
            return protection
        floored = ((n, guard) for n, guard in protection if n in about - self._bounds.hopeless)
        least = {name: self._x(name, guard) for name, guard in floored}
        rest = protection.hiding(about)
        best = self._solved(least, least.keys(), None)
        while better := self._better(least, best, may_be_empty=bool(rest.shared)):
            best = better
        if best is None:
            return None
        for name, x in best.x.items():
            if x < _DROWNED:
                rest = rest.with_guard(name, self._guard(name, x))
        return rest if rest.shared else None

    def uniform(self, layers: tuple[str, ...]) -> Guard | None:
        """Returns the least noise, equal for all layers, that keeps the bounds, or None."""
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

    def _better(
        self, least: Mapping[str, float], found: _Blurred | None, *, may_be_empty: bool
    ) -> _Blurred | None:
        """Returns the first cheaper set with one layer more or less hidden, or two swapped."""
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
        return math.log(guard.amount) - self._sizes[name] if guard.kind == "noise" else LEAST

    def _guard(self, name: str, x: float) -> Guard:
        """Rounds noise up to three digits."""
        exact = Decimal(math.exp(x + self._sizes[name]))
        return Guard("noise", float(Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(exact)))


def _neighbours(shared: Collection[str], every: Collection[str]) -> Iterator[set[str]]:
    """Yields the sets with one layer less, one more, or two layers swapped."""
    inside, outside = sorted(shared), sorted(set(every) - set(shared))
    yield from (set(shared) - {name} for name in inside)
    yield from (set(shared) | {name} for name in outside)
    yield from (set(shared) - {one} | {other} for one in inside for other in outside)
