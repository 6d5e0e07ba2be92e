"""The ascent, the crafted records, and who plays."""

import itertools
from dataclasses import replace

import pytest
import torch
from dp_subject import (
    Release,
    clip,
    domain,
    expect_feasible,
    from_file,
    hypotheses,
    sensitivity,
    starts,
    subject,
    table,
)
from torch import Generator, Tensor

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.canary import (
    Canary,
    _starts,
    as_they_are,
    ascend,
    choose_canary,
    craft,
)
from gradaudit.audits.dp_audit.game.domain import DomainName, PrivateColumn
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.play import Rules, play
from gradaudit.audits.dp_audit.game.sensitivity import RecordGradients, RecordSensitivity
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
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
    worth = torch.tensor([1.0, 9, 9, -1, 0, 2, 1, 0, 0, 0, 3], dtype=torch.float64)
    begin = records.inputs[:12].double()
    found = ascend(lambda inputs: inputs @ worth, domain(), begin, 100)
    low, high = records.inputs.double().amin(0), records.inputs.double().amax(0)
    assert found[:, 0].tolist() == [high[0].item()] * 12
    assert found[:, 3].tolist() == [low[3].item()] * 12
    assert found[:, 4:7].argmax(dim=1).tolist() == [1] * 12
    assert found[:, 7:].argmax(dim=1).tolist() == [3] * 12
    assert torch.equal(found[:, 1:3], begin[:, 1:3])
    expect_feasible(found, records)


def test_in_the_open_ascent_is_adam_with_a_step_for_each_start_and_column() -> None:
    """Against torch's, on what only rises: the last place is the best."""
    free, begin = domain(name="free"), table().inputs[:5].double()
    tilt = torch.linspace(-1, 1, 11, dtype=torch.float64)

    def rising(inputs: Tensor) -> Tensor:
        return (inputs * tilt).exp().sum(dim=-1)

    rates = torch.tensor([0.1, 0.3, 1.0, 0.1, 0.3], dtype=torch.float64)[:, None] * free.unit
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
    torch.testing.assert_close(ascend(rising, free, begin, 4), expected)


def test_slopes_that_are_not_finite_count_as_none() -> None:
    """Of |x|^p with p below 1 the slope at 0 is infinite, and of 0 · ∞ no number."""

    def rooted(inputs: Tensor) -> Tensor:
        return inputs[:, 0].sqrt() - inputs[:, 3].sqrt() + inputs[:, 4]

    found = ascend(rooted, domain(name="free"), torch.zeros(1, 11, dtype=torch.float64), 1)[0]
    assert found[[0, 3]].tolist() == [0, 0]
    assert found[4] == pytest.approx(0.1)


def test_starts_are_half_the_best_and_half_any_in_turns() -> None:
    gaps = [0.2, 0.9, 0.1, 0.5]
    none = torch.zeros(0)
    ordinary = [Canary(str(place), 0, 1, gap, none, none) for place, gap in enumerate(gaps)]
    assert [start.kind for start in _starts(ordinary, 10)] == [*"1031022310"]
    assert len(_starts(ordinary, 3)) == 3


def test_ascent_never_ends_worse_and_survives_what_is_not_finite() -> None:
    begin = table().inputs[:9].double()

    def cliff(inputs: Tensor) -> Tensor:
        return (inputs[:, 0] - 1.9).log() - (inputs[:, 3] * 50).sin()

    before = cliff(begin).nan_to_num(-torch.inf)
    after = cliff(ascend(cliff, domain(name="free"), begin, 30)).nan_to_num(-torch.inf)
    assert (after >= before).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attribute", "where"), [("sex", "feasible"), ("race", "free"), ("age", "feasible")]
)
def test_crafted_records_move_more_and_stay_in_their_domain(
    attribute: str, where: DomainName
) -> None:
    records, ground = table(), sensitivity(attribute)
    inputs, labels = starts(records, 6)
    within = domain(attribute, where)
    canaries = craft(ground, within, inputs, labels, iterations=40, advance=silent)
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
@pytest.mark.parametrize("attribute", ["sex", "race"])
def test_no_feasible_record_moves_much_more(attribute: str) -> None:
    records, ground = table(), sensitivity(attribute)
    best = max(ground.gaps(*every_record(records, label)).max().item() for label in (0, 1))
    begin = starts(records, 16)
    canaries = craft(ground, domain(attribute), *begin, iterations=60, advance=silent)
    assert canaries[0].gap > 0.95 * best


def every_record(records: Records, label: int) -> tuple[Tensor, Tensor]:
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
    ground, begin = sensitivity("sex"), starts(table(), 5)
    whole, chunked = (
        craft(replace(ground, memory=memory), domain(), *begin, iterations=10, advance=silent)
        for memory in (1 << 24, 1)
    )
    assert [c.gap for c in whole] == pytest.approx([c.gap for c in chunked])


def canaries_of(wanted: str, seed: int = 0, **effort: int) -> tuple[dict[str, Canary], Canary]:
    options = QUICK.model_copy(update={"record": wanted, **effort})
    held = choose_canary(sensitivity(), domain(), table(), options, seed, silent, pool=30)
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
    apart = domain().apart(inputs, played.inputs)
    nearest = domain().apart(by_kind["nearest"].inputs[None], played.inputs)
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


def mean(gradients: Tensor, generator: Generator) -> Tensor:
    """Noise on the sum, and then a batch's size that nobody is to know."""
    return total(gradients, generator) / len(gradients)


def total(gradients: Tensor, generator: Generator) -> Tensor:
    return clip(gradients, 1).sum(0) + 3 * torch.randn(gradients.shape[1], generator=generator)


def test_a_record_and_its_absence_lie_apart_as_their_releases_do() -> None:
    """Against clipped means in float64, of the batch and of the companions alone."""
    records, target = table(), subject().target
    gradients = RecordGradients.of(target, records.inputs, records.labels)
    mechanism, options = (
        ClippedNoise(clip=0.5, sigma=1),
        DpAuditOptions(relation="remove", companions=3),
    )
    column = PrivateColumn.of_presence()
    found = RecordSensitivity.of(gradients, records, column, mechanism, options, 1 << 24, 1)
    inputs, labels = starts(records, 5)
    own, others = (clip(g.double(), 0.5) for g in (gradients(inputs, labels), found.companions))
    apart = (own + others.sum(0)) / 4 - others.sum(0) / 3
    table_of_gaps = found.gaps(inputs, labels)
    torch.testing.assert_close(table_of_gaps[:, 0, 1], apart.norm(dim=1))
    torch.testing.assert_close(table_of_gaps[:, 1, 0], apart.norm(dim=1))
    objective = found.objective(found.distances[0], torch.tensor([[0, 1]] * 5), labels)
    torch.testing.assert_close(objective(inputs), (own / 4).square().sum(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "tells"), [(mean, True), (total, False)])
def test_a_size_that_is_divided_by_shows_when_a_record_is_removed(
    function: Release, tells: bool
) -> None:
    """By the noise's scale, a third above that of one record more; it hides all else."""
    played = hypotheses(0.8, elements=200, companions=3)
    found = Hypotheses(played.alternatives[0], 0 * played.alternatives, played.companions, True)
    mechanism, rules = from_file(function), Rules(1000, 1e-5)
    assert play(mechanism, played, rules, 2).scores["projection"].bound.value < 1.5
    bound = play(mechanism, found, rules, 2).scores["projection"].bound
    assert (bound.value > 6) is tells
