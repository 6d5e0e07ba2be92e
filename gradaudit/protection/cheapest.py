"""The cheapest protection that passes, found by as few trials as can be."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gradaudit.protection.guards import KINDS, OPEN, Guard, Kind, Protection
from gradaudit.protection.lessons import Choices, Lesson, Price, ProtectionVerdict

T = TypeVar("T")
Attempt = Callable[[Protection], ProtectionVerdict]
_EQUAL = 1e-7
_FINE = 1.1
"""Ratio of two levels of noise between which no other is tried."""


class _NoTrialsLeftError(Exception):
    """No other trial may be begun."""


@dataclass(frozen=True)
class PassedProtection:
    """A protection that passed its trial.

    Attributes:
        protection: what to do.
        cost: of it.
        least: what any protection that passes costs at least, as far as trials are monotone.
    """

    protection: Protection
    cost: float
    least: float

    @property
    def proven(self) -> bool:
        """Whether none is cheaper."""
        return self.cost <= self.least + _EQUAL


class Search:
    """Trials of protections, what they taught, and the best so far.

    The cheapest protection that is not ruled out is tried. Where it fails by the rules of the whole
    model, the smallest set of its shared layers that still fails is looked for, which rules out
    most; what passes meanwhile is a plan. Where the time is up before none cheaper is left, the
    best one is improved by giving up single guards, and by swaps, as far as trials are left.

    Args:
        layers: in order.
        guards: that any layer may have; ``OPEN`` and ``HIDE`` among them.
        price: of a guard of a layer.
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
        self.choices = Choices(layers, guards, price)
        self.lessons: list[Lesson] = []
        self.tried: dict[Protection, ProtectionVerdict] = {}
        self._attempt, self._more = attempt, more

    def attempt(self, protection: Protection) -> ProtectionVerdict:
        """The rules' verdict on a protection, tried once; a failure is a lesson."""
        if protection not in self.tried:
            self.tried[protection] = self._attempt(protection)
            self.learn(protection, self.tried[protection])
        return self.tried[protection]

    def learn(self, protection: Protection, verdict: ProtectionVerdict) -> None:
        """Take in what other records, too, said of a protection."""
        if not verdict.passed:
            self.lessons.append(Lesson(protection, verdict))

    def allowed(self, protection: Protection) -> bool:
        """Whether no lesson rules it out."""
        return not any(lesson.forbids(protection) for lesson in self.lessons)

    def cheapest_of(self, chain: Sequence[Protection]) -> Protection | None:
        """The first that passes of protections each of which covers those before it.

        Found by bisection; None where the last fails, or there is no time to try it. What covers
        a protection that passed is taken to pass.
        """
        left = [protection for protection in chain if self.allowed(protection)]
        if not left or not self._implied(left[-1]):
            return None
        low, high = 0, len(left) - 1
        while low < high:
            middle = (low + high) // 2
            if self._implied(left[middle]):
                high = middle
            else:
                low = middle + 1
        return left[high]

    def best(self, kinds: Collection[Kind] = KINDS) -> PassedProtection | None:
        """The cheapest protection that passes; None where there is none, or none was found.

        Args:
            kinds: of the guards that are looked for; what was found with others counts too.
        """
        bound = 0.0
        while candidate := self.choices.cheapest(self.lessons, kinds):
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
        """The protection with the least noise, alike on these layers, that still passes its trial.

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
        """The cheapest that shares a layer and passed, and that nothing learned since rules out."""
        passed = [p for p, v in self.tried.items() if v.passed and p.shared and self.allowed(p)]
        return min(passed, key=self.choices.cost, default=None)

    def passes(self, protection: Protection) -> bool:
        """Whether it passes, and nothing was learned since that rules it out; tried if need be."""
        if protection not in self.tried and not self._more():
            return False
        return self.attempt(protection).passed and self.allowed(protection)

    def _implied(self, protection: Protection) -> bool:
        """Whether it passes as something passed that it covers; else it is tried."""
        passed = (other for other, verdict in self.tried.items() if verdict.passed)
        covered = any(protection.covers(other) and self.allowed(other) for other in passed)
        return covered or self.passes(protection)

    def _sharpen(self, failed: Protection) -> None:
        """Find fewest layers that fail together, by hiding the others; the dearest are kept."""

        def too_much(shared: Sequence[str]) -> bool:
            if not shared:
                return False
            rest = failed.hiding(set(failed.shared) - set(shared))
            if rest not in self.tried and not self._more():
                raise _NoTrialsLeftError
            return self.attempt(rest).whole

        with suppress(_NoTrialsLeftError):
            core(too_much, sorted(failed.shared, key=self._price_of_hiding))

    def _price_of_hiding(self, layer: str) -> float:
        return float(self.choices.prices[self.choices.layers.index(layer)].max())

    def _improved(self, passed: Protection) -> Protection:
        """Give up what costs most, and swap guards for cheaper ones, while it still passes."""
        better = True
        while better and self._more():
            better = False
            for other in sorted(self._neighbours(passed), key=self.choices.cost):
                if other.shared and self.allowed(other) and self.passes(other):
                    passed, better = other, True
                    break
        return passed

    def _neighbours(self, passed: Protection) -> list[Protection]:
        """Cheaper ones with another guard of one layer, or with those of two layers swapped."""
        singles = [
            passed.with_guard(layer, guard)
            for layer in passed.layers
            for guard in self.choices.guards
        ]
        swaps = [
            passed.with_guard(layer, OPEN).with_guard(other, guard)
            for layer, guard in passed
            if guard != OPEN
            for other, own in passed
            if own == OPEN
        ]
        cost = self.choices.cost(passed) - _EQUAL
        return [
            neighbour for neighbour in {*singles, *swaps} if self.choices.cost(neighbour) < cost
        ]


def core(too_much: Callable[[Sequence[T]], bool], elements: Sequence[T]) -> list[T]:
    """Elements that are too much together and no longer so without any one of them.

    Args:
        too_much: monotone: what contains too much is too much. All ``elements`` are, and none is
            not. It is asked about k log(n/k) times for k of n.
        elements: those that come first are rather left out.

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
