"""NumPy archives: pictures, tables, tokens, names of values, and archives not to be trusted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradaudit.data import load_records
from gradaudit.data.common import checks
from gradaudit.data.common.arrays import pictures
from gradaudit.data.records import Feature
from gradaudit.errors import DataError, UsageError

Save = Callable[..., Path]


@pytest.fixture
def npz(tmp_path: Path) -> Save:
    def save(**arrays: Any) -> Path:
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return path

    return save


def test_bytes_with_channels_last_become_channels_first_in_unit_range(npz: Save) -> None:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3) * 2
    records = load_records(f"npz:{npz(x=images, y=[1, 0])}?inputs=x&label=y")
    assert records.inputs.shape == (2, 3, 4, 5)
    for n, c, h, w in [(0, 0, 0, 0), (1, 2, 3, 4), (0, 1, 2, 3)]:
        assert records.inputs[n, c, h, w].item() == np.float32(images[n, h, w, c]) / np.float32(255)
    assert records.adapter == "npz"
    assert records.features == ()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 5, 6), (2, 1, 5, 6)),
        ((2, 5, 6, 1), (2, 1, 5, 6)),
        ((2, 5, 6, 4), (2, 4, 5, 6)),
        ((2, 3, 3, 3), (2, 3, 3, 3)),
        ((2, 3, 5, 6), (2, 3, 5, 6)),
    ],
)
def test_the_channels_are_found(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert pictures(np.zeros(shape, np.uint8), "x").shape == expected


def test_three_by_three_colour_pictures_have_their_channels_last() -> None:
    image = np.zeros((1, 3, 3, 3), np.uint8)
    image[0, 0, 0] = [255, 0, 51]
    assert pictures(image, "x")[0, :, 0, 0].tolist() == [1, 0, np.float32(0.2)]


def test_floats_are_taken_as_the_model_takes_them(npz: Save) -> None:
    inputs = np.random.default_rng(0).normal(size=(4, 3, 2, 2))
    records = load_records(f"npz:{npz(x=inputs, y=[0, 1, 1, 0])}?inputs=x&label=y")
    np.testing.assert_array_equal(records.inputs.numpy(), inputs.astype(np.float32))


def test_a_table_has_columns_with_ranges_and_names(npz: Save) -> None:
    path = npz(features=[[1.0, 5.0], [3.0, 5.0]], feature_names=["a", "b"], y=[0, 1])
    records = load_records(f"npz:{path}?inputs=features&label=y")
    assert records.features == (Feature("a", (0,), (1, 3)), Feature("b", (1,), (5, 5)))
    scaled = load_records(f"npz:{path}?inputs=features&label=y&scale=standard")
    assert scaled.inputs.tolist() == [[-1, 0], [1, 0]]
    assert scaled.features == (Feature("a", (0,), (-1, 1)), Feature("b", (1,), (0, 0)))
    assert scaled.notes == {"scale": "standard"}


def test_columns_without_names_are_numbered(npz: Save) -> None:
    path = npz(x=[[1.0, 5.0], [3.0, 5.0]], x_names=["only one"], y=[0, 1])
    names = [feature.name for feature in load_records(f"npz:{path}?inputs=x&label=y").features]
    assert names == ["0", "1"]


def test_tokens_stay_whole_and_other_whole_numbers_do_not(npz: Save) -> None:
    path = npz(x=np.array([[7, 2], [0, 1]], np.int32), y=[0, 1])
    tokens = load_records(f"npz:{path}?inputs=x&label=y&tokens=true")
    assert tokens.discrete
    assert tokens.inputs.tolist() == [[7, 2], [0, 1]]
    assert not load_records(f"npz:{path}?inputs=x&label=y").discrete


def test_attributes_users_and_members(npz: Save) -> None:
    path = npz(
        x=np.zeros((4, 1), np.float32),
        y=[1, 0, 1, 2],
        y_names=["no", "yes", "maybe"],
        sex=np.array([1, 0, 0, 1], np.int8),
        sex_names=["f", "m"],
        age=np.array([0.5, 20, 30, 40]),
        who=np.array([3, 3, 5, 5], np.int16),
        seen=np.array([True, False, True, True]),
    )
    spec = f"npz:{path}?inputs=x&label=y&attribute=sex,age&user=who&member=seen"
    records = load_records(spec)
    assert records.classes == ("no", "yes", "maybe")
    assert records.labels.tolist() == [1, 0, 1, 2]
    assert records.attributes["sex"].values == ("f", "m")
    assert records.attributes["sex"].codes.tolist() == [1, 0, 0, 1]
    assert records.attributes["age"].values == ("≤ 25", "> 25")
    assert records.attributes["member"].codes.tolist() == [1, 0, 1, 1]
    assert records.users is not None
    assert records.users.tolist() == ["3", "3", "5", "5"]


def test_real_targets(npz: Save) -> None:
    path = npz(x=np.zeros((2, 1)), y=[[0.5, 1], [2, 3]])
    records = load_records(f"npz:{path}?inputs=x&label=y")
    assert records.labels.tolist() == [[0.5, 1], [2, 3]]
    assert records.classes == ()


GOOD = {"x": np.zeros((3, 2)), "y": [0, 1, 1]}


@pytest.mark.parametrize(
    ("arrays", "options", "error", "message"),
    [
        (GOOD, "inputs=x", UsageError, "option 'label' is missing"),
        (GOOD, "inputs=z&label=y", UsageError, "no key 'z'; it has x, y"),
        ({**GOOD, "label": [0]}, "inputs=x&label=lable", UsageError, "(did you mean 'label'?)"),
        (GOOD, "inputs=x&label=y&attribute=q", UsageError, "no key 'q'"),
        (GOOD, "inputs=x&label=y&user=q", UsageError, "no key 'q'"),
        (GOOD, "inputs=x&label=y&member=q", UsageError, "no key 'q'"),
        (GOOD, "inputs=x&label=y&tokens=perhaps", UsageError, "is not true or false"),
        (GOOD, "inputs=x&label=y&tokens=yes", DataError, "tokens are whole numbers"),
        (GOOD, "inputs=y&label=y", DataError, "of shape (3,); inputs are numbers of shape"),
        (
            {"x": np.zeros((3, 2, 2)), "y": [0, 1, 1]},
            "inputs=x&label=y&scale=standard",
            UsageError,
            "key 'x': scale=standard is for a table",
        ),
        ({**GOOD, "y": [0, 1]}, "inputs=x&label=y", DataError, "key 'y': has 2 entries for 3"),
        (
            {**GOOD, "a": [0, 1]},
            "inputs=x&label=y&attribute=a",
            DataError,
            "key 'a': has 2 entries for 3 records",
        ),
        (
            {**GOOD, "x": [[0, 1], [np.inf, 0], [0, np.nan]]},
            "inputs=x&label=y",
            DataError,
            "key 'x': 2 of 3 records hold NaN or infinity (first in record 2)",
        ),
        (
            {**GOOD, "x": np.zeros((3, 5, 4, 2), np.uint8)},
            "inputs=x&label=y",
            DataError,
            "bytes of shape (3, 5, 4, 2) are no pictures",
        ),
    ],
)
def test_bad_requests_and_bad_arrays(
    npz: Save, arrays: dict[str, Any], options: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        load_records(f"npz:{npz(**arrays)}?{options}")
    assert message in str(caught.value)
    assert "data.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_would_grow_beyond_memory_as_floats_are_refused(
    npz: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(x=np.zeros((10, 10, 10), np.uint8), y=[0, 1] * 5)
    monkeypatch.setattr(checks, "MAX_BYTES", 2000)
    with pytest.raises(DataError, match=r"key 'x': numbers of shape \(10, 10, 10\)"):
        load_records(f"npz:{path}?inputs=x&label=y")
