"""The search against all protections there are, on problems whose answers are known."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from gradaudit.protection.cheapest import ProtectionVerdict, Search, core
from gradaudit.protection.guards import HIDE, OPEN, Guard, Protection

FAINT, STRONG = Guard("noise", 1.0), Guard("noise", 3.0)
CUT = Guard("prune", 0.9)
LAYERS = ("a", "b", "c", "d", "e")
Law = Callable[[Protection], ProtectionVerdict]

LEFT = {OPEN: 1.0, FAINT: 0.5, STRONG: 0.1, CUT: 0.3, HIDE: 0.0}
"""The share of a layer's information that a guard leaves."""


def additive(information: Sequence[float], limit: float) -> Law:
    """A rule of the whole model: what the layers' shared information comes to."""
    of = dict(zip(LAYERS, information, strict=True))
    return lambda p: ProtectionVerdict(whole=sum(of[n] * LEFT[g] for n, g in p) > limit)


def each_by_itself(information: Sequence[float], limit: float) -> Law:
    """A rule of every layer."""
    of = dict(zip(LAYERS, information, strict=True))
    return lambda p: ProtectionVerdict(frozenset(n for n, g in p if of[n] * LEFT[g] > limit))


def shares(sizes: Sequence[float], limit: float) -> Law:
    """A rule of every shared layer's share in their sum, which grows as others are hidden."""
    of = dict(zip(LAYERS, sizes, strict=True))

    def law(protection: Protection) -> ProtectionVerdict:
        whole = sum(of[name] for name in protection.shared)
        return ProtectionVerdict(
            relative=frozenset(n for n in protection.shared if of[n] > limit * whole)
        )

    return law


def both(one: Law, other: Law) -> Law:
    def law(p: Protection) -> ProtectionVerdict:
        a, b = one(p), other(p)
        return ProtectionVerdict(a.layers | b.layers, a.relative | b.relative, a.whole or b.whole)

    return law


def price_list(guards: Sequence[Guard], seed: int) -> Mapping[tuple[str, Guard], float]:
    """Prices of hiding at random, and of every other guard in proportion to what it takes away."""
    full = np.random.default_rng(seed).uniform(0.1, 1, len(LAYERS))
    return {
        (n, g): w * (1 - LEFT[g]) ** 2 for n, w in zip(LAYERS, full, strict=True) for g in guards
    }


def cheapest(law: Law, guards: Sequence[Guard], search: Search) -> float | None:
    """The cost of the cheapest of all protections that pass and share something."""
    every = (Protection(LAYERS, chosen) for chosen in product(guards, repeat=len(LAYERS)))
    costs = [search.choices.cost(p) for p in every if p.shared and law(p).passed]
    return min(costs, default=None)


LAWS: list[tuple[str, Law]] = [
    ("sum", additive((5, 1, 3, 2, 4), 6.1)),
    ("tight sum", additive((5, 1, 3, 2, 4), 0.9)),
    ("layers", each_by_itself((5, 1, 3, 2, 4), 1.4)),
    ("shares", shares((8, 4, 3, 2, 2), 0.3)),
    ("sum and layers", both(additive((5, 1, 3, 2, 4), 4), each_by_itself((1, 9, 1, 9, 1), 2))),
    ("sum and shares", both(additive((5, 1, 3, 2, 4), 9), shares((8, 4, 3, 2, 2), 0.45))),
    ("impossible", shares((1, 1, 1, 1, 1), 0.1)),
]
NAMED = [
    pytest.param(law, id=name, marks=[pytest.mark.slow] if name == "impossible" else [])
    for name, law in LAWS
]


@pytest.mark.parametrize(
    ("guards", "seed"), [((OPEN, HIDE), 0), ((OPEN, HIDE), 1), ((OPEN, STRONG, CUT, HIDE), 1)]
)
@pytest.mark.parametrize("law", NAMED)
def test_it_finds_the_cheapest_of_all(law: Law, guards: Sequence[Guard], seed: int) -> None:
    table = price_list(guards, seed)
    search = Search(LAYERS, guards, lambda layer, guard: table[layer, guard], law)
    found, known = search.best(), cheapest(law, guards, search)
    if known is None:
        assert found is None
        return
    assert found is not None
    assert found.cost == pytest.approx(known)
    assert found.proven
    assert law(found.protection).passed
    assert len(search.tried) < len(guards) ** len(LAYERS)


def test_few_trials_are_enough_where_every_layer_stands_by_itself() -> None:
    names = [f"layer{n}" for n in range(60)]
    leaky = {names[n] for n in (3, 17, 41)}
    law = lambda p: ProtectionVerdict(leaky & {*p.shared})  # noqa: E731
    search = Search(names, (OPEN, HIDE), lambda _, guard: float(guard == HIDE), law)
    found = search.best()
    assert found is not None
    assert set(found.protection.hidden) == leaky
    assert len(search.tried) == 2


def test_with_few_trials_it_says_how_far_it_may_be_from_the_best() -> None:
    law, guards = additive((5, 1, 3, 2, 4), 6.1), (OPEN, HIDE)
    table = price_list(guards, 0)
    trials: list[Protection] = []

    def attempt(protection: Protection) -> ProtectionVerdict:
        trials.append(protection)
        return law(protection)

    search = Search(
        LAYERS, guards, lambda layer, guard: table[layer, guard], attempt, lambda: len(trials) < 6
    )
    found, known = search.best(), cheapest(law, guards, search)
    assert len(trials) <= 6
    assert found is not None
    assert known is not None
    assert found.least <= known + 1e-9 <= found.cost + 1e-9


def test_what_other_records_say_only_makes_a_plan_dearer() -> None:
    """Lessons from elsewhere rule out plans that passed, and what covers no more."""
    guards, costs, table = (OPEN, FAINT, HIDE), [], price_list((OPEN, FAINT, HIDE), 0)
    law = each_by_itself((5, 1, 3, 2, 4), 2.9)
    stricter = each_by_itself((5, 1, 3, 2, 4), 1.4)
    search = Search(LAYERS, guards, lambda layer, guard: table[layer, guard], law)
    for _ in range(3):
        found = search.best()
        assert found is not None
        costs.append(found.cost)
        search.learn(found.protection, stricter(found.protection))
    assert costs == sorted(costs)
    assert costs[0] < costs[1] == costs[2] == pytest.approx(cheapest(stricter, guards, search))


def test_the_first_of_a_chain_that_passes() -> None:
    law = additive((1, 1, 1, 1, 1), 2)
    search = Search(LAYERS, (OPEN, HIDE), lambda *_: 1.0, law)
    first = [Protection.uniform(LAYERS).hiding(LAYERS[:n]) for n in range(5)]
    assert search.cheapest_of(first) == first[3]
    assert search.cheapest_of(first[:2]) is None


@pytest.mark.parametrize("wanted", [{3}, {0, 7}, {1, 2, 6}, set(range(8))])
def test_a_core_is_what_it_takes_and_no_more(wanted: set[int]) -> None:
    asked: list[Sequence[int]] = []

    def too_much(kept: Sequence[int]) -> bool:
        asked.append(kept)
        return wanted <= set(kept)

    assert set(core(too_much, range(8))) == wanted
    assert len(asked) <= 2 * len(wanted) * 4


def test_a_core_rather_leaves_out_what_comes_first() -> None:
    assert core(lambda kept: len(kept) >= 2, range(5)) == [3, 4]


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        (HIDE, STRONG, True),
        (STRONG, FAINT, True),
        (FAINT, STRONG, False),
        (CUT, FAINT, False),
        (FAINT, CUT, False),
        (FAINT, OPEN, True),
        (OPEN, FAINT, False),
        (OPEN, OPEN, True),
    ],
)
def test_which_guard_covers_which(one: Guard, other: Guard, covers: bool) -> None:
    assert one.covers(other) == covers
