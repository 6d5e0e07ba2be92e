"""Columns: how values are told apart, ordered and counted, and what a column can serve as."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradaudit.data.common.roles import (
    attribute_of,
    labels_of,
    labels_of_array,
    members_of,
    users_of,
)
from gradaudit.data.common.table_columns import MISSING, DataColumn
from gradaudit.errors import DataError, UsageError


def column(*cells: str) -> DataColumn:
    return DataColumn.of_text("c", "t.csv: column 'c'", cells)


def test_text_is_ordered_by_name_and_every_spelling_of_missing_is_one_value() -> None:
    text = column("b", " a", "?", "", "NA", "b ", "nan", "n/a", "null", "None")
    assert text.values == (MISSING, "None", "a", "b")
    assert text.codes.tolist() == [3, 2, 0, 0, 0, 3, 0, 0, 0, 1]
    assert text.numbers is None
    assert text.missing == 6


def test_numbers_are_ordered_as_numbers_and_spellings_of_one_number_are_one_value() -> None:
    numbers = column("10", "9.50", "1e1", "?", "-2")
    assert numbers.values == ("-2", "9.5", "10", MISSING)
    assert numbers.codes.tolist() == [2, 1, 2, 3, 0]
    np.testing.assert_array_equal(numbers.quantities(), [10, 9.5, 10, np.nan, -2])
    assert numbers.missing == 1


@pytest.mark.parametrize("cell", ["x", "1_000", "1,5", "0x10", "1234567890123456"])
def test_one_cell_that_is_no_number_makes_a_column_text(cell: str) -> None:
    assert column("1", "2", cell).numbers is None


def test_long_whole_numbers_keep_apart_as_text() -> None:
    ids = np.array([2**60, 2**60 + 1, 2**60])
    assert users_of(DataColumn.of_array("u", "u", ids)).tolist() == [str(i) for i in ids]
    assert len(set(users_of(column(str(2**60), str(2**60 + 1))))) == 2


def test_a_column_of_missing_cells_is_text_of_one_value() -> None:
    empty = column("", "?")
    assert (empty.values, empty.numbers, empty.missing) == ((MISSING,), None, 2)


@pytest.mark.slow
@given(st.lists(st.text(), min_size=1))
def test_every_text_cell_is_found_again_by_its_code(cells: list[str]) -> None:
    text = column("text", *cells)
    found = [text.values[code] for code in text.codes][1:]
    missing = {"", "?", "na", "n/a", "nan", "null"}
    assert found == [MISSING if c.strip().lower() in missing else c.strip() for c in cells]
    assert list(text.values) == sorted(set(text.values))


@given(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1))
def test_every_number_survives_the_way_through_text(numbers: list[float | None]) -> None:
    cells = ["" if number is None else repr(number) for number in numbers]
    expected = [np.nan if number is None else number for number in numbers]
    np.testing.assert_array_equal(column("0", *cells).quantities()[1:], expected)


@given(st.lists(st.integers(-5, 5), min_size=1))
def test_an_array_and_its_text_are_the_same_column(numbers: list[int]) -> None:
    of_array = DataColumn.of_array("c", "", np.array(numbers))
    of_text = column(*map(str, numbers))
    assert of_array.values == of_text.values
    np.testing.assert_array_equal(of_array.codes, of_text.codes)


@pytest.mark.parametrize(
    ("cells", "discrete"),
    [
        (["a", "b"], True),
        ([str(i) for i in range(3, 23)], True),
        ([str(i) for i in range(3, 24)], False),
        ([str(i) for i in range(100)], True),
        (["0.5", "1"], False),
    ],
    ids=["text", "20 numbers", "21 numbers", "counting from 0", "fractions"],
)
def test_few_whole_numbers_are_classes(cells: list[str], discrete: bool) -> None:
    assert column(*cells).discrete is discrete
    assert bool(labels_of(column(*cells, *cells)).classes) is discrete


def test_labels_follow_the_order_of_numbers_not_of_their_spelling() -> None:
    labels = labels_of(column("10", "9", "10"))
    assert (labels.values.tolist(), labels.classes) == ([1, 0, 1], ("9", "10"))


def test_task_settles_what_a_label_is() -> None:
    target = labels_of(column("1", "0", "1"), "regression")
    assert target.values.dtype == np.float32
    assert (target.values.tolist(), target.classes) == ([1.0, 0.0, 1.0], ())
    classes = labels_of(column("0.5", "0.25"), "classification")
    assert (classes.values.tolist(), classes.classes) == ([1, 0], ("0.25", "0.5"))


@pytest.mark.parametrize(
    ("cells", "task", "error", "message"),
    [
        (["a", "a"], None, DataError, "every record has the label 'a'"),
        (["a", "?", ""], None, DataError, "2 of 3 labels are missing"),
        (["1.5", "inf"], None, DataError, "1 values are infinite or too large (first in record 2)"),
        (["a", "b"], "regression", UsageError, "holds text such as 'a'"),
        ([f"{i}.5" for i in range(2000)], "classification", DataError, "task=regression"),
    ],
)
def test_labels_that_cannot_be_used(
    cells: list[str], task: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        labels_of(column(*cells), task)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "t.csv: column 'c'" in str(caught.value)


def test_whole_numbers_of_an_array_stay_the_class_indices_they_are() -> None:
    labels = labels_of_array(np.array([2, 0, 2], dtype=np.int8), "y")
    assert (labels.values.tolist(), labels.classes) == ([2, 0, 2], ("0", "1", "2"))
    named = labels_of_array(np.array([2, 0, 2]), "y", ("red", "green", "blue", "white"))
    assert (named.values.tolist(), len(named.classes)) == ([2, 0, 2], 4)
    signed = labels_of_array(np.array([1, -1, 1]), "y")
    assert (signed.values.tolist(), signed.classes) == ([1, 0, 1], ("-1", "1"))


def test_arrays_of_reals_are_targets() -> None:
    two = np.array([[0.5, 1.0], [2.0, 3.0]])
    assert labels_of_array(two, "y").values.tolist() == two.tolist()
    assert labels_of_array(two[:, 0], "y").classes == ()
    assert labels_of_array(np.array([1.0, 5.0, 9.0]), "y").values.tolist() == [1, 5, 9]
    assert labels_of_array(np.array([1.0, 0.0]), "y").classes == ("0", "1")
    assert labels_of_array(np.array([1.0, 5.0]), "y", task="classification").classes == ("1", "5")
    with pytest.raises(DataError, match=r"first in record 2"):
        labels_of_array(np.array([[0.0], [np.nan]]), "y")
    with pytest.raises(DataError, match=r"<U1 of shape \(2, 1\)"):
        labels_of_array(np.array([["a"], ["b"]]), "y")


def test_labels_of_positions() -> None:
    assert labels_of_array(np.array([[0], [1]]), "y").values.tolist() == [0, 1]
    found = labels_of_array(np.array([[0, -100], [2, 1]]), "y")
    assert (found.values.tolist(), found.classes) == ([[0, -100], [2, 1]], ("0", "1", "2"))
    with pytest.raises(DataError, match=r"run from -1 to 2; number the classes"):
        labels_of_array(np.array([[0, -1], [2, 1]]), "y")
    with pytest.raises(DataError, match=r"2 records have the label -100.*leave them out"):
        labels_of_array(np.array([0, -100, 1, -100]), "y")


def test_a_quantity_is_halved_at_its_median() -> None:
    ages = [0.5, *range(1, 40)]
    attribute = attribute_of(column(*map(str, ages)))
    assert attribute.values == ("≤ 19.5", "> 19.5")
    assert attribute.codes.tolist() == [0] * 20 + [1] * 20


def test_halves_are_never_empty_and_missing_is_a_value_of_its_own() -> None:
    attribute = attribute_of(column("9.5", "9.5", "9.5", "1.5", "?"))
    assert attribute.values == ("≤ 1.5", "> 1.5", MISSING)
    assert attribute.codes.tolist() == [1, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", "a"], "every record has the value 'a'"),
        ([f"name {i}" for i in range(60)], "60 different values, such as 'name 0' in record 1,"),
    ],
)
def test_attributes_that_cannot_be_used(cells: list[str], message: str) -> None:
    with pytest.raises(DataError) as caught:
        attribute_of(column(*cells))
    assert message in str(caught.value)


def test_users_are_names_and_none_may_be_missing() -> None:
    assert users_of(column("7", "x", "7")).tolist() == ["7", "x", "7"]
    with pytest.raises(DataError, match="1 of 2 users are missing"):
        users_of(column("7", ""))


def test_members_are_told_by_the_usual_words() -> None:
    assert members_of(column("train", "Test", "train")).tolist() == [True, False, True]
    assert members_of(column("0", "1")).tolist() == [False, True]
    assert members_of(DataColumn.of_array("m", "m", np.array([True, False]))).tolist() == [
        True,
        False,
    ]
    with pytest.raises(DataError, match="'maybe' does not say"):
        members_of(column("yes", "maybe"))


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2)), np.array([1j, 2]), np.array(["2020-01-01"], dtype="datetime64[D]")],
    ids=["matrix", "complex", "dates"],
)
def test_arrays_that_are_no_column(array: np.ndarray) -> None:
    with pytest.raises(DataError, match="one number or text a record"):
        DataColumn.of_array("c", "key 'c'", array)
