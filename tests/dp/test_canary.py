import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_subject import FEATURES, subject, table

from gradaudit.data.records import Attribute, Feature, Records
from gradaudit.dp.canary import Canary, as_they_are, ascend, choose_canary, craft
from gradaudit.dp.domain import MAX_VALUES, Domain, PrivateColumn
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.sensitivity import (
    Design,
    RecordGradients,
    RecordSensitivity,
    between_two_values,
    cosine_distance,
    squared_gap,
)
from gradaudit.errors import NotApplicable, UsageError

PLACES = ("sum", "release")
QUICK = Design(restarts=6, iterations=40, pool=30)


def silent(units: int) -> None:
    """Nobody is told."""


def sensitivity(attribute: str = "sex", per: str = "sum", companions: int = 0) -> RecordSensitivity:
    audited = subject(attribute)
    records = audited.records
    gradients = RecordGradients.of(audited.target, records.inputs, records.labels)
    others = gradients(records.inputs[:companions], records.labels[:companions])
    mean = ClippedNoise(clip=0.5, sigma=1, per=per).noiseless
    return RecordSensitivity(
        gradients,
        PrivateColumn.of(records, attribute),
        mean,
        (squared_gap(mean, others), cosine_distance),
        others.detach(),
        memory=1 << 24,
    )


def starts(records: Records, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return records.inputs[:count].double(), records.labels[:count]


# The private column


def test_a_category_can_be_any_of_its_values() -> None:
    column = PrivateColumn.of(table(), "race")
    assert column.names == ("a", "b", "c")
    inputs = table().inputs.double()
    variants = column.variants(inputs)
    assert variants.shape == (60, 3, 11)
    for value in range(3):
        expected = inputs.clone()
        expected[:, 4:7] = torch.eye(3, dtype=torch.float64)[value]
        assert torch.equal(variants[:, value], expected)
    codes = table().attributes["race"].codes
    np.testing.assert_array_equal(column.value_in(inputs), codes)


def test_a_number_can_be_what_was_observed() -> None:
    records = table()
    records.inputs[:, 3] = torch.tensor([0.25, -1.0, 1.0]).repeat(20)
    column = PrivateColumn.of(records, "hours")
    assert column.values[:, 0].tolist() == [-1.0, 0.25, 1.0]
    assert column.names == ("-1", "0.25", "1")
    assert column.value_in(records.inputs[:3].double()).tolist() == [1, 0, 2]
    named = Attribute(np.tile([1, 0, 2], 20), ("low", "mid", "high"))
    records = replace(records, attributes={"hours": named})
    assert PrivateColumn.of(records, "hours").names == ("low", "mid", "high")


def test_many_numbers_are_represented_with_their_extremes() -> None:
    records = table(300)
    column = PrivateColumn.of(records, "age")
    ages = records.inputs[:, 0].double()
    assert len(column) == MAX_VALUES
    assert column.values.min() == ages.min()
    assert column.values.max() == ages.max()
    assert torch.isin(column.values[:, 0], ages).all()


def test_what_is_no_input_column_is_not_applicable() -> None:
    with pytest.raises(NotApplicable, match=r"'income' is not a column of the inputs.*age, sex"):
        PrivateColumn.of(table(), "income")
    tokens = replace(table(), inputs=torch.zeros(5, 11, dtype=torch.int64))
    with pytest.raises(NotApplicable, match="not a column"):
        PrivateColumn.of(tokens, "sex")


def test_a_single_value_cannot_be_replaced() -> None:
    records = table()
    records.inputs[:, 0] = 1
    with pytest.raises(NotApplicable, match="'age' has one value only"):
        PrivateColumn.of(records, "age")


# The domain


def expect_feasible(inputs: torch.Tensor, records: Records) -> None:
    for feature in records.features:
        block = inputs[:, list(feature.positions)]
        if feature.values:
            assert ((block == 0) | (block == 1)).all(), feature.name
            assert (block.sum(dim=1) == 1).all(), feature.name
        else:
            observed = records.inputs[:, list(feature.positions)].double()
            assert (block >= observed.min()).all(), feature.name
            assert (block <= observed.max()).all(), feature.name


def test_projection_lands_on_feasible_records_and_leaves_them() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "feasible")
    wild = 5 * torch.randn(50, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wild[:, 1:3] = torch.tensor([0.0, 1.0], dtype=torch.float64)
    landed = domain.project(wild)
    expect_feasible(landed, records)
    assert torch.equal(domain.project(landed), landed)
    inputs = records.inputs.double()
    assert torch.equal(domain.project(inputs), inputs)


def test_the_free_domain_is_everywhere() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "free")
    wild = 1e6 * torch.ones(1, 11, dtype=torch.float64)
    assert torch.equal(domain.project(wild), wild)
    assert domain.unit[[1, 2]].tolist() == [0, 0]
    assert (domain.unit[[0, 3, *range(4, 11)]] > 0).all()


def test_pictures_stay_between_black_and_white() -> None:
    feature = Feature("flag", (0,), (0.0, 1.0))
    pixels = torch.rand(6, 1, 3, 3, generator=torch.Generator().manual_seed(0)) * 0.5
    records = Records(pixels, torch.zeros(6, dtype=torch.int64), features=(feature,))
    domain = Domain.of(records, PrivateColumn.of(records, "flag"), "feasible")
    wild = torch.tensor([[0.2, *[-1.0] * 4, *[3.0] * 4]], dtype=torch.float64)
    assert domain.project(wild)[0, 1:].tolist() == [0.0] * 4 + [1.0] * 4


def test_distance_to_a_record_is_counted_in_units_without_the_private_column() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "feasible")
    here = records.inputs[:2].double()
    there = here.clone()
    there[0, 1:3] = 1 - there[0, 1:3]
    there[1, 0] += 3 * domain.unit[0]
    assert domain.apart(there[:1], here[0]).item() == 0
    assert domain.apart(there[1:], here[1]).item() == pytest.approx(9)
    assert domain.unit[0].item() == pytest.approx(records.inputs[:, 0].std(correction=0).item())


# The gaps


@pytest.mark.parametrize("per", PLACES)
def test_gaps_are_distances_of_noiseless_releases(per: str) -> None:
    ground = sensitivity("race", per, companions=3)
    inputs, labels = starts(table(), 4)
    found = replace(ground, memory=1).gaps(inputs, labels)
    mechanism = ClippedNoise(clip=0.5, sigma=1, per=per)
    for record in range(4):
        variants = ground.column.variants(inputs)[record]
        releases = [
            mechanism.mean(
                torch.cat(
                    [ground.gradients(row[None], labels[record : record + 1]), ground.companions]
                )
            )
            for row in variants
        ]
        for i in range(3):
            for j in range(3):
                expected = (releases[i] - releases[j]).norm().item()
                assert found[record, i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_records_play_with_the_value_they_hold() -> None:
    ground = sensitivity("race")
    inputs, labels = starts(table(), 10)
    table_of_gaps = ground.gaps(inputs, labels)
    for i, canary in enumerate(as_they_are(ground, "random", inputs, labels)):
        assert canary.null == table().attributes["race"].codes[i]
        assert canary.gap == table_of_gaps[i, canary.null].max()
        assert canary.gap == table_of_gaps[i, canary.null, canary.alternative]


@pytest.mark.parametrize("which", [0, 1], ids=["gap", "cosine"])
@pytest.mark.parametrize("per", PLACES)
def test_the_objectives_gradient_is_that_of_finite_differences(which: int, per: str) -> None:
    ground = sensitivity("race", per, companions=2)
    inputs, labels = starts(table(), 3)
    inputs = inputs + 0.1 * torch.randn(
        inputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    pairs = torch.tensor([[0, 1], [2, 0], [1, 2]])
    objective = ground.objective(ground.distances[which], pairs, labels)
    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(leaf).sum(), leaf)
    step = 1e-6
    for position in range(11):
        aside = torch.zeros(11, dtype=torch.float64)
        aside[position] = step
        with torch.no_grad():
            difference = (objective(inputs + aside) - objective(inputs - aside)) / (2 * step)
        torch.testing.assert_close(slope[:, position], difference, rtol=1e-5, atol=1e-8)
    assert (slope[:, ground.column.positions] == 0).all()
    assert (slope != 0).any()


def test_the_objectives_are_their_definitions() -> None:
    ground = sensitivity("sex", "sum")
    inputs, labels = starts(table(), 5)
    pairs = torch.tensor([[0, 1]]).expand(5, 2)
    first, second = (
        ground.gradients(ground.column.put(inputs, ground.column.values[i]), labels) for i in (0, 1)
    )
    gap = ground.objective(ground.distances[0], pairs, labels)(inputs)
    torch.testing.assert_close(gap.sqrt(), ground.gaps(inputs, labels)[:, 0, 1])
    angle = ground.objective(ground.distances[1], pairs, labels)(inputs)
    expected = 1 - (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))
    torch.testing.assert_close(angle, expected)


# The ascent


def test_ascent_finds_the_best_corner_and_category() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "feasible")
    worth = torch.tensor([1.0, 9, 9, -1, 0, 2, 1, 0, 0, 0, 3], dtype=torch.float64)
    begin = records.inputs[:12].double()
    found = ascend(lambda inputs: inputs @ worth, domain, begin, 100)
    low, high = records.inputs.double().amin(0), records.inputs.double().amax(0)
    assert found[:, 0].tolist() == [high[0].item()] * 12
    assert found[:, 3].tolist() == [low[3].item()] * 12
    assert found[:, 4:7].argmax(dim=1).tolist() == [1] * 12
    assert found[:, 7:].argmax(dim=1).tolist() == [3] * 12
    assert torch.equal(found[:, 1:3], begin[:, 1:3])
    expect_feasible(found, records)


def test_ascent_finds_a_peak_in_the_open() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "free")
    peak = torch.linspace(-3, 3, 11, dtype=torch.float64)
    free = domain.unit > 0

    def objective(inputs: torch.Tensor) -> torch.Tensor:
        return -(inputs - peak)[:, free].square().sum(dim=1)

    found = ascend(objective, domain, records.inputs[:6].double(), 400)
    assert objective(found).max() > -0.05
    assert (objective(found) > objective(records.inputs[:6].double())).all()


def test_ascent_never_ends_worse_and_survives_what_is_not_finite() -> None:
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "free")
    begin = records.inputs[:9].double()

    def cliff(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs[:, 0] - 1.9).log() - (inputs[:, 3] * 50).sin()

    before = cliff(begin).nan_to_num(-torch.inf)
    after = cliff(ascend(cliff, domain, begin, 30)).nan_to_num(-torch.inf)
    assert (after >= before).all()


# Crafting


@pytest.mark.parametrize("attribute", ["sex", "race", "age"])
@pytest.mark.parametrize("where", ["feasible", "free"])
def test_crafted_records_move_more_and_stay_in_their_domain(attribute: str, where: str) -> None:
    records = table()
    ground = sensitivity(attribute)
    domain = Domain.of(records, ground.column, where)
    inputs, labels = starts(records, 6)
    canaries = craft(ground, domain, inputs, labels, iterations=40, advance=silent)
    before = ground.gaps(inputs, labels).flatten(1).amax(dim=1)
    assert canaries[0].gap > (1.02 if where == "feasible" else 1.2) * before.max()
    assert [c.gap for c in canaries] == sorted((c.gap for c in canaries), reverse=True)
    crafted = torch.stack([canary.inputs for canary in canaries])
    if where == "feasible":
        expect_feasible(crafted, records)
    else:
        low, high = records.inputs.amin(0), records.inputs.amax(0)
        assert ((crafted < low) | (crafted > high)).any()
    for canary in canaries:
        gaps = ground.gaps(canary.inputs[None], canary.label[None])[0]
        assert gaps[canary.null, canary.alternative].item() == pytest.approx(canary.gap)
        assert canary.gap == pytest.approx(gaps.max().item())
        assert canary.gap <= 2 * 0.5


@pytest.mark.parametrize("attribute", ["sex", "race", "age"])
def test_no_feasible_record_moves_much_more(attribute: str) -> None:
    records = table()
    ground = sensitivity(attribute)
    domain = Domain.of(records, ground.column, "feasible")
    best = max(ground.gaps(*every_record(records, label)).max().item() for label in (0, 1))
    canaries = craft(ground, domain, *starts(records, 16), iterations=60, advance=silent)
    assert canaries[0].gap > 0.95 * best


def every_record(records: Records, label: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A grid of numbers with every combination of categories."""
    low, high = records.inputs.amin(0), records.inputs.amax(0)
    ages, hours = (torch.linspace(float(low[i]), float(high[i]), 8) for i in (0, 3))
    sexes, races, jobs = torch.eye(2), torch.eye(3), torch.eye(4)
    rows = [
        torch.cat([age[None], sex, hour[None], race, job])
        for age, hour, sex, race, job in itertools.product(ages, hours, sexes, races, jobs)
    ]
    return torch.stack(rows).double(), torch.full((len(rows),), label)


def test_crafting_in_chunks_gives_the_same() -> None:
    records = table()
    ground = sensitivity("sex")
    domain = Domain.of(records, ground.column, "feasible")
    inputs, labels = starts(records, 5)
    whole, chunked = (
        craft(replace(ground, memory=memory), domain, inputs, labels, iterations=10, advance=silent)
        for memory in (1 << 24, 1)
    )
    assert len(whole) == len(chunked) == 5
    assert max(c.gap for c in chunked) > 0


def canaries_of(wanted: str, seed: int = 0, **effort: int) -> tuple[dict[str, Canary], Canary]:
    ground = sensitivity("sex")
    held = choose_canary(
        ground,
        Domain.of(table(), ground.column, "feasible"),
        table(),
        replace(QUICK, record=wanted, **effort),
        seed,
        silent,
    )
    assert held.typical.tolist() == sorted(held.typical.tolist())
    return held.by_kind, held.played


def test_all_kinds_of_records_stand_side_by_side() -> None:
    by_kind, played = canaries_of("crafted")
    assert list(by_kind) == ["random", "nearest", "crafted"]
    assert played is by_kind["crafted"]
    assert played.gap > by_kind["random"].gap
    assert played.gap > by_kind["nearest"].gap
    inputs = table().inputs.double()
    for kind in ("random", "nearest"):
        assert (inputs == by_kind[kind].inputs).all(dim=1).any()


def test_the_nearest_record_is_the_nearest() -> None:
    by_kind, _ = canaries_of("crafted")
    domain = Domain.of(table(), PrivateColumn.of(table(), "sex"), "feasible")
    apart = domain.apart(table().inputs.double(), by_kind["crafted"].inputs)
    nearest = domain.apart(by_kind["nearest"].inputs[None], by_kind["crafted"].inputs)
    assert nearest.item() == apart.min().item()


def test_a_record_can_be_asked_for() -> None:
    by_kind, played = canaries_of("7", restarts=0)
    assert list(by_kind) == ["random", "7"]
    assert torch.equal(played.inputs, table().inputs[7].double())
    assert played.label == table().labels[7]
    assert played.kind == "7"


def test_the_random_record_is_random() -> None:
    drawn = {tuple(canaries_of("random", seed, restarts=0)[1].inputs.tolist()) for seed in range(6)}
    assert len(drawn) > 3


@pytest.mark.parametrize(
    ("wanted", "restarts", "message"),
    [
        ("60", 0, "the last of 60 records is 59"),
        ("-1", 0, "write random, crafted or the index"),
        ("best", 0, "write random, crafted or the index"),
        ("crafted", 0, "--restarts 0 leaves crafting out"),
    ],
)
def test_a_wrong_record_is_told(wanted: str, restarts: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        canaries_of(wanted, restarts=restarts)


def test_the_table_of_the_tests_is_feasible_itself() -> None:
    expect_feasible(table().inputs.double(), table())
    assert sum(len(feature.positions) for feature in FEATURES) == 11


def test_equal_releases_still_leave_two_different_values() -> None:
    """A coin that falls on noise hides what the mechanism would release: the pair must differ."""
    gaps = between_two_values(torch.zeros(3, 4, 4))
    assert (gaps.flatten(1).argmax(dim=1) == 1).all()
    assert (gaps[:, 2].argmax(dim=1) == 0).all()
    assert (gaps.diagonal(dim1=1, dim2=2) < 0).all()
