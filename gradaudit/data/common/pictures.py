"""Pictures from files or data sets as arrays of one size."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradaudit.data.common.checks import expect_to_fit
from gradaudit.errors import DataError, GradauditError, UsageError
from gradaudit.files import expect_file
from gradaudit.text import printable

Size = tuple[int, int]
"""(height, width) in pixels."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that are decoded by a library; others (EPS) would start a program."""

_GREY = ("1", "L")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "LA", "CMYK", "YCbCr", "HSV", "LAB")


def read_pictures(files: Sequence[Path], origin: str, size: Size | None) -> NDArray[np.uint8]:
    """Decode picture files, all grey or else all in colour.

    All headers are read before any pixel. Every picture is resized to ``size`` (bilinear), if any.

    Returns:
        (files, height, width, channels) bytes, one channel or three.

    Raises:
        UsageError: the size asked for is empty.
        DataError: a file is missing, no picture, damaged or has more than 8 bits a channel; the
            sizes differ and none is asked for; there are none; the whole would take too much
            memory.
    """
    return _pixels([(printable(str(file)), file) for file in files], origin, size)


def stack_pictures(
    pictures: Sequence[Image.Image], origin: str, size: Size | None
) -> NDArray[np.uint8]:
    """Pictures in memory as ``read_pictures`` makes them of files, with the same errors."""
    named = [(f"{origin}: picture {index}", picture) for index, picture in enumerate(pictures)]
    return _pixels(named, origin, size)


def _pixels(
    pictures: Sequence[tuple[str, Path | Image.Image]], origin: str, size: Size | None
) -> NDArray[np.uint8]:
    """Of named pictures, each opened for its header and again for its pixels."""
    headers = []
    for name, source in pictures:
        with _opened(source) as picture:
            headers.append(_header(picture, name))
    (height, width), mode = _common_layout(headers, origin, size)
    pixels = np.empty((len(pictures), height, width, len(mode)), dtype=np.uint8)
    for index, (_, source) in enumerate(pictures):
        with _opened(source) as picture:
            converted = picture.convert(mode)
            if converted.size != (width, height):
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            pixels[index] = np.asarray(converted, dtype=np.uint8).reshape(pixels.shape[1:])
    return pixels


def _header(picture: Image.Image, name: str) -> tuple[str, Size, str]:
    """Name, size and mode of a picture."""
    if picture.mode not in _GREY + _COLOUR:
        raise DataError(
            f"{name}: pixels of mode {picture.mode} cannot be used; save it with 8 bits a channel"
        )
    return name, (picture.height, picture.width), picture.mode


def _common_layout(
    headers: Sequence[tuple[str, Size, str]], origin: str, size: Size | None
) -> tuple[Size, str]:
    """Size, and mode with one grey or three colour channels, that fit all of these pictures."""
    if size is not None and min(size) < 1:
        raise UsageError(f"size={_spell(size)}: is empty; say size=HEIGHTxWIDTH in pixels")
    if not headers:
        raise DataError(f"{origin}: there are no pictures")
    first, common, _ = headers[0]
    other = next((header for header in headers if header[1] != common), None)
    if size is None and other is not None:
        raise DataError(
            f"{other[0]}: is of {_spell(other[1])} pixels and {first} of {_spell(common)}; "
            "say size=HEIGHTxWIDTH to resize all"
        )
    mode = "L" if all(mode in _GREY for _, _, mode in headers) else "RGB"
    expect_to_fit((len(headers), len(mode), *(size or common)), origin)
    return size or common, mode


@contextmanager
def _opened(file: Path | Image.Image) -> Iterator[Image.Image]:
    if isinstance(file, Image.Image):
        yield file
        return
    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(expect_file(file), formats=_FORMATS) as picture,
        ):
            yield picture
    except UsageError as error:
        raise DataError(printable(f"{error}", 1000)) from error
    except GradauditError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{printable(str(file))}: has too many pixels to be read") from error
    except Exception as error:  # damage shows in every way that a decoder can fail
        raise DataError(
            f"{printable(str(file))}: cannot be read as a picture; repair it or leave it out"
        ) from error


def _spell(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
