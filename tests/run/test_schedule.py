"""What a scan does in its time, with audits that take what they are told to by a clock of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from fake_audit import Counting
from hypothesis import given
from hypothesis import strategies as st

from gradaudit.audits.base import Metric
from gradaudit.audits.sizes import Size, SizeName
from gradaudit.run.schedule import Schedule, ScheduledRun

NAMES: tuple[SizeName, ...] = ("least", "quick", "plain")
Seconds = Sequence[float]
"""What the sizes of an audit take, the least first."""


@dataclass
class Played:
    """What came out of a schedule that was played.

    Attributes:
        turns: numbers of the audits and the sizes, in their order.
        best: the largest whole size of each audit, by its number.
        spent: seconds.
    """

    turns: list[tuple[int, str]] = field(default_factory=list)
    best: dict[int, str] = field(default_factory=dict)
    spent: float = 0.0


def played(truth: Sequence[Seconds], estimates: Sequence[Seconds], budget: float | None) -> Played:
    """Play a schedule whose audits take the truth, or are cut short, where others were told."""
    ladders = [
        [
            Size(name, Counting(Counting.Options(scale=1.0 + number)))
            for name, _ in zip(NAMES, each, strict=False)
        ]
        for number, each in enumerate(truth)
    ]
    told = {
        size: estimate
        for sizes, each in zip(ladders, estimates, strict=True)
        for size, estimate in zip(sizes, each, strict=True)
    }
    return _play(ladders, truth, told, budget)


def _play(
    ladders: Sequence[Sequence[Size]],
    truth: Sequence[Seconds],
    told: Mapping[Size, float],
    budget: float | None,
) -> Played:
    came = Played()
    schedule = Schedule(
        ladders, told.__getitem__, lambda: None if budget is None else budget - came.spent
    )
    while turn := schedule.next():
        takes = truth[turn.place][list(ladders[turn.place]).index(turn.size)]
        whole = turn.seconds is None or takes <= turn.seconds
        seconds = takes if whole or turn.seconds is None else turn.seconds
        came.spent += seconds
        came.turns.append((turn.place, turn.size.name))
        if whole:
            came.best[turn.place] = turn.size.name
        schedule.done(turn, seconds, whole=whole)
        assert len(came.turns) <= 4 * len(ladders)
    return came


def test_what_fits_is_made_as_exactly_as_was_asked_at_once() -> None:
    small = [(1, 2, 3)] * 4
    assert played(small, small, 60).turns == [(place, "plain") for place in range(4)]


def test_without_a_limit_everything_is() -> None:
    large = [(1e6, 1e8)] * 2
    assert played(large, large, None).turns == [(0, "quick"), (1, "quick")]


def test_what_takes_too_long_is_made_roughly_and_then_better_while_there_is_time() -> None:
    truth = [(2, 10, 1000), (2, 10, 1000)]
    came = played(truth, truth, 60)
    assert came.best == {0: "quick", 1: "quick"}
    assert came.spent <= 60


def test_the_first_audits_come_first_where_there_is_little_time() -> None:
    truth = [(8.0,), (8.0,), (8.0,)]
    came = played(truth, truth, 18)
    assert sorted(came.best) == [0, 1]


def test_of_an_audit_with_nothing_to_do_nothing_is_expected() -> None:
    assert played([(0.0,), (50.0,)], [(0.0,), (50.0,)], 60).best == {0: "least", 1: "least"}
    assert played([(50.0,), (0.1,)], [(50.0,), (0.0,)], 0.0).best == {1: "least"}


def test_an_estimate_that_is_far_too_low_costs_no_other_audit_its_turn() -> None:
    truth, told = [(500, 5000), (2, 4), (2, 4)], [(1, 10), (2, 4), (2, 4)]
    came = played(truth, told, 60)
    assert came.best.keys() == {1, 2}


@pytest.mark.parametrize(("measured", "given"), [(False, 58.5), (True, 58.5 - 2 * (0.5 + 18))])
def test_an_audit_that_does_not_apply_tells_nothing_of_the_others(
    measured: bool, given: float
) -> None:
    """One that was ten times as fast as estimated lets others be expected to be so."""
    sizes = [[Size("least", Counting(Counting.Options(scale=s)))] for s in (50.0, 20.0, 90.0, 91.0)]
    told = {size: float(size.audit.options.scale) for (size,) in sizes}
    left = [60.0]
    schedule = Schedule(sizes, lambda size: min(told[size], 90.0), lambda: left[0])
    first = ScheduledRun(0, sizes[0][0], 60.0)
    left[0] -= 1.5
    schedule.done(first, 1.5, whole=True, measured=measured)
    turn = schedule.next()
    assert turn is not None
    assert (turn.place, turn.seconds) == (1, pytest.approx(given))


class OfTheModel(Counting):
    """An audit without numbers of single layers."""

    name: ClassVar[str] = "of the model"
    metrics = (Metric(id="count", title="", per_layer=False),)


@pytest.mark.parametrize(("told", "first"), [(50.0, 1), (70.0, 0)])
def test_while_nothing_is_known_layers_come_first_where_they_may_fit(
    told: float, first: int
) -> None:
    of_model, of_layers = (Size("least", kind(kind.Options())) for kind in (OfTheModel, Counting))
    seconds = {of_model: 10.0, of_layers: told}
    left = [60.0]
    schedule = Schedule([[of_model], [of_layers]], seconds.__getitem__, lambda: left[0])
    turn = schedule.next()
    assert turn is not None
    assert turn.place == first


@pytest.mark.parametrize(("left", "second"), [(95.0, 0), (60.0, 2)])
def test_of_what_may_not_fit_layers_come_before_what_is_of_the_model(
    left: float, second: int
) -> None:
    kinds = OfTheModel, Counting, Counting
    sizes = [Size("least", kind(kind.Options(scale=1.0 + n))) for n, kind in enumerate(kinds)]
    seconds = dict(zip(sizes, (40.0, 10.0, 45.0), strict=True))
    clock = [left + 10.0]
    schedule = Schedule([[size] for size in sizes], seconds.__getitem__, lambda: clock[0])
    first = schedule.next()
    assert first is not None
    assert first.place == 1
    clock[0] = left
    schedule.done(first, 10.0, whole=True)
    turn = schedule.next()
    assert turn is not None
    assert turn.place == second


def test_what_measured_nothing_is_made_larger_after_what_has_numbers() -> None:
    kinds = [Counting(Counting.Options(scale=number)) for number in (1.0, 2.0)]
    sizes = [[Size(name, kind) for name in NAMES] for kind in kinds]
    told = dict(zip((size for each in sizes for size in each), [5.0, 30.0, 90.0] * 2, strict=True))
    left = [60.0]
    schedule = Schedule(sizes, told.__getitem__, lambda: left[0])
    turns = []
    for measured in (False, True, True):
        turn = schedule.next()
        assert turn is not None
        turns.append((turn.place, turn.size.name))
        schedule.done(turn, told[turn.size], whole=True, measured=measured)
        left[0] -= told[turn.size]
    assert turns == [(0, "least"), (1, "least"), (1, "quick")]


@pytest.mark.parametrize("told", [10.0, 20.0, 40.0])
def test_a_single_audit_that_was_taken_for_faster_is_made_more_roughly(told: float) -> None:
    truth, estimates = (told / 10, told / 2, 120.0), (told / 30, told / 6, told)
    came = played([truth], [estimates], 60)
    assert came.best
    assert came.spent <= 60
    assert played([estimates], [estimates], 60).best == {0: "plain"}


def test_what_surely_fits_comes_before_what_may_not() -> None:
    assert played([(200.0,), (10.0,)], [(50.0,), (10.0,)], 60).best == {1: "least"}


def test_what_does_not_apply_tells_nothing_of_others() -> None:
    truth = told = [(20.0,), (20.0,), (300.0,), (15.0,)]
    came = played([(0.01,), (0.01,), *truth[2:]], told, 60)
    assert 3 in came.best


def test_an_estimate_that_is_too_high_is_corrected() -> None:
    truth, told = [(0.5, 2.0), (0.5, 2.0)], [(10.0, 40.0), (10.0, 40.0)]
    assert played(truth, told, 60).best == {0: "quick", 1: "quick"}


def test_where_nothing_seems_to_fit_the_cheapest_is_tried_and_the_others_told_by_it() -> None:
    truth, told = [(5.0,), (3.0,), (900.0,)], [(500.0,), (300.0,), (90_000.0,)]
    came = played(truth, told, 60)
    assert came.turns == [(1, "least"), (0, "least")]


def test_what_was_quick_says_little_of_larger_sizes() -> None:
    truth = [(0.4, 400.0), (0.4, 40.0), (0.4, 100.0)]
    turns = [(0, "least"), (1, "least"), (2, "least"), (1, "quick")]
    assert played(truth, truth, 60).turns == turns


def test_of_what_took_long_though_nothing_was_expected_less_is_tried() -> None:
    truth, told = [(1.0, 500.0), (8.0, 8.0)], [(0.0, 0.0), (8.0, 8.0)]
    came = played(truth, told, 60)
    assert came.turns == [(0, "quick"), (1, "quick"), (0, "least")]
    assert came.best == {0: "least", 1: "quick"}


@pytest.mark.slow
@pytest.mark.parametrize("slower", [0.1, 1, 10])
@given(
    truth=st.lists(
        st.tuples(st.floats(0.1, 50), st.floats(1, 20), st.floats(1, 20)), min_size=1, max_size=9
    ),
    wrong=st.lists(st.floats(0.3, 3), min_size=9, max_size=9),
)
def test_the_time_is_kept(
    truth: list[tuple[float, float, float]], wrong: list[float], slower: float
) -> None:
    grown = [(a * slower, a * b * slower, a * b * c * slower) for a, b, c in truth]
    told = [[each * w for each in takes] for takes, w in zip(grown, wrong, strict=False)]
    assert played(grown, told, 100).spent <= 100 * 1.0001
