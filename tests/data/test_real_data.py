"""Real tables and pictures, where they are present; skipped with a word where not."""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradaudit.data import load_records
from gradaudit.data.records import Records

Real = Callable[[str], Path]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def expect_groups_to_match(records: Records, rows: list[dict[str, str]], stride: int) -> None:
    """Every one-hot group of every ``stride``-th record holds the cell of the file."""
    inputs = records.inputs.numpy()
    for feature in records.features:
        if feature.values:
            group = inputs[:, list(feature.positions)]
            np.testing.assert_array_equal(group.sum(axis=1), 1)
            for i in range(0, len(rows), stride):
                cell = rows[i][feature.name].strip()
                expected = "(missing)" if cell == "?" else cell
                assert feature.values[group[i].argmax()] == expected


@pytest.mark.slow
def test_adult(real: Real) -> None:
    path = real("adult.csv")
    records = load_records(
        f"csv:{path}?label=income&scale=standard&attribute=sex,race&attribute=marital-status"
    )
    rows = rows_of(path)
    assert records.inputs.shape == (48842, 108)
    assert Counter(row["income"] for row in rows) == {"<=50K": 37155, ">50K": 11687}
    assert records.classes == ("<=50K", ">50K")
    assert int(records.labels.sum()) == 11687
    assert records.notes["missing_as_category"] == {
        "workclass": 2799,
        "occupation": 2809,
        "native-country": 857,
    }
    sex = records.attributes["sex"]
    assert [sex.values[c] for c in sex.codes[:99]] == [row["sex"] for row in rows[:99]]
    ages = np.array([float(row["age"]) for row in rows])
    expected = (ages - ages.mean()) / ages.std()
    np.testing.assert_allclose(records.inputs[:, 0].numpy(), expected, atol=1e-5)
    expect_groups_to_match(records, rows, stride=997)


@pytest.mark.slow
def test_utkface(real: Real) -> None:
    path = real("utkface_32.npz")
    records = load_records(f"npz:{path}?inputs=images&label=race&attribute=gender,age")
    assert records.inputs.shape == (6000, 3, 32, 32)
    assert records.classes == ("white", "black", "asian", "indian", "other")
    assert records.attributes["gender"].values == ("male", "female")
    with np.load(path) as archive:
        images, gender, age = archive["images"], archive["gender"], archive["age"]
    np.testing.assert_array_equal(records.attributes["gender"].codes, gender)
    np.testing.assert_array_equal(records.attributes["age"].codes, age > np.median(age))
    np.testing.assert_allclose(
        records.inputs[17].numpy(), images[17].transpose(2, 0, 1) / 255, rtol=1e-6
    )
    assert load_records(f"npz:{path}?inputs=images&label=age").classes == ()


def test_ravdess(real: Real) -> None:
    path = real("ravdess_emobase.npz")
    spec = f"npz:{path}?inputs=features&label=emotion&attribute=gender&user=speaker"
    records = load_records(f"{spec}&scale=standard")
    assert records.inputs.shape == (1440, 988)
    assert records.classes[:2] == ("neutral", "calm")
    assert records.users is not None
    assert len(set(records.users.tolist())) == 24
    assert records.features[0].name == "pcm_intensity_sma_max"
    deviations = records.inputs.double().std(dim=0, correction=0).numpy()
    assert (deviations == 0).sum() == 2
    np.testing.assert_allclose(deviations[deviations > 0], 1, rtol=1e-4)
