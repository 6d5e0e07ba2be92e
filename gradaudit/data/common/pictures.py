"""Pictures from files or data sets as arrays of one size."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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


class Header(NamedTuple):
    """What is known of a picture before its pixels are read."""

    origin: str
    size: Size
    mode: str


class Layout(NamedTuple):
    """What every picture is made into: size and one grey or three colour channels."""

    size: Size
    mode: str


def read_pictures(files: Sequence[Path], origin: str, size: Size | None) -> NDArray[np.uint8]:
    """Decode picture files, all grey or else all in colour.

    All headers are read before any pixel.

    Args:
        files: the files.
        origin: their folder, for messages.
        size: what every picture is resized to (bilinear), or None to keep their size.

    Returns:
        (files, height, width, channels) bytes, one channel or three.

    Raises:
        DataError: a file is missing, no picture, damaged or has more than 8 bits a channel; the
            sizes differ and none is asked for; the whole would take too much memory.
    """
    headers = []
    for file in files:
        with _opened(file) as picture:
            headers.append(header_of(picture, printable(str(file))))
    layout = common_layout(headers, origin, size)
    pixels = _room_for(len(files), layout)
    for index, file in enumerate(files):
        with _opened(file) as picture:
            pixels[index] = _decode(picture, layout)
    return pixels


def stack_pictures(
    pictures: Sequence[Image.Image], origin: str, size: Size | None
) -> NDArray[np.uint8]:
    """Pictures in memory as ``read_pictures`` makes them of files.

    Raises:
        DataError: as ``read_pictures``.
    """
    headers = [header_of(p, f"{origin}: picture {i}") for i, p in enumerate(pictures)]
    layout = common_layout(headers, origin, size)
    pixels = _room_for(len(pictures), layout)
    for index, picture in enumerate(pictures):
        pixels[index] = _decode(picture, layout)
    return pixels


def header_of(picture: Image.Image, origin: str) -> Header:
    """Size and mode of a picture.

    Raises:
        DataError: its pixels have more than 8 bits a channel, or an unknown mode.
    """
    if picture.mode not in _GREY + _COLOUR:
        raise DataError(
            f"{origin}: pixels of mode {picture.mode} cannot be used; save it with 8 bits a channel"
        )
    return Header(origin, (picture.height, picture.width), picture.mode)


def common_layout(headers: Sequence[Header], origin: str, size: Size | None) -> Layout:
    """Size and channels that fit all of these pictures.

    Raises:
        UsageError: the size asked for is empty.
        DataError: there are none, their sizes differ and none is asked for, or the whole would
            take too much memory.
    """
    if size is not None and min(size) < 1:
        raise UsageError(f"size={_spell(size)}: is empty; say size=HEIGHTxWIDTH in pixels")
    if not headers:
        raise DataError(f"{origin}: there are no pictures")
    other = next((header for header in headers if header.size != headers[0].size), None)
    if size is None and other is not None:
        raise DataError(
            f"{other.origin}: is of {_spell(other.size)} pixels and {headers[0].origin} of "
            f"{_spell(headers[0].size)}; say size=HEIGHTxWIDTH to resize all"
        )
    grey = all(header.mode in _GREY for header in headers)
    layout = Layout(size or headers[0].size, "L" if grey else "RGB")
    expect_to_fit((len(headers), len(layout.mode), *layout.size), origin)
    return layout


def _room_for(pictures: int, layout: Layout) -> NDArray[np.uint8]:
    return np.empty((pictures, *layout.size, len(layout.mode)), dtype=np.uint8)


def _decode(picture: Image.Image, layout: Layout) -> NDArray[np.uint8]:
    height, width = layout.size
    converted = picture.convert(layout.mode)
    if converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted, dtype=np.uint8).reshape(height, width, len(layout.mode))


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
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
