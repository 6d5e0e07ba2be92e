"""The ascent, the crafted records, and who plays."""

import itertools
from dataclasses import replace

import pytest
import torch
from dp_subject import expect_feasible, sensitivity, starts, table

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.canary import (
    Canary,
    _starts,
    as_they_are,
    ascend,
    choose_canary,
    craft,
)
from gradaudit.audits.dp_audit.game.domain import Domain, PrivateColumn
from gradaudit.data.records import Records
from gradaudit.errors import UsageError

QUICK = DpAuditOptions(restarts=6, iterations=40)


def silent(units: int) -> None:
    """Nobody is told."""


def test_records_play_with_the_value_they_hold() -> None:
    ground = sensitivity("race")
    inputs, labels = starts(table(), 10)
    table_of_gaps = ground.gaps(inputs, labels)
    for i, canary in enumerate(as_they_are(ground, "random", inputs, labels)):
        assert canary.null == table().attributes["race"].codes[i]
        assert canary.gap == table_of_gaps[i, canary.null].max()
        assert canary.gap == table_of_gaps[i, canary.null, canary.alternative]


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


def test_in_the_open_ascent_is_adam_with_a_step_for_each_start_and_column() -> None:
    """Against torch's, on what only rises: the last place is the best."""
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "free")
    begin = records.inputs[:5].double()
    tilt = torch.linspace(-1, 1, 11, dtype=torch.float64)

    def rising(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * tilt).exp().sum(dim=-1)

    rates = torch.tensor([0.1, 0.3, 1.0, 0.1, 0.3], dtype=torch.float64)[:, None] * domain.unit
    cells = [cell.clone().requires_grad_() for cell in begin.flatten()]
    groups = [
        {"params": [cell], "lr": float(rate)}
        for cell, rate in zip(cells, rates.flatten(), strict=True)
    ]
    adam = torch.optim.Adam(groups, eps=1e-30, maximize=True)
    for _ in range(4):
        adam.zero_grad()
        rising(torch.stack(cells).view(5, 11)).sum().backward()
        adam.step()
    expected = torch.stack(cells).view(5, 11).detach()
    torch.testing.assert_close(ascend(rising, domain, begin, 4), expected)


def test_slopes_that_are_not_finite_count_as_none() -> None:
    """Of |x|^p with p below 1 the slope at 0 is infinite, and of 0 · ∞ no number."""
    records = table()
    domain = Domain.of(records, PrivateColumn.of(records, "sex"), "free")
    begin = torch.zeros(1, 11, dtype=torch.float64)

    def rooted(inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, 0].sqrt() - inputs[:, 3].sqrt() + inputs[:, 4]

    found = ascend(rooted, domain, begin, 1)[0]
    assert found[[0, 3]].tolist() == [0, 0]
    assert found[4] == pytest.approx(0.1)


def test_starts_are_half_the_best_and_half_any_in_turns() -> None:
    gaps = [0.2, 0.9, 0.1, 0.5]
    none = torch.zeros(0)
    ordinary = [Canary(str(place), 0, 1, gap, none, none) for place, gap in enumerate(gaps)]
    assert [start.kind for start in _starts(ordinary, 10)] == [*"1031022310"]
    assert len(_starts(ordinary, 3)) == 3


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attribute", "where"), [("sex", "feasible"), ("race", "free"), ("age", "feasible")]
)
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


@pytest.mark.slow
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
    ages, hours = (torch.linspace(float(low[i]), float(high[i]), 5) for i in (0, 3))
    sexes, races, jobs = torch.eye(2), torch.eye(3), torch.eye(4)
    rows = [
        torch.cat([age[None], sex, hour[None], race, job])
        for age, hour, sex, race, job in itertools.product(ages, hours, sexes, races, jobs)
    ]
    return torch.stack(rows).double(), torch.full((len(rows),), label)


@pytest.mark.slow
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
        QUICK.model_copy(update={"record": wanted, **effort}),
        seed,
        silent,
        pool=30,
    )
    assert held.typical.tolist() == sorted(held.typical.tolist())
    return held.by_kind, held.played


@pytest.mark.slow
def test_all_kinds_of_records_stand_side_by_side() -> None:
    by_kind, played = canaries_of("crafted")
    assert list(by_kind) == ["random", "nearest", "crafted"]
    assert played is by_kind["crafted"]
    assert played.gap > by_kind["random"].gap
    assert played.gap > by_kind["nearest"].gap
    inputs = table().inputs.double()
    for kind in ("random", "nearest"):
        assert (inputs == by_kind[kind].inputs).all(dim=1).any()


@pytest.mark.slow
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
