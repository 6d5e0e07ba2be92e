"""Finds the cheapest protection that passes, with as few trials as possible.

Protection is taken to be monotone: what fails fails with less of it too. A trial that fails the
rules of the whole model rules out every protection that covers no more. One that fails the rules of
a layer says that this layer needs more; where a metric is relative, as a layer's share in a sum,
which grows when others are hidden, only wherever the others have at least as much.

The cheapest protection that no failure rules out hits every one of them, as in an implicit hitting
set problem (Chandrasekaran, Karp, Moreno-Centeno and Vempala, "Algorithms for implicit hitting set
problems", 2011, section 2); it is a small integer program.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

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
        layers: layers whose own rows are beyond a limit.
        relative: layers with rows beyond a limit that depend on other layers too.
        whole: whether a row of the whole model is beyond a limit.
        broken: why it cannot be judged; empty where it can.
        excess: how far the worst row is beyond its limit, as a share of the limit; at most 0 where
            all rows are within, None where no row was judged.
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
class FailedTrial:
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
            guard.covers(theirs)
            # or every other layer is protected as much as before
            and (layer in self.verdict.layers or other.covers(mine.with_guard(layer, OPEN)))
            for (layer, guard), theirs in zip(mine, other.guards, strict=True)
            if layer in self.verdict.layers | self.verdict.relative
        )


class GuardChoices:
    """Every guard of every layer as a variable that is 0 or 1.

    Args:
        layers: in order.
        guards: that any layer may have.
        price: cost of each guard of each layer.
    """

    def __init__(self, layers: Sequence[str], guards: Sequence[Guard], price: Price) -> None:
        self.layers, self.guards, self._price = tuple(layers), tuple(guards), price
        self.prices = np.array([[price(layer, g) for g in self.guards] for layer in self.layers])

    def cost(self, protection: Protection) -> float:
        """Returns the cost of a protection."""
        return sum(self._price(layer, guard) for layer, guard in protection)

    def cheapest(
        self, failures: Sequence[FailedTrial], kinds: Collection[Kind] = KINDS
    ) -> Protection | None:
        """Returns the cheapest protection that shares a layer and may pass; None without any.

        ``kinds`` are those of its guards.
        """
        layers, guards = self.prices.shape
        shared = np.tile([float(guard != HIDE) for guard in self.guards], layers)
        rows = [shared, *(row for failure in failures for row in self._rows(failure))]
        touched = np.array([guard.kind != "open" for guard in self.guards]) * _TIE
        may = np.tile([guard.kind in kinds for guard in self.guards], layers)
        solution = milp(
            (self.prices + touched).ravel(),
            integrality=np.ones(self.prices.size, dtype=np.int64),
            bounds=Bounds(0, may.astype(float)),
            constraints=[
                LinearConstraint(np.kron(np.eye(layers), np.ones(guards)), 1, 1),
                LinearConstraint(np.array(rows), 1),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if solution.x is None:
            return None
        chosen = np.asarray(solution.x).reshape(layers, guards).argmax(axis=1)
        return Protection(self.layers, tuple(self.guards[place] for place in chosen))

    def _rows(self, failure: FailedTrial) -> Iterator[np.ndarray]:
        """Yield coefficients of the variables, whose sum is to be at least 1."""
        mine, verdict = failure.protection.guards, failure.verdict
        beyond = np.array([[not guard.covers(g) for g in self.guards] for guard in mine], float)
        below = np.array([[not g.covers(guard) for g in self.guards] for guard in mine], float)
        if verdict.whole:
            yield beyond.ravel()
        if verdict.broken:
            yield np.array([[g != guard for g in self.guards] for guard in mine], float).ravel()
        for place, layer in enumerate(self.layers):
            if layer in verdict.layers | verdict.relative:
                row = below * (layer not in verdict.layers)
                row[place] = beyond[place]
                yield row.ravel()


T = TypeVar("T")
Attempt = Callable[[Protection], ProtectionVerdict]
_EQUAL = 1e-7
_FINE = 1.1
"""Ratio of two levels of noise between which no other is tried."""


class _NoTrialsLeftError(Exception):
    """Raised where no other trial may be begun."""


@dataclass(frozen=True)
class PassedProtection:
    """A protection that passed its trial.

    Attributes:
        protection: what to do.
        cost: of it.
        least: least cost of any protection that passes, where more protection never makes a trial
            fail.
    """

    protection: Protection
    cost: float
    least: float

    @property
    def proven(self) -> bool:
        """Whether no cheaper protection passes, by the bound on the cost."""
        return self.cost <= self.least + _EQUAL


class Search:
    """Trials of protections, what they taught, and the best so far.

    The cheapest protection that is not ruled out is tried. Where it fails by the rules of the whole
    model, the smallest set of its shared layers that still fails is looked for, which rules out
    most; what passes meanwhile is a plan. Where the time is up before none cheaper is left, the
    best one is improved by giving up single guards, and by swaps, as far as trials are left.

    Args:
        layers: in order.
        guards: guards that any layer may have, ``OPEN`` and ``HIDE`` among them.
        price: cost of each guard of each layer.
        attempt: tries a protection.
        more: whether another trial may be begun.
    """

    def __init__(
        self,
        layers: Sequence[str],
        guards: Sequence[Guard],
        price: Price,
        attempt: Attempt,
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        self.choices = GuardChoices(layers, guards, price)
        self.failures: list[FailedTrial] = []
        self.tried: dict[Protection, ProtectionVerdict] = {}
        self._attempt, self._more = attempt, more

    def attempt(self, protection: Protection) -> ProtectionVerdict:
        """Returns the rules' verdict on a protection, tried once; failures are kept."""
        if protection not in self.tried:
            self.tried[protection] = self._attempt(protection)
            self.learn(protection, self.tried[protection])
        return self.tried[protection]

    def learn(self, protection: Protection, verdict: ProtectionVerdict) -> None:
        """Keep the verdict that other records gave on a protection."""
        if not verdict.passed:
            self.failures.append(FailedTrial(protection, verdict))

    def allowed(self, protection: Protection) -> bool:
        """Whether no failed trial rules the protection out."""
        return not any(failure.forbids(protection) for failure in self.failures)

    def cheapest_of(self, chain: Sequence[Protection]) -> Protection | None:
        """Finds the first protection that passes in a sequence of ever stronger ones.

        Found by bisection; None where the last fails, or there is no time to try it. What covers
        a protection that passed is taken to pass.
        """
        left = [protection for protection in chain if self.allowed(protection)]
        if not left or not self._implied(left[-1]):
            return None
        low, high = 0, len(left) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._implied(left[middle]) else (middle + 1, high)
        return left[high]

    def best(self, kinds: Collection[Kind] = KINDS) -> PassedProtection | None:
        """The cheapest protection that passes; None where there is none, or none was found.

        Args:
            kinds: guards to search among; protections found with other guards count too.
        """
        bound = 0.0
        while candidate := self.choices.cheapest(self.failures, kinds):
            bound = self.choices.cost(candidate)
            passed = self.cheapest_passed()
            if passed and self.choices.cost(passed) <= bound + _EQUAL:
                return PassedProtection(passed, self.choices.cost(passed), bound)
            if candidate not in self.tried and not self._more():
                break
            if self.attempt(candidate).whole:
                self._sharpen(candidate)
        if (passed := self.cheapest_passed()) is None:
            return None
        passed = self._improved(passed) if candidate else passed
        cost = self.choices.cost(passed)
        return PassedProtection(passed, cost, min(cost, bound) if candidate else cost)

    def eased(self, passed: Protection, layers: Collection[str]) -> Protection:
        """Returns the protection with the least equal noise on these layers that still passes.

        By bisection down to the next level below, as far as there is time.
        """
        (noise,) = {guard for layer, guard in passed if layer in layers}
        below = [g.amount for g in self.choices.guards if g.kind == "noise" and g < noise]
        low, high = max(below, default=noise.amount), noise.amount
        while high > _FINE * low and self._more():
            amount = float(f"{(low * high) ** 0.5:.3g}")
            other = passed
            for layer in layers:
                other = other.with_guard(layer, Guard("noise", amount))
            if self.passes(other):
                passed, high = other, amount
            else:
                low = amount
        return passed

    def cheapest_passed(self) -> Protection | None:
        """The cheapest protection that passed, shares a layer and is not ruled out since."""
        passed = [p for p, v in self.tried.items() if v.passed and p.shared and self.allowed(p)]
        return min(passed, key=self.choices.cost, default=None)

    def passes(self, protection: Protection) -> bool:
        """Whether a protection passes; it is tried unless an earlier trial already decides that."""
        if protection not in self.tried and not self._more():
            return False
        return self.attempt(protection).passed and self.allowed(protection)

    def _implied(self, protection: Protection) -> bool:
        """Whether a protection passes: it covers one that passed, or a trial shows it."""
        passed = (other for other, verdict in self.tried.items() if verdict.passed)
        covered = any(protection.covers(other) and self.allowed(other) for other in passed)
        return covered or self.passes(protection)

    def _sharpen(self, failed: Protection) -> None:
        """Find few layers that fail with all others hidden, and keep the most expensive of them."""

        def too_much(shared: Sequence[str]) -> bool:
            if not shared:
                return False
            rest = failed.hiding(set(failed.shared) - set(shared))
            if rest not in self.tried and not self._more():
                raise _NoTrialsLeftError
            return self.attempt(rest).whole

        dearest = dict(zip(self.choices.layers, self.choices.prices.max(axis=1), strict=True))
        with suppress(_NoTrialsLeftError):
            core(too_much, sorted(failed.shared, key=dearest.__getitem__))

    def _improved(self, passed: Protection) -> Protection:
        """Remove expensive guards, or swap them for cheaper ones, while the protection passes."""
        better: Protection | None = passed
        while better and self._more():
            passed = better
            cheaper = sorted(self._neighbours(passed), key=self.choices.cost)
            useful = (p for p in cheaper if p.shared and self.allowed(p) and self.passes(p))
            better = next(useful, None)
        return better or passed

    def _neighbours(self, passed: Protection) -> list[Protection]:
        """List cheaper protections: another guard on one layer, or two layers' guards swapped."""
        layers, guards, cost = passed.layers, self.choices.guards, self.choices.cost
        singles = {passed.with_guard(layer, guard) for layer in layers for guard in guards}
        swaps = {
            passed.with_guard(layer, OPEN).with_guard(other, guard)
            for layer, guard in passed
            if guard != OPEN
            for other, own in passed
            if own == OPEN
        }
        return [other for other in singles | swaps if cost(other) < cost(passed) - _EQUAL]


def core(too_much: Callable[[Sequence[T]], bool], elements: Sequence[T]) -> list[T]:
    """Finds a minimal set of elements that fails: without any one of them it no longer does.

    Args:
        too_much: monotone: what contains too much is too much. All ``elements`` are, and none is
            not. It is asked about k log(n/k) times for k of n.
        elements: the candidates; earlier ones are left out first.

    Source: U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
    problems" (2004), algorithm 1.
    """

    def needed(kept: list[T], grown: bool, left: Sequence[T]) -> list[T]:
        if grown and too_much(kept):
            return []
        if len(left) == 1:
            return list(left)
        half = len(left) // 2
        early, late = list(left[:half]), list(left[half:])
        first = needed(kept + late, True, early)
        return first + needed(kept + first, bool(first), late)

    return needed([], False, elements) if elements else []
