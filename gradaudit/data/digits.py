"""scikit-learn's handwritten digits, with two traits of the handwriting as private attributes."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from gradaudit.data.base import DataAdapter
from gradaudit.data.records import Attribute, Records

_WHITE = 16.0
_FILE = "datasets/data/digits.csv.gz"
"""Within scikit-learn."""


@dataclass(frozen=True, kw_only=True)
class Digits(DataAdapter):
    """1,797 digits of 1×8×8 in [0, 1]; the label is the digit.

    A glyph's slant is the slope −μ₁₁/μ₀₂ of its ink (central image moments, rows counted
    downwards), positive where it leans to the right as ``/`` does; its ink is the sum of its
    pixels. Both are compared with the median of the same digit, so neither tells the digit:
    ``slant`` is ``left`` or ``right``, ``ink`` is ``light`` or ``heavy``.
    """

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "handwritten digits of scikit-learn; attributes slant and ink"
    example: ClassVar[str] = "digits"
    needs_source: ClassVar[bool] = False

    def load(self) -> Records:
        """Read the digits that come with scikit-learn."""
        table = handwriting()
        images = table[:, :-1].reshape(-1, 8, 8) / _WHITE
        labels = table[:, -1].astype(np.int64)
        return Records(
            inputs=torch.from_numpy(images[:, None].astype(np.float32)),
            labels=torch.from_numpy(labels),
            classes=tuple(str(digit) for digit in range(10)),
            attributes={
                "slant": above_its_class(slant(images), labels, ("left", "right")),
                "ink": above_its_class(images.sum(axis=(1, 2)), labels, ("light", "heavy")),
            },
        )


def handwriting() -> NDArray[np.float64]:
    """Ink of 0 to 16 and the digit, (1797, 64 + 1).

    Read from scikit-learn's file where it lies, for importing scikit-learn takes a second.
    """
    package = find_spec("sklearn")
    if package and package.origin and (file := Path(package.origin).parent / _FILE).is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images, labels])


def slant(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """The slope −μ₁₁/μ₀₂ of each glyph, (images,), 0 where all ink lies in one row.

    Args:
        images: (images, height, width) of ink ≥ 0, none of them blank.
    """
    rows, columns = np.indices(images.shape[1:])
    ink = images.sum(axis=(1, 2), keepdims=True)
    down = rows - (images * rows).sum(axis=(1, 2), keepdims=True) / ink
    right = columns - (images * columns).sum(axis=(1, 2), keepdims=True) / ink
    covariance = (images * down * right).sum(axis=(1, 2))
    variance = (images * down * down).sum(axis=(1, 2))
    flat = variance == 0
    return np.where(flat, 0.0, -covariance / np.where(flat, 1.0, variance))


def above_its_class(
    trait: NDArray[np.float64], labels: NDArray[np.int64], values: tuple[str, str]
) -> Attribute:
    """Whether a trait lies above the median of the records with the same label.

    ``values`` are what to call a trait at or below the median, and above it.
    """
    codes = np.zeros(len(trait), dtype=np.int64)
    for label in np.unique(labels):
        members = labels == label
        codes[members] = trait[members] > np.median(trait[members])
    return Attribute(codes, values)
