"""Who gets which records, which batches are drawn of them, and ordered values from thresholds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from audits.attack_inference.people import people, with_users

from gradaudit.audits.attack_inference.distribution import (
    DistributionGame,
    bin_names,
    counts_of,
    from_thresholds,
)
from gradaudit.audits.attack_inference.game import AttributeGame, PropertyGame
from gradaudit.audits.attack_inference.split import Design, GameSplit, trials_of
from gradaudit.audits.attack_inference.user import UserGame
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.games.splits import Batches

SETUP = Design(batch_size=4, shadow=120, batches=40, trials=60, private=100)
ROOT = np.random.SeedSequence(0)


def sets(split: GameSplit) -> list[set[int]]:
    parts = split.parts
    return [set(part.tolist()) for part in (parts.shadow, parts.held, parts.test, parts.private)]


def expect_apart(split: GameSplit) -> None:
    groups = sets(split)
    assert sum(map(len, groups)) == len(set.union(*groups))
    shadow, held, _, private = groups
    assert set(split.shadow.indices.ravel().tolist()) <= shadow
    assert set(split.held.indices.ravel().tolist()) <= held
    assert set(split.observed.indices.ravel().tolist()) <= private


@pytest.mark.parametrize("game", [AttributeGame, PropertyGame])
def test_batches_have_one_value_and_sets_no_record_in_common(game: type) -> None:
    records = people()
    split = game("race").split(records, SETUP, ROOT)
    expect_apart(split)
    codes = records.attributes["race"].codes
    for batches in (split.shadow, split.held, split.observed):
        assert (codes[batches.indices] == batches.labels[:, None]).all()
        ordered = np.sort(batches.indices, axis=1)
        assert (np.diff(ordered, axis=1) > 0).all()
    np.testing.assert_allclose(split.prior, np.bincount(codes) / len(codes))
    assert len(split.held.labels) > 0
    assert (split.clusters == split.observed.indices).all()


def of_kinds(records: int, rare: int) -> Records:
    codes = np.where(np.arange(records) < rare, 1, 0)
    return replace(people(records), attributes={"sex": Attribute(codes, ("a", "b"))})


def test_the_shadow_set_is_balanced_and_no_larger_than_asked() -> None:
    records = of_kinds(400, 100)
    split = AttributeGame("sex").split(records, replace(SETUP, shadow=60, held_out=0), ROOT)
    codes = records.attributes["sex"].codes
    assert np.bincount(codes[split.parts.shadow]).tolist() == [30, 30]
    assert np.bincount(split.shadow.labels).tolist() == [20, 20]
    assert np.bincount(split.observed.labels).tolist() == [45, 15]
    assert len(split.parts.private) == 100


@pytest.mark.parametrize(("rare", "kept"), [(480, 48), (85, 32)])
def test_a_large_private_set_is_cut_by_values_to_a_batch_of_each_at_least(
    rare: int, kept: int
) -> None:
    """Of 3,000 records 1,200 are private, and 300 are kept of them; a batch takes 32."""
    design = replace(SETUP, batch_size=32, shadow=200, private=300)
    records = of_kinds(3000, rare)
    split = AttributeGame("sex").split(records, design, ROOT)
    codes = records.attributes["sex"].codes
    assert np.bincount(codes[split.parts.private]).tolist() == [300 - kept, kept]
    expect_apart(split)


@pytest.mark.parametrize(
    ("rare", "private", "words"),
    [
        (75, 300, "about 80 are needed, 32 in each set"),
        (300, 50, "give --samples 64, or batches of at most 25"),
    ],
)
def test_a_private_set_without_a_batch_of_every_value_is_refused(
    rare: int, private: int, words: str
) -> None:
    design = replace(SETUP, batch_size=32, shadow=200, private=private)
    with pytest.raises(NotApplicable, match=words):
        AttributeGame("sex").split(of_kinds(3000, rare), design, ROOT)


@pytest.mark.parametrize("held_out", [0.2, 0.0])
def test_users_are_held_out_whole(held_out: float) -> None:
    records = with_users(40)
    assert records.users is not None
    design = replace(SETUP, shadow=400, held_out=held_out)
    split = AttributeGame("sex").split(records, design, ROOT)
    assert (len(split.held.labels) > 0) == (held_out > 0)
    assert not set(records.users[split.parts.held]) & set(records.users[split.parts.shadow])


def test_trials_follow_the_prior_and_play_every_value() -> None:
    assert trials_of(np.array([0.9, 0.1]), 10).tolist() == [9, 1]
    assert trials_of(np.array([0.5, 0.3, 0.2]), 7).sum() == 7
    assert trials_of(np.array([0.999, 0.001]), 10).tolist() == [9, 1]
    assert trials_of(np.full(6, 1 / 6), 5).tolist() == [1] * 6  # rather than none of some
    split = AttributeGame("race").split(people(), replace(SETUP, prior="uniform"), ROOT)
    assert np.bincount(split.observed.labels).tolist() == [20, 20, 20]


def test_the_same_seed_deals_the_same_and_another_one_does_not() -> None:
    seeds = map(np.random.SeedSequence, (1, 1, 2))
    games = [AttributeGame("sex").split(people(), SETUP, seed) for seed in seeds]
    assert (games[0].observed.indices == games[1].observed.indices).all()
    assert (games[0].shadow.indices == games[1].shadow.indices).all()
    assert sets(games[0])[3] != sets(games[2])[3]


def test_no_user_is_on_two_sides() -> None:
    records = with_users()
    split = AttributeGame("sex").split(records, SETUP, ROOT)
    assert records.users is not None
    of = [set(records.users[sorted(group)]) for group in sets(split)]
    assert sum(map(len, of)) == len(set.union(*of))
    assert split.clusters.shape == split.observed.indices.shape


def test_shuffled_records_keep_the_values_and_nothing_else() -> None:
    records = people()
    shuffled = AttributeGame("sex").permuted(records, ROOT)
    before, after = records.attributes["sex"].codes, shuffled.attributes["sex"].codes
    assert sorted(before) == sorted(after)
    assert 0.35 < (before == after).mean() < 0.65
    assert shuffled.attributes["race"] is records.attributes["race"]


def test_counts_lie_inside_their_bins() -> None:
    low, high = counts_of(128, 6)
    assert low.tolist() == [0, 1, 26, 52, 77, 103]
    assert high.tolist() == [0, 25, 51, 76, 102, 128]
    for size in range(5, 60):
        low, high = counts_of(size, 6)
        assert (low <= high).all()
        bins = [np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]
        assert np.concatenate(bins).tolist() == list(range(size + 1))
        for j in range(1, 6):
            assert (j - 1) * size < 5 * low[j]
            assert 5 * high[j] <= j * size


def test_batches_of_a_bin_hold_as_many_as_it_says() -> None:
    records = people()
    design = replace(SETUP, batch_size=10)
    split = DistributionGame("sex", "male").split(records, design, ROOT)
    expect_apart(split)
    male = records.attributes["sex"].codes == 1
    low, high = counts_of(10, 6)
    for batches in (split.shadow, split.observed):
        having = male[batches.indices].sum(axis=1)
        assert (having >= low[batches.labels]).all()
        assert (having <= high[batches.labels]).all()
    assert np.bincount(split.observed.labels).tolist() == [10] * 6
    assert split.values == bin_names(6)
    assert bin_names(6)[:3] == ("0", "(0, 0.2]", "(0.2, 0.4]")


def test_every_record_of_a_kind_is_as_likely_in_a_mixed_batch() -> None:
    """The first few of a random subset, of which the draw's own order must not decide."""
    records = of_kinds(60, 30)
    codes = records.attributes["sex"].codes
    design = replace(SETUP, batch_size=8, trials=4800, batches=10, held_out=0, shadow=1000)
    split = DistributionGame("sex", "b").split(records, design, ROOT)
    drawn = np.bincount(split.observed.indices.ravel(), minlength=60)[split.parts.private]
    kinds = codes[split.parts.private]
    for kind in (0, 1):
        counts = drawn[kinds == kind]
        assert counts.std() < 0.06 * counts.mean()


def test_fewer_batches_than_ratio_bins_become_one_of_each() -> None:
    design = replace(SETUP, batch_size=5, batches=20)
    split = DistributionGame("race").split(people(), design, ROOT)
    assert split.held.labels.tolist() == list(range(6))
    assert len(split.held.indices) == 6


def test_the_property_is_the_rarest_value_unless_it_is_named() -> None:
    records = people()
    race = records.attributes["race"]
    rarest = race.values[int(np.bincount(race.codes).argmin())]
    split = DistributionGame("race").split(records, replace(SETUP, batch_size=5), ROOT)
    assert split.notes["property"] == rarest
    with pytest.raises(UsageError, match=r"--value d: race has no such value; it has: a, b, c"):
        DistributionGame("race", "d").split(records, SETUP, ROOT)


def test_batches_shrink_to_what_the_records_allow() -> None:
    game = DistributionGame("sex")
    assert game.fitting_batch_size(people(20_000), 1000) == 128
    assert 20 < game.fitting_batch_size(people(4000), 1000) < 45
    fits = game.fitting_batch_size(people(100), 1000)
    assert fits == 8
    assert AttributeGame("sex").fitting_batch_size(people(20_000), 1000) == 16
    assert AttributeGame("sex").fitting_batch_size(people(1000), 1000) <= 4
    game.split(people(100), replace(SETUP, batch_size=fits, held_out=0, shadow=1000), ROOT)


def test_users_are_attacked_with_other_records_than_their_candidates_hold() -> None:
    records = with_users()
    assert records.users is not None
    split = UserGame().split(records, replace(SETUP, trials=50), ROOT)
    assert split.candidates is not None
    candidates = split.candidates.reshape(50, 5, 4)
    users = records.users
    for trial in range(50):
        named = [set(users[candidates[trial, i]]) for i in range(5)]
        assert all(len(one) == 1 for one in named)
        assert len(set.union(*named)) == 5
        secret = split.observed.labels[trial]
        assert set(users[split.observed.indices[trial]]) == named[secret]
        assert not set(split.observed.indices[trial]) & set(candidates[trial, secret])
    attacked = set(users[split.observed.indices.ravel()]) | set(users[split.candidates.ravel()])
    assert not attacked & set(users[split.shadow.indices.ravel()])
    for label in np.unique(split.shadow.labels):
        assert len(set(users[split.shadow.indices[split.shadow.labels == label]].ravel())) == 1
    assert len(np.unique(split.clusters)) == split.notes["attacked_users"]
    assert len(split.own) == len(split.shadow.labels) + 250


def test_shadow_users_stay_within_the_adversarys_records() -> None:
    split = UserGame().split(with_users(), replace(SETUP, shadow=100), ROOT)
    assert split.notes["shadow_users"] == 4


def asked(**settings: Any) -> Design:
    return replace(SETUP, **settings)


@pytest.mark.parametrize(
    ("game", "records", "design", "error", "words"),
    [
        (AttributeGame("sox"), people(), SETUP, UsageError, "no such attribute; there are: sex"),
        (AttributeGame("race"), people(), asked(trials=2), UsageError, "3 values"),
        (AttributeGame("sex"), people(), asked(batch_size=90), NotApplicable, "90 in each set"),
        (AttributeGame("sex"), people(), asked(shadow=6), UsageError, "--shadow 6"),
        (AttributeGame("sex"), of_kinds(400, 0), SETUP, NotApplicable, "one value only"),
        (DistributionGame("sex"), people(), SETUP, UsageError, "take at least 5"),
        (DistributionGame("sex"), people(), asked(batch_size=5, trials=3), UsageError, "6"),
        (UserGame(), people(), SETUP, NotApplicable, "user=COL"),
        (UserGame(), with_users(6), SETUP, NotApplicable, "7 such users are needed"),
        (UserGame(), with_users(), asked(batch_size=13), NotApplicable, "26 records"),
    ],
)
def test_what_cannot_be_dealt(
    game: AttributeGame, records: Records, design: Design, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        game.split(records, design, ROOT)


def test_a_property_among_the_inputs_is_held_and_an_attribute_must_be_there() -> None:
    records = people()
    held = PropertyGame("sex").prepared(records).inputs
    assert (held[:, 1:3] == held[0, 1:3]).all()
    other = [0, *range(3, 11)]
    assert (held[:, other] == records.inputs[:, other]).all()
    assert PropertyGame("sex").split(records, SETUP, ROOT).notes
    dropped = replace(records, features=tuple(f for f in records.features if f.name != "sex"))
    assert PropertyGame("sex").prepared(dropped) is dropped
    with pytest.raises(NotApplicable, match="attack property"):
        AttributeGame("sex").split(dropped, SETUP, ROOT)


@pytest.mark.parametrize(
    ("above", "shares"),
    [
        ([0.9, 0.6, 0.1], [0.1, 0.3, 0.5, 0.1]),
        ([0.5, 0.8, 0.2], np.array([0.5, 0.0, 0.6, 0.2]) / 1.3),  # thresholds that disagree
    ],
)
def test_thresholds_by_hand(above: list[float], shares: list[float]) -> None:
    found = from_thresholds(np.array([above]))
    np.testing.assert_allclose(np.exp(found), 0.999 * np.array([shares]) + 0.001 / 4)


@pytest.mark.parametrize("above", [np.zeros((3, 0)), np.zeros(3)])
def test_no_threshold_is_refused(above: np.ndarray) -> None:
    with pytest.raises(ValueError, match="threshold"):
        from_thresholds(above)


@pytest.mark.parametrize("name", ["logistic", "forest"])
def test_ordered_values_are_found(name: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 5, 800)
    features = values[:, None] + 0.3 * generator.normal(size=(800, 3))
    split = DistributionGame("sex").split(people(), Design(20, bins=5, batches=600), ROOT)
    split = replace(split, shadow=Batches(split.shadow.indices, values[:600]))
    own, released = features[:600], features[600:]
    said = DistributionGame("sex").answers(split, name, own, released, 0).observed
    np.testing.assert_allclose(np.exp(said).sum(axis=1), 1)
    assert (said.argmax(axis=1) == values[600:]).mean() > 0.8
