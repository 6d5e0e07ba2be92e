"""Repetitions: disjoint records, users kept together, permutations that keep what they must."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from gradaudit.audits.vinfo.repetitions import Question, Repetition, repetitions
from gradaudit.errors import NotApplicable


def question(records: int = 300, values: int = 2, **settings: object) -> Question:
    asked = Question(
        attribute="trait",
        values=tuple("abc"[:values]),
        codes=np.arange(records) % values,
        users=None,
        pool=np.arange(records),
        size=4,
        batches=11,
        shadow=None,
        repeats=3,
        seed=np.random.SeedSequence(5),
    )
    return replace(asked, **settings)  # type: ignore[arg-type]


def records_of(repetition: Repetition) -> list[set[int]]:
    return [set(batches.indices.ravel().tolist()) for batches in repetition.batches]


@pytest.mark.parametrize("each_has", [1, 5])
def test_no_record_or_user_is_in_two_sets_of_batches(each_has: int) -> None:
    users = np.array([f"u{i // each_has}" for i in range(300)])
    for each in repetitions(question(users=users)):
        sets = [set(users[list(own)]) for own in records_of(each)]
        assert len(sets) == 4
        assert not any(one & other for one, other in combinations(sets, 2))
        assert [len(batches.labels) for batches in each.batches] == [12, 12, 12, 48]
        assert [len(part) for part in each.parts] == [70, 70, 70, 90]


def test_batches_share_the_value_that_their_label_says_and_are_of_the_pool_alone() -> None:
    asked = question(values=3, pool=np.arange(100, 250))
    for each in repetitions(asked):
        assert set().union(*records_of(each)) <= set(asked.pool.tolist())
        for batches in each.batches:
            assert (asked.codes[batches.indices] == batches.labels[:, None]).all()


def test_every_repetition_splits_anew_and_depends_on_its_number_alone() -> None:
    three, five = list(repetitions(question())), list(repetitions(question(repeats=5)))
    for first, again in zip(three, five, strict=False):
        np.testing.assert_array_equal(first.parts[0], again.parts[0])
        np.testing.assert_array_equal(first.batches[3].indices, again.batches[3].indices)
    assert not np.array_equal(three[0].parts[0], three[1].parts[0])


def test_the_adversary_has_as_many_records_as_it_is_given() -> None:
    (each,) = repetitions(question(shadow=70, repeats=1))
    assert [len(part) for part in each.parts] == [24, 22, 24, 230]
    np.testing.assert_array_equal(each.adversary, np.sort(np.concatenate(each.parts[:3])))


def test_a_permuted_attribute_has_the_same_frequencies_and_nothing_else() -> None:
    asked = question(codes=(np.arange(300) % 4 == 0).astype(np.int64))
    (each,) = repetitions(replace(asked, repeats=1), permuted=True)
    batches = each.batches[0]
    agreement = (asked.codes[batches.indices] == batches.labels[:, None]).mean()
    assert 0.3 < agreement < 0.7
    assert each.frequencies[1] == pytest.approx(0.25, abs=0.01)


def test_where_users_have_one_value_whole_users_are_permuted() -> None:
    users = np.array([f"u{i // 10:02}" for i in range(300)])
    codes = np.arange(300) // 10 % 2
    (each,) = repetitions(question(users=users, codes=codes, repeats=1), permuted=True)
    labels_of: dict[str, set[int]] = {}
    for batches in each.batches:
        for batch, label in zip(batches.indices, batches.labels, strict=True):
            for record in batch:
                labels_of.setdefault(users[record], set()).add(int(label))
    assert all(len(labels) == 1 for labels in labels_of.values())
    changed = [labels != {int(name[1:]) % 2} for name, labels in labels_of.items()]
    assert 0 < sum(changed) < len(changed)


def test_where_values_vary_within_users_runs_of_values_move_between_users() -> None:
    """Users with ten records each, nine of one value: they go on having nine of one value."""
    users = np.array([f"u{i // 10:02}" for i in range(300)])
    codes = (np.arange(300) // 10 + (np.arange(300) % 10 == 0)) % 2
    (each,) = repetitions(question(users=users, codes=codes, repeats=1), permuted=True)
    ones = np.zeros((30, 2), dtype=int)
    for batches in each.batches:
        owners = batches.indices // 10
        np.add.at(ones, (owners, np.broadcast_to(batches.labels[:, None], owners.shape)), 1)
    share = ones.max(axis=1) / ones.sum(axis=1)
    assert (share > 0.6).mean() > 0.9
    moved = ones.argmax(axis=1) != np.arange(30) % 2
    assert 0 < moved.sum() < 30


@pytest.mark.parametrize("first", [0, 1])
def test_users_whose_first_records_are_alike_may_vary_all_the_same(first: int) -> None:
    users = np.array([f"u{i // 10:02}" for i in range(300)])
    codes = np.where(np.arange(300) % 10 < 3, first, 1 - first)
    (each,) = repetitions(question(users=users, codes=codes, repeats=1), permuted=True)
    assert each.frequencies[first] == pytest.approx(0.3, abs=0.03)


def test_few_records_or_users_are_few_independent_batches() -> None:
    users = np.array([f"u{i // 10:02}" for i in range(300)])
    (alone,) = repetitions(question(repeats=1))
    (together,) = repetitions(question(users=users, repeats=1))
    assert alone.independent == 3 * min(12, 70 / 4)
    assert alone.disjoint == 150 / 4
    assert 3 * 7 / 4 < together.independent < 3 * 7 / 2.5
    assert 30 / 4 < together.disjoint < 30 / 3  # all users have both values here
    (rare,) = repetitions(question(codes=(np.arange(300) % 5 == 0).astype(np.int64), repeats=1))
    assert rare.independent == 3 * 2 * 14 / 4


def test_values_that_do_not_occur_are_left_out() -> None:
    asked = question(values=3, codes=np.arange(300) % 2 * 2)
    (each,) = repetitions(replace(asked, repeats=1))
    assert each.frequencies.shape == (2,)
    assert set(each.batches[0].labels) == {0, 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"codes": np.zeros(300, dtype=np.int64)},
            r"trait: every record .* 'a'.* at least 2 values",
        ),
        ({"records": 60}, r"of trait, .* are needed, 10 in each set"),
    ],
)
def test_one_value_or_too_few_records_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        list(repetitions(question(**settings)))
