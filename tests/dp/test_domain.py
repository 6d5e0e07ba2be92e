"""What a record may look like: the values of its private column, and the rest of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_subject import FEATURES, expect_feasible, table

from gradaudit.data.records import Attribute, Feature, Records
from gradaudit.dp.domain import MAX_VALUES, Domain, PrivateColumn
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


def test_the_table_of_the_tests_is_feasible_itself() -> None:
    expect_feasible(table().inputs.double(), table())
    assert sum(len(feature.positions) for feature in FEATURES) == 11
