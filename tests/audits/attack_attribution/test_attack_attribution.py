"""Rows in sums of updates: what is recovered is there, and what is linked is one client's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import run as command
from torch import Tensor, nn

from gradaudit.audits.attack_attribution import AttackAttribution, AttributionOptions
from gradaudit.audits.attack_attribution.measure import AttributionScore, rows_of, scored
from gradaudit.audits.attack_attribution.recovery import (
    RoundSum,
    ValueGrid,
    groups,
    recovered,
    taking_part,
)
from gradaudit.audits.rows import Rows
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement, Report
from gradaudit.subject import Subject

INPUTS, UNITS = 24, 40
BITS = ValueGrid.of(torch.tensor([[0.0], [1.0]]).repeat(20, INPUTS).double())
NUMBERS = ValueGrid.of(torch.randn(500, INPUTS, dtype=torch.float64) * 3)


def bits(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 2, (count, INPUTS), generator=generator).double()


def round_of(shares: Tensor, rows: Tensor, active: Tensor) -> RoundSum:
    """A round whose units' updates are combinations of rows that did or did not activate them.

    A factor makes them numbers of double precision, which whole numbers would not seem to be.

    Shares and pre-activations (1 or -1) are (units, rows).
    """
    shares = shares * torch.pi
    extended = torch.cat([rows, torch.ones(len(rows), 1).double()], dim=1)
    update = shares @ extended
    both = torch.linalg.pinv(extended) @ active.T
    weight, bias = both[:-1].T, both[-1]
    return RoundSum.of(weight, bias, [update[:, :-1], update[:, -1]])


def test_a_row_that_alone_activates_a_unit_is_recovered_and_a_mixture_is_not() -> None:
    rows, shares = bits(5), torch.zeros(UNITS, 5).double()
    shares[:4] = torch.diag(torch.tensor([0.3, -1.2, 0.7, 2.0, 0.0]).double())[:4]
    shares[4, :2] = 0.5
    shares[5:, 3:] = torch.rand(UNITS - 5, 2, dtype=torch.float64)
    found = recovered([round_of(shares, rows, torch.ones(UNITS, 5).double())], BITS)
    assert {tuple(row) for row in found.round().tolist()} == {tuple(r) for r in rows[:4].tolist()}
    assert torch.cdist(found, rows[:4]).amin(dim=1).max() < 1e-9


def test_rows_of_numbers_have_to_be_seen_in_two_rounds() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(4, INPUTS, generator=generator, dtype=torch.float64)
    first, again = (torch.zeros(UNITS, 4).double() for _ in range(2))
    first[0, 0] = first[1, 1] = again[5, 1] = 1.0
    first[2, 2:] = torch.tensor([0.5, 0.5])
    first[3, 2:] = torch.tensor([1.0, 1.0])  # the same mixture at two units of one round
    again[2, 2:] = torch.tensor([0.2, 0.5])
    active = torch.ones(UNITS, 4).double()
    assert not NUMBERS.tells
    found = recovered([round_of(each, rows, active) for each in (first, again)], NUMBERS)
    assert found.numpy() == pytest.approx(rows[1:2].numpy(), abs=1e-9)


def test_the_rows_of_a_unit_are_those_of_its_combination() -> None:
    rows = bits(8)
    shares = (torch.rand(UNITS, 8, generator=torch.Generator().manual_seed(3)) > 0.6).double()
    shares[0] = 0
    shares[0, 7] = 1.0
    given = round_of(shares, rows, torch.ones(UNITS, 8).double())
    part, whole = taking_part(given, rows)
    used = shares.any(dim=1)
    assert whole[used].all()
    assert torch.equal(part[used], shares.bool()[used])
    long = torch.rand(8, 500, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    part, whole = taking_part(round_of(shares, long, torch.ones(UNITS, 8).double()), long)
    assert whole[used].all()
    assert torch.equal(part[used], shares.bool()[used])
    part, whole = taking_part(given, rows[:7])  # a row that is not recovered
    assert not whole[shares[:, 7] > 0].any()


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_are_groups_of_their_own(rows: int) -> None:
    given = round_of(torch.ones(UNITS, 3).double(), bits(3), torch.ones(UNITS, 3).double())
    assert groups([given], bits(3)[:rows]).tolist() == list(range(rows))


def test_a_row_that_came_in_later_is_linked_to_the_one_that_was_active_from_the_start() -> None:
    """And to several only once these are one client's; two that were active link nothing."""
    shares, active = torch.zeros(UNITS, 6).double(), -torch.ones(UNITS, 6).double()
    for unit, (first, later) in enumerate(([[0], [1]], [[0, 1], [2]], [[3, 4], [5]])):
        shares[unit, [*first, *later]] = 1.0
        active[unit, first] = 1.0
    group = groups([round_of(shares, bits(6), active)], bits(6))
    assert len({*group[:3]}) == 1
    assert len({*group[2:]}) == 4


def test_by_chance_is_what_permuted_clients_give() -> None:
    """Against 20,000 permutations, of pairs in groups of unequal size."""
    rows, draws = bits(9), np.random.default_rng(0)
    group, owners = np.array([0, 0, 0, 1, 1, 2, 3, 4, 4]), np.array([0, 0, 1, 1, 1, 1, 2, 2, 2])
    score = scored(rows, group, rows, owners)
    same = group[:, None] == group
    upper = np.triu(np.ones((9, 9), bool), 1)
    permuted = [draws.permutation(owners) for _ in range(20_000)]
    right = np.array([(upper & same & (o[:, None] == o)).sum() for o in permuted])
    found = {row.metric: row for row in rows_of(Rows(AttackAttribution), [score])}
    assert found["pair_precision"].value == score.right / (upper & same).sum()
    expected = right.mean() / (upper & same).sum()
    assert found["pair_precision"].details["by_chance"] == pytest.approx(expected, abs=0.01)
    expected = right.mean() / (upper & (owners[:, None] == owners)).sum()
    assert found["pair_recall"].details["by_chance"] == pytest.approx(expected, abs=0.01)


def test_recovered_rows_are_compared_with_all_clients_rows() -> None:
    truth = bits(6)
    given = torch.cat([truth[[0, 1, 4]], 1 - truth[:1], truth[1:2] + 1e-5])
    score = scored(given, np.array([0, 0, 0, 1, 2]), truth, np.array([0, 0, 0, 1, 1, 1]))
    assert score == AttributionScore(
        6, found=3, invented=1, grouped=3, right=1, owned=3, possible=6
    )


def digits(
    width: int = 600, records: int = 1200, norm: nn.Module | None = None, **more: Any
) -> Subject:
    """An untrained net on pictures of nine grey levels, in training mode with a norm."""
    torch.manual_seed(0)
    first = [nn.Flatten(), nn.Linear(64, width), norm or nn.Identity()]
    model = nn.Sequential(*first, nn.ReLU(), nn.Linear(width, 4))
    patterns = torch.randn(4, 64)
    labels = torch.arange(records) % 4
    noisy = (patterns[labels] + torch.randn(records, 64)).sigmoid()
    inputs = (noisy * 8).round().reshape(records, 1, 8, 8) / 8
    target = Target(model, CrossEntropy(), mode="train" if norm else "eval")
    return Subject((target,), Records(inputs, labels), target.layers, **more)


def measured(subject: Subject, **options: Any) -> dict[str, Measurement]:
    usual = {"rounds": 10, "repeats": 2, "others": 1, "rate": 1.0, "batch_size": 10}
    audit = AttackAttribution(AttributionOptions(**{**usual, **options}))
    return {row.metric: row for row in audit.run(subject, Silent())}


@pytest.mark.slow
def test_sums_of_two_clients_give_rows_away_and_whose_they_are() -> None:
    rows = measured(digits())
    assert rows["rows_invented"].value == 0
    assert (rows["rows_recovered"].value or 0) > 0.5
    assert rows["pair_precision"].value == 1
    recall, chance = rows["pair_recall"].value, rows["pair_recall"].details["by_chance"]
    assert (recall or 0) > 1.5 * float(str(chance))


@pytest.mark.slow
def test_more_clients_give_fewer_rows_away_and_gradients_link_none() -> None:
    few, many = (measured(digits(), others=others, repeats=1) for others in (1, 14))
    assert (many["rows_recovered"].value or 0) < (few["rows_recovered"].value or 0) / 3
    gradients = measured(
        digits(), algorithm="fedsgd", local_batch=None, local_steps=None, repeats=1
    )
    assert (gradients["rows_recovered"].value or 0) > 0
    assert gradients["pair_precision"].status == "skipped"


@pytest.mark.slow
def test_noise_on_updates_hides_all_rows() -> None:
    noisy = digits(defenses=(parse_defense("dp:clip=1000,sigma=0.01,per=release"),))
    assert measured(noisy, repeats=1)["rows_recovered"].value == 0


def test_records_that_a_batch_normalises_are_attacked_in_batches() -> None:
    rows = measured(digits(40, 60, norm=nn.BatchNorm1d(40)), rounds=1)
    assert rows["rows_recovered"].status == "measured"


@pytest.mark.parametrize(
    ("subject", "options", "why"),
    [
        (digits(records=20), {}, "the clients of a sum have 20 records, and the data has 20"),
        (digits(hidden=("1",)), {}, "no fully connected layer with bias that shares its update"),
    ],
)
def test_what_it_does_not_apply_to_is_said(
    subject: Subject, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotApplicable, match=why):
        measured(subject, **options)


def test_noise_on_single_records_needs_gradients_and_ends_no_scan() -> None:
    """`dp:clip=1,sigma=0.1` as init spells it: local training is this audit's own default."""
    defended = replace(digits(), defenses=(parse_defense("dp:clip=1,sigma=0.1"),))
    with pytest.raises(NotApplicable, match=r"clips single records.*--algorithm fedsgd"):
        measured(defended)
    with pytest.raises(UsageError, match="use per=release"):
        measured(defended, algorithm="fedavg")


@pytest.mark.slow
def test_a_sweep_varies_the_number_of_clients(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    sweep = ("sweep", "attack", "attribution", "--over", "others=1,3", "--rounds", "2")
    done = command(*sweep, "-m", "zoo:mlp", "-d", "digits", "--repeats", "2", "-o", str(file))
    assert done.status == 0, done.err
    rows = Report.from_file(file).select("attack.rows_recovered")
    assert {tuple(row.variant.values()) for row in rows} == {
        (),
        (1,),
        (3,),
    }  # and the riskiest as a headline
    assert {row.details["clients"] for row in rows} == {2, 4}
