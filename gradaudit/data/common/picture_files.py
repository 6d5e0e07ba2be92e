"""Pictures from files or data sets as arrays of one size, and the options that prepare them."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from gradaudit.core.text import printable
from gradaudit.data.base import DataAdapter
from gradaudit.data.common.arrays import pictures, scaled
from gradaudit.data.common.checks import expect_to_fit
from gradaudit.data.common.reading import read
from gradaudit.data.common.table_columns import Inputs
from gradaudit.errors import DataError, GradauditError, UsageError

Size = tuple[int, int]
"""(height, width) in pixels."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that are decoded by a library; others (EPS) would start a program."""

_GREY = ("1", "L")
_TRANSPARENT = ("RGBA", "LA", "PA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "LA", "CMYK", "YCbCr", "HSV", "LAB")


Picture = Path | bytes | Image.Image
"""A file, what is in one, or a picture in memory."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's channels (torchvision's reference training)."""

Named = Sequence[tuple[str, Picture]]
"""Pictures with what messages call them."""


def named_files(*files: Path, **_: str) -> Named:
    """Name files by their paths."""
    return [(printable(str(file)), file) for file in files]


def decoded(
    sources: Callable[..., Named], *paths: Path, size: Size | None, **options: Any
) -> dict[str, Any]:
    """Decode the pictures in files as ``pixels`` of one size."""
    pixels, notes = stack_pictures(sources(*paths, **options), options["origin"], size)
    return {"pixels": pixels, "notes": notes}


def stack_pictures(
    pictures: Named, origin: str, size: Size | None
) -> tuple[NDArray[np.uint8], dict[str, JsonValue]]:
    """Decode pictures, all grey or else all in colour; and notes on what is read of them.

    Every picture is resized to ``size`` (bilinear), if any.

    Args:
        pictures: each with its name for messages.
        origin: the data, for messages.
        size: height and width.

    Returns:
        (pictures, height, width, channels) bytes, one channel or three; and how many pictures have
        transparency or further frames that are left.

    Raises:
        DataError: one is no picture, is damaged or has more than 8 bits a channel; the sizes
            differ and none is asked for; there are none; the whole would take too much memory.
    """
    arrays: list[NDArray[Any]] = []
    counts = {"transparent": 0, "several_frames": 0}
    for name, source in pictures:
        with _opened(name, source) as picture:
            clear = picture.mode in _TRANSPARENT or "transparency" in picture.info
            arrays.append(_pixels(picture, name, size))
            counts["transparent"] += clear
            counts["several_frames"] += picture is not source and _has_more(picture)
        found, common = arrays[-1].shape[:2], arrays[0].shape[:2]
        if found != common:
            raise DataError(
                f"{name}: is of {_spell(found)} pixels and {pictures[0][0]} of {_spell(common)}; "
                "say size=HEIGHTxWIDTH to resize all"
            )
        expect_to_fit((len(pictures), *arrays[-1].shape), origin)
    if not arrays:
        raise DataError(f"{origin}: there are no pictures")
    channels = max(array.shape[2] for array in arrays)
    pixels = np.empty((len(arrays), *arrays[0].shape[:2], channels), np.uint8)
    for place, array in enumerate(arrays):
        pixels[place] = array
    return pixels, {key: count for key, count in counts.items() if count}


def _pixels(picture: Image.Image, name: str, size: Size | None) -> NDArray[Any]:
    """A picture as bytes (height, width, 1 or 3)."""
    if picture.mode not in _GREY + _COLOUR:
        raise DataError(
            f"{name}: pixels of mode {picture.mode} cannot be used; save it with 8 bits a channel"
        )
    made = picture.convert("L" if picture.mode in _GREY else "RGB")
    if size is not None and made.size != size[::-1]:
        made = made.resize(size[::-1], Image.Resampling.BILINEAR)
    array = np.asarray(made)
    return array.reshape(*array.shape[:2], -1)


def _has_more(picture: Image.Image) -> bool:
    """Whether a file has a second frame; it stands there then."""
    with suppress(Exception):  # a decoder may fail in any way at what is not looked for
        picture.seek(1)
        return True
    return False


@contextmanager
def _opened(name: str, source: Picture) -> Iterator[Image.Image]:
    if isinstance(source, Image.Image):
        yield source
        return
    try:
        content = io.BytesIO(source) if isinstance(source, bytes) else source
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(content, formats=_FORMATS) as picture,
        ):
            yield picture
    except (GradauditError, MemoryError):
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: has too many pixels to be read") from error
    except Exception as error:  # damage shows in every way that a decoder can fail
        raise DataError(
            f"{name}: cannot be read as a picture; repair it or leave it out"
        ) from error


def _spell(size: Sequence[int]) -> str:
    return f"{size[0]}x{size[1]}"


def normalised(array: NDArray[Any], how: str, origin: str) -> NDArray[np.float32]:
    """Normalise each channel of (records, channels, …) to (x − mean) / deviation.

    Args:
        array: numbers, of pictures in [0, 1].
        how: ``imagenet``, ``MEAN,STD`` or a mean and then a deviation for each
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
    means, deviations = IMAGENET if how == "imagenet" else _numbers(how)
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


@dataclass(frozen=True, kw_only=True)
class PictureAdapter(DataAdapter):
    """Pictures become (records, channels, height, width) in [0, 1]: one channel where all are grey.

    Colour of 16 bits is read with its upper 8.

    Attributes:
        size: height and width that every picture is resized to (bilinear).
        normalize: mean and deviation that each channel is standardised by: ``imagenet``,
            ``MEAN,STD``, or a mean for each channel and then a deviation for each.
    """

    size: tuple[int, int] | None = None
    normalize: str | None = None

    def read_pictures(
        self, sources: Callable[..., Named], paths: Sequence[Path], origin: str, **options: Any
    ) -> Inputs:
        """Inputs of pictures that are decoded in a child process.

        Args:
            sources: gets the paths, ``origin`` and the options in the child; returns the pictures.
            paths: of the files that are read.
            origin: the data, for messages.
            **options: of ``sources``.

        Raises:
            UsageError: the options contradict each other, or name nothing.
            DataError: a picture cannot be read, or sizes differ and none is asked for.
        """
        work = partial(decoded, sources, size=self._pixels)
        made = read(work, *paths, origin=origin, **options)
        return self._of_pixels(made["pixels"], made["notes"], origin)

    def prepared(self, sources: Named, origin: str) -> Inputs:
        """Inputs of pictures in memory, with the errors of ``read_pictures``."""
        return self._of_pixels(*stack_pictures(sources, origin, self._pixels), origin)

    @property
    def _pixels(self) -> Size | None:
        """Height and width that are asked for; a UsageError where they are empty."""
        if self.size is not None and min(self.size) < 1:
            raise UsageError(f"size={_spell(self.size)}: is empty; say size=HEIGHTxWIDTH in pixels")
        return self.size

    def _of_pixels(
        self, pixels: NDArray[Any], notes: Mapping[str, JsonValue], origin: str
    ) -> Inputs:
        resized: dict[str, JsonValue] = {"resized": list(self.size)} if self.size else {}
        return self.normal(pictures(pixels, origin), origin, scaled(pixels, {**notes, **resized}))

    def normal(self, array: NDArray[Any], origin: str, notes: dict[str, JsonValue]) -> Inputs:
        """Inputs of an array (records, channels, …), normalised as asked for."""
        if self.normalize is None:
            return Inputs(array, notes=notes)
        array = normalised(array, self.normalize, origin)
        return Inputs(array, notes={**notes, "normalized": self.normalize})
