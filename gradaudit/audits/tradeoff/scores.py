"""CAP, its interval, and the axis of the curves.

L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart privacy
attacks" (2020), section 2.1 and figure 5.
"""

import math

import numpy as np
from numpy.typing import NDArray

from gradaudit.statistics.laws import student_quantile

FloatArray = NDArray[np.float64]

FEWEST = 5


def clipped(relative_errors: FloatArray) -> FloatArray:
    """min(‖x̂ − x‖/‖x‖, 1): a blank record, which needs no attack, has a relative error of 1.

    An error that is not finite is no answer, and counts as a blank one.
    """
    finite = np.where(np.isfinite(relative_errors), relative_errors, 1.0)
    return np.asarray(np.minimum(finite, 1.0))


def cap(accuracies: FloatArray, distances: FloatArray) -> float:
    """CAP = (1/n) Σ_m Acc_m · dist_m (eq. 1), averaged over repetitions.

    Args:
        accuracies: (repetitions, settings) of models trained with each setting.
        distances: (repetitions, settings, batches) of the attacked batches.
    """
    return float((accuracies * distances.mean(axis=2)).mean())


def cap_interval(
    accuracies: FloatArray, reaches: FloatArray, distances: FloatArray, most: float
) -> tuple[float, float] | None:
    """An interval of CAP, or None where there is too little to say.

    From five repetitions on Student's over their CAPs, which covers training, too. Else Student's
    over the batches, each of which has a CAP of its own because all settings attack the same ones,
    widened by the accuracies' intervals. These are of the same test records, so that their errors
    are taken to go together.

    Args:
        accuracies: (repetitions, settings).
        reaches: (repetitions, settings) half the width of each accuracy's interval.
        distances: (repetitions, settings, batches).
        most: the largest value that CAP can have.
    """
    repetitions = len(accuracies)
    products = accuracies[:, :, None] * distances
    if repetitions >= FEWEST:
        half = student_half(products.mean(axis=(1, 2)))
    else:
        of_batches = products.mean(axis=1).reshape(-1)
        if len(of_batches) < FEWEST:
            return None
        of_training = (distances.mean(axis=2) * reaches).mean(axis=1)
        widening = float(np.linalg.norm(of_training)) / repetitions
        half = math.hypot(student_half(of_batches), widening)
    middle = cap(accuracies, distances)
    return max(middle - half, 0.0), min(middle + half, most)


def student_half(values: FloatArray) -> float:
    """Half of Student's interval of a mean."""
    quantile = student_quantile(len(values) - 1)
    return quantile * float(values.std(ddof=1)) / math.sqrt(len(values))


def mean_interval(values: FloatArray, most: float) -> tuple[float, float] | None:
    """Student's interval of a mean of values in [0, most]; None for fewer than five."""
    if len(values) < FEWEST:
        return None
    middle, half = float(values.mean()), student_half(values)
    return max(middle - half, 0.0), min(middle + half, most)


def position(ratios: FloatArray) -> float | None:
    """A setting's position on the axis: the mean of log10(‖B‖/‖E‖ + 1) over batches.

    None where some update was not perturbed at all, so that the ratio is infinite.
    """
    with np.errstate(divide="ignore"):
        value = float(np.log10(ratios + 1).mean())
    return value if math.isfinite(value) else None
