"""Options of every picture adapter for preparing pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.arrays import pictures
from gradaudit.data.common.checks import expect_finite, expect_to_fit
from gradaudit.data.common.columns import Inputs
from gradaudit.data.common.pictures import (
    Picture,
    opened_pictures,
    stack_pictures,
)
from gradaudit.errors import DataError, UsageError
from gradaudit.specs import suggest
from gradaudit.user_code import first_line, import_torchvision, load_callable

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's channels (torchvision's reference training)."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""What red, green and blue count in grey (ITU-R BT.601)."""

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
    centred: NDArray[np.float32] = np.subtract(array, mean, dtype=np.float32)
    centred /= np.array(deviations, np.float32).reshape(shape)
    return centred


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


_TORCHVISION = "torchvision:"


@dataclass(frozen=True, kw_only=True)
class PictureAdapter(DataAdapter):
    """Pictures become (records, channels, height, width) in [0, 1]: one channel where all are grey.

    Grey pictures of 16 bits are divided by 65,535; colour of 16 bits is read with its upper 8.

    Attributes:
        channels: 3 repeats the one channel of grey pictures, 1 makes colours grey (ITU-R BT.601).
        size: height and width that every picture is resized to (bilinear).
        normalize: mean and deviation that each channel is standardised by: ``imagenet`` or
            ``torchvision`` (those of ImageNet, which its weights take), ``MEAN,STD``, or a mean
            for each channel and then a deviation for each.
        transform: instead of both, a function of a picture (PIL, in colour unless all are grey)
            that gives the input: ``FILE.py:NAME``, or ``torchvision:MODEL`` for that of the
            model's own weights (``torchvision:resnet18``). What it draws is drawn under seed 0.
    """

    size: tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    normalize: str | None = None
    transform: str | None = None

    def prepared(self, sources: Sequence[tuple[str, Picture]], origin: str) -> Inputs:
        """Inputs of named pictures, files or in memory.

        Raises:
            UsageError: the options contradict each other, or name nothing.
            DataError: a picture cannot be read, or sizes differ and none is asked for.
        """
        if self.transform is not None:
            return self._transformed(sources, origin, self.transform)
        pixels, notes = stack_pictures(sources, origin, self.size)
        if self.size:
            notes["resized"] = list(self.size)
        return self.normal(pictures(pixels, origin), origin, notes)

    def normal(self, array: NDArray[Any], origin: str, notes: dict[str, JsonValue]) -> Inputs:
        """Inputs of an array (records, channels, …), with channels and normalised as asked for."""
        if self.channels is not None and array.shape[1:2] != (self.channels,):
            array = _with_channels(array, self.channels, origin)
            notes = {**notes, "channels": "grey repeated" if self.channels == 3 else "made grey"}
        if self.normalize is None:
            return Inputs(array, notes=notes)
        array = normalised(array, self.normalize, origin)
        return Inputs(array, notes={**notes, "normalized": self.normalize})

    def _transformed(
        self, sources: Sequence[tuple[str, Picture]], origin: str, name: str
    ) -> Inputs:
        if self.size or self.channels or self.normalize is not None:
            raise UsageError(
                f"transform={name}: does all that is done to a picture; leave out size=, channels= "
                "and normalize="
            )
        function = _transform(name)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            arrays = [_applied(function, p, f"transform={name}") for p in opened_pictures(sources)]
        return Inputs(_stacked(arrays, f"transform={name}"), notes={"transform": name})


def _with_channels(array: NDArray[Any], channels: int, origin: str) -> NDArray[np.float32]:
    if array.ndim != 4 or array.dtype.kind != "f" or array.shape[1] != 4 - channels:
        raise UsageError(
            f"{origin}: channels={channels} is for pictures of {4 - channels} channels; these "
            f"inputs are {array.dtype} of shape {array.shape}"
        )
    if channels == 3:
        return np.repeat(array, 3, axis=1)
    grey: NDArray[np.float32] = np.tensordot(array, _LUMA, axes=(1, 0))[:, None]
    return grey


def _transform(name: str) -> Callable[[Image.Image], Any]:
    if not name.startswith(_TORCHVISION):
        return load_callable(name, "transform")
    models = import_torchvision("models")
    model, known = name.removeprefix(_TORCHVISION), models.list_models(module=models)
    if model not in known:
        raise UsageError(f"transform={name}: no such model of torchvision{suggest(model, known)}")
    return models.get_model_weights(model).DEFAULT.transforms()  # type: ignore[no-any-return]


def _applied(
    function: Callable[[Image.Image], Any], picture: Image.Image, origin: str
) -> NDArray[Any]:
    try:
        made = function(picture)
        array = made.detach().cpu().numpy() if isinstance(made, torch.Tensor) else np.asarray(made)
    except Exception as error:  # of the user's own function
        raise DataError(f"{origin}: failed with {first_line(error)}") from error
    if array.dtype.kind not in "f":
        raise DataError(
            f"{origin}: gives {array.dtype} of shape {array.shape}; give floats as the model takes "
            "them (torchvision's ToTensor does)"
        )
    return array


def _stacked(arrays: Sequence[NDArray[Any]], origin: str) -> NDArray[np.float32]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        one, other, *_ = sorted(shapes)
        raise DataError(
            f"{origin}: gives inputs of shape {one} and of {other}; crop or resize to one size"
        )
    expect_to_fit((len(arrays), *arrays[0].shape), origin)
    stacked = np.stack(arrays, dtype=np.float32, casting="same_kind")
    expect_finite(stacked, origin)
    return stacked
