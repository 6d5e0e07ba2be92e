"""What a record may look like: the values of its private column, and the rest of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_subject import domain as domain_of
from dp_subject import expect_feasible, table

from gradaudit.audits.dp_audit.game.domain import MAX_VALUES, Domain, PrivateColumn
from gradaudit.data.records import Attribute, Feature, Records
from gradaudit.errors import NotApplicable


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


def test_what_is_no_input_column_is_not_applicable() -> None:
    with pytest.raises(NotApplicable, match=r"'income' is not a column of the inputs.*age, sex"):
        PrivateColumn.of(table(), "income")
    codes = replace(table(), inputs=torch.zeros(5, 11, dtype=torch.int64))
    with pytest.raises(NotApplicable, match="take 'sex' one-hot"):
        PrivateColumn.of(codes, "sex")
    with pytest.raises(NotApplicable, match=r"'sex' is not a column of the inputs.*none"):
        PrivateColumn.of(replace(codes, features=()), "sex")
    records = table()
    records.inputs[:, 0] = 1
    with pytest.raises(NotApplicable, match="'age' has one value only"):
        PrivateColumn.of(records, "age")


def test_projection_lands_on_feasible_records_and_leaves_them() -> None:
    records, domain = table(), domain_of()
    wild = 5 * torch.randn(50, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wild[:, 1:3] = torch.tensor([0.0, 1.0], dtype=torch.float64)
    expect_feasible(records.inputs.double(), records)
    landed = domain.project(wild)
    expect_feasible(landed, records)
    assert torch.equal(domain.project(landed), landed)
    inputs = records.inputs.double()
    assert torch.equal(domain.project(inputs), inputs)


def test_the_free_domain_is_everywhere() -> None:
    domain = domain_of(name="free")
    wild = 1e6 * torch.ones(1, 11, dtype=torch.float64)
    assert torch.equal(domain.project(wild), wild)
    assert domain.unit[[1, 2]].tolist() == [0, 0]
    assert (domain.unit[[0, 3, *range(4, 11)]] > 0).all()


def test_distance_to_a_record_is_counted_in_units_without_the_private_column() -> None:
    records, domain = table(), domain_of()
    here = records.inputs[:2].double()
    there = here.clone()
    there[0, 1:3] = 1 - there[0, 1:3]
    there[1, 0] += 3 * domain.unit[0]
    assert domain.apart(there[:1], here[0]).item() == 0
    assert domain.apart(there[1:], here[1]).item() == pytest.approx(9)
    there[1, 7:] = there[1, 7:].roll(1)
    assert domain.apart(there[1:], here[1]).item() == pytest.approx(9 + 2)
    assert domain.unit[0].item() == pytest.approx(records.inputs[:, 0].std(correction=0).item())


def test_what_moves_is_confined_to_ranges_and_within_one_of_the_largest_score() -> None:
    records, domain = table(), domain_of()
    low, high = records.inputs.double().amin(0), records.inputs.double().amax(0)
    scores = torch.tensor([9.0, 0, 1, -9, 0.5, 2, -3, 7, 7, 6.5, 0], dtype=torch.float64)
    found = domain.confine(scores)
    assert (found[0], found[3]) == (high[0], low[3])
    assert found[1:3].tolist() == [0, 1]
    assert found[4:7].tolist() == [-1, 0, -1]
    assert found[7:].tolist() == [0, 0, -0.5, -1]
    assert torch.equal(domain.confine(torch.stack([scores, scores]))[1], found)


def test_the_moments_of_a_category_are_its_largest() -> None:
    domain = domain_of("race")
    moments = torch.arange(11.0)
    shared = domain.share(moments)
    assert shared.tolist() == [0, 2, 2, 3, 4, 5, 6, 10, 10, 10, 10]
    assert moments.tolist() == [*range(11)]
    free = domain_of("race", "free")
    assert torch.equal(free.share(moments), moments)
    assert torch.equal(free.confine(1e9 * moments), 1e9 * moments)


def test_a_unit_is_a_deviation_or_one_and_never_nothing() -> None:
    records = table()
    records.inputs[:, 3] = 0.5
    unit = Domain.of(records, PrivateColumn.of(records, "sex"), "feasible").unit
    deviation = records.inputs[:, 0].double().std(correction=0)
    assert unit.tolist() == pytest.approx([float(deviation), 0, 0, *[1] * 8])


@pytest.mark.parametrize(("least", "most", "ends"), [(0.0, 0.5, (0, 1)), (-0.1, 0.5, None)])
def test_pictures_have_the_range_of_pictures(
    least: float, most: float, ends: tuple[float, float] | None
) -> None:
    pixels = torch.linspace(least, most, 6 * 9).reshape(6, 1, 3, 3)
    feature = Feature("flag", (0,), (0.0, 1.0))
    records = Records(pixels, torch.zeros(6, dtype=torch.int64), features=(feature,))
    domain = Domain.of(records, PrivateColumn.of(records, "flag"), "feasible")
    seen = pixels.flatten(1).double()
    low, high = (torch.full((9,), end).double() for end in ends or (0, 0))
    assert torch.equal(domain.low, low if ends else seen.amin(0))
    assert torch.equal(domain.high, high if ends else seen.amax(0))
    wild = torch.tensor([[0.2, *[-1.0] * 4, *[3.0] * 4]], dtype=torch.float64)
    assert torch.equal(
        domain.project(wild)[0, 1:], torch.where(wild > 1, domain.high, domain.low)[0, 1:]
    )


def test_values_are_spread_over_the_ranks() -> None:
    records = table(200)
    records.inputs[:, 0] = torch.arange(200).flip(0) / 8
    column = PrivateColumn.of(records, "age")
    ranks = [round(place * 199 / 63) for place in range(64)]
    assert len(column) == MAX_VALUES
    assert column.values[:, 0].tolist() == [rank / 8 for rank in ranks]
    assert column.names[:2] == ("0", "0.375")
    assert len(PrivateColumn.of(table(64), "age")) == 64


def test_a_column_of_codes_can_have_any_of_them_and_takes_no_step() -> None:
    """Beside numbers a category may lie as the place of its value: no slope moves it."""
    names = ("p", "q", "r")
    features = (
        Feature("age", (0,), (0.0, 1.0)),
        Feature("job", (1,), values=names, coded=True),
        Feature("sex", (2, 3), values=("f", "m")),
    )
    inputs = torch.tensor([[0.0, 2, 1, 0], [1, 0, 0, 1], [0.5, 2, 1, 0]])
    records = Records(inputs, torch.zeros(3, dtype=torch.int64), features=features)
    column = PrivateColumn.of(records, "job")
    assert column.values.tolist() == [[0], [1], [2]]
    assert (column.names, column.value_in(inputs.double()).tolist()) == (names, [2, 0, 2])
    domain = Domain.of(records, PrivateColumn.of(records, "age"), "feasible")
    assert domain.unit.tolist() == [0, 0, 1, 1]
    assert [group.tolist() for group in domain.groups] == [[2, 3]]
