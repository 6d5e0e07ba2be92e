"""The digits and the two traits of their handwriting."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from gradaudit.data import load_records
from gradaudit.data.digits import above_its_class, handwriting, slant
from gradaudit.errors import UsageError


def slope_by_loops(image: np.ndarray) -> float:
    """−μ₁₁/μ₀₂ with every pixel visited: regress the column of the ink on its row."""
    mass = row_mean = column_mean = 0.0
    for (row, column), ink in np.ndenumerate(image):
        mass += ink
        row_mean += ink * row
        column_mean += ink * column
    row_mean, column_mean = row_mean / mass, column_mean / mass
    covariance = variance = 0.0
    for (row, column), ink in np.ndenumerate(image):
        covariance += ink * (row - row_mean) * (column - column_mean)
        variance += ink * (row - row_mean) ** 2
    return -covariance / variance


def stroke(shift: float) -> np.ndarray:
    """A stroke down 16×16 pixels whose column moves by ``shift`` to the right a row upwards."""
    image = np.zeros((16, 16))
    for row in range(4, 12):
        column = 8 - shift * (row - 7.5)
        left = int(np.floor(column))
        image[row, left], image[row, left + 1] = 1 - (column - left), column - left
    return image


def test_slant_against_moments_pixel_by_pixel() -> None:
    images = load_digits().images[:40]
    expected = [slope_by_loops(image) for image in images]
    np.testing.assert_allclose(slant(images), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shift", [-0.7, -0.25, 0.0, 0.25, 0.7])
def test_the_slant_of_a_sheared_stroke_is_its_shear(shift: float) -> None:
    assert slant(stroke(shift)[None])[0] == pytest.approx(shift, abs=1e-12)


def test_a_flat_glyph_has_no_slant() -> None:
    image = np.zeros((1, 8, 8))
    image[0, 3] = 1
    assert slant(image).tolist() == [0]


def test_a_trait_is_compared_within_its_class() -> None:
    trait = np.array([1.0, 2.0, 3.0, 100.0, 200.0, 300.0])
    labels = np.array([0, 0, 0, 1, 1, 1])
    attribute = above_its_class(trait, labels, ("low", "high"))
    assert attribute.codes.tolist() == [0, 0, 1, 0, 0, 1]
    assert attribute.values == ("low", "high")


def test_inputs_labels_and_classes() -> None:
    records = load_records("digits")
    raw = load_digits()
    assert records.inputs.shape == (1797, 1, 8, 8)
    assert records.inputs.dtype == torch.float32
    np.testing.assert_array_equal(records.inputs[:, 0].numpy(), raw.images / 16)
    np.testing.assert_array_equal(records.labels.numpy(), raw.target)
    assert records.classes == tuple("0123456789")
    assert records.features == ()


@pytest.mark.slow
def test_the_attributes_are_traits_of_the_handwriting_and_not_of_the_digit() -> None:
    records = load_records("digits", attributes=["slant", "ink"])
    traits = {
        "slant": np.array([slope_by_loops(image) for image in load_digits().images]),
        "ink": load_digits().images.sum(axis=(1, 2)),
    }
    labels = records.labels.numpy()
    for name, trait in traits.items():
        codes = records.attributes[name].codes
        assert codes.dtype == np.int64
        for digit in range(10):
            own = labels == digit
            assert trait[own & (codes == 1)].min() > trait[own & (codes == 0)].max()
            assert 0.45 < codes[own].mean() <= 0.5
    assert records.attributes["slant"].values == ("left", "right")
    assert records.attributes["ink"].values == ("light", "heavy")


@pytest.mark.parametrize("spec", ["digits:8x8", "digits?attribute=slant", "digits?size=3"])
def test_digits_take_no_options(spec: str) -> None:
    with pytest.raises(UsageError, match="digits"):
        load_records(spec)


def test_the_digits_are_scikit_learns_wherever_its_file_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = np.column_stack(load_digits(return_X_y=True))
    np.testing.assert_array_equal(handwriting(), expected)
    monkeypatch.setattr("gradaudit.data.digits._FILE", "elsewhere.csv.gz")
    np.testing.assert_array_equal(handwriting(), expected)
