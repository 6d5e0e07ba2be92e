"""Channels standardised as a model's training did."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import UsageError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's channels (torchvision's reference training)."""

_NAMED = {"imagenet": IMAGENET, "torchvision": IMAGENET}


def normalised(array: NDArray[Any], how: str, origin: str) -> NDArray[np.float32]:
    """(x − mean) / deviation of each channel of (records, channels, …).

    Args:
        array: numbers, of pictures in [0, 1].
        how: ``imagenet``, ``torchvision``, ``MEAN,STD`` or a mean and then a deviation for each
            channel.
        origin: the data, for messages.

    Raises:
        UsageError: it is none of these, or of another number of channels.
    """
    if array.ndim < 3 or array.dtype.kind != "f":
        raise UsageError(
            f"{origin}: normalize={how} is for pictures (records, channels, height, width); these "
            f"inputs are {array.dtype} of shape {array.shape}"
        )
    means, deviations = _NAMED.get(how) or _numbers(how)
    channels = array.shape[1]
    if len(means) not in (1, channels):
        raise UsageError(
            f"{origin}: normalize={how} is of {len(means)} channels, and these pictures have "
            f"{channels}; name a mean and a deviation for each"
        )
    shape = (1, -1, *(1,) * (array.ndim - 2))
    mean = np.array(means, np.float32).reshape(shape)
    return ((array - mean) / np.array(deviations, np.float32).reshape(shape)).astype(np.float32)


def _numbers(how: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        numbers = tuple(float(part) for part in how.split(","))
    except ValueError:
        numbers = ()
    half = len(numbers) // 2
    if (
        not numbers
        or len(numbers) % 2
        or min(numbers[half:]) <= 0
        or not np.isfinite(numbers).all()
    ):
        raise UsageError(
            f"normalize={how}: write imagenet, MEAN,STD, or a mean for each channel and then a "
            "deviation (above 0) for each, as in 0.5,0.5,0.5,0.2,0.2,0.2"
        )
    return numbers[:half], numbers[half:]
