"""The diabetes table."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from gradaudit.data import load_records
from gradaudit.errors import UsageError


def test_inputs_are_scikit_learns_and_the_label_halves_the_progression() -> None:
    records = load_records("diabetes")
    table = load_diabetes()
    np.testing.assert_array_equal(records.inputs.numpy(), table.data.astype(np.float32))
    above = table.target > sorted(table.target)[221]
    assert records.classes == ("below", "above")
    assert records.labels.double().mean().item() == 0.5
    assert (records.labels.numpy() >= above).all()


def test_sex_is_the_attribute_and_among_the_inputs() -> None:
    records = load_records("diabetes", attributes=["sex"])
    original = load_diabetes(scaled=False).data[:, 1]
    sex = records.attributes["sex"]
    assert [float(sex.values[code]) for code in sex.codes] == original.tolist()
    position = next(f.positions[0] for f in records.features if f.name == "sex")
    assert len(records.inputs[:, position].unique()) == 2


def test_the_schema_holds_the_observed_ranges() -> None:
    for spec in ("diabetes", "diabetes?scale=standard"):
        records = load_records(spec)
        assert [f.name for f in records.features] == load_diabetes().feature_names
        for feature in records.features:
            values = records.inputs[:, feature.positions[0]]
            assert feature.range == (values.min().item(), values.max().item())


def test_standard_scaling_gives_deviation_one() -> None:
    inputs = load_records("diabetes?scale=standard").inputs.double()
    np.testing.assert_allclose(inputs.mean(dim=0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(dim=0, correction=0), 1, rtol=1e-6)


def test_another_scale_is_refused() -> None:
    with pytest.raises(UsageError, match="one of none, standard"):
        load_records("diabetes?scale=minmax")
