"""Pictures from files or data sets as arrays of one size."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from gradaudit.data.common.checks import expect_to_fit
from gradaudit.errors import DataError, GradauditError, UsageError
from gradaudit.files import expect_file
from gradaudit.text import printable

Size = tuple[int, int]
"""(height, width) in pixels."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that are decoded by a library; others (EPS) would start a program."""

_GREY = ("1", "L")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
"""Grey of 16 bits."""
_TRANSPARENT = ("RGBA", "LA", "PA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "LA", "CMYK", "YCbCr", "HSV", "LAB")


_BYTE_IN_16_BITS = np.uint16(257)
"""What a byte is multiplied by, so that white stays white."""

Picture = Path | bytes | Image.Image
"""A file, what is in one, or a picture in memory."""


def stack_pictures(
    pictures: Sequence[tuple[str, Picture]], origin: str, size: Size | None
) -> tuple[NDArray[np.uint8 | np.uint16], dict[str, JsonValue]]:
    """Decode pictures, all grey or else all in colour; and notes on what is read of them.

    All headers are read before any pixel. Every picture is resized to ``size`` (bilinear), if any.
    Where some are grey of 16 bits all become 16 bits, of which 65,535 is white.

    Args:
        pictures: each with its name for messages; a file is opened for its header and again for
            its pixels.
        origin: the data, for messages.
        size: height and width.

    Returns:
        (pictures, height, width, channels) bytes or uint16, one channel or three; and the notes:
        the largest value of 16 bits, how many have transparency or further frames that are left.

    Raises:
        UsageError: the size asked for is empty.
        DataError: a file is missing, no picture, damaged or has more bits a channel than that; the
            sizes differ and none is asked for; there are none; the whole would take too much
            memory.
    """
    headers = _headers(pictures)
    (height, width), mode = _common_layout(headers, origin, size)
    deep = any(header.mode in _DEEP for header in headers)
    shape = len(pictures), height, width, len(mode)
    pixels: NDArray[np.uint8 | np.uint16] = np.empty(shape, np.uint16 if deep else np.uint8)
    for index, (name, source) in enumerate(pictures):
        with _opened(name, source) as picture:
            pixels[index] = _pixels(picture, mode, (height, width), deep)
    notes: dict[str, JsonValue] = {"sixteen_bits": int(pixels.max())} if deep else {}
    counts = {
        "transparent": sum(header.transparent for header in headers),
        "several_frames": sum(header.frames for header in headers),
    }
    return pixels, notes | {key: count for key, count in counts.items() if count}


def _pixels(picture: Image.Image, mode: str, size: Size, deep: bool) -> NDArray[Any]:
    """A picture of that size as (height, width, channels) that broadcast to those of the mode."""
    grey = picture.mode in _DEEP
    made = picture.convert(mode) if not grey else Image.fromarray(_as_floats(picture))
    if made.size != size[::-1]:
        made = made.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(made).reshape(*size, -1)
    if grey:
        return pixels.round()
    return pixels.astype(np.uint16) * _BYTE_IN_16_BITS if deep else pixels


def _as_floats(picture: Image.Image) -> NDArray[np.float32]:
    """The pixels of a grey picture as numbers, which can be resized."""
    return np.asarray(picture).astype(np.float32)


def opened_pictures(pictures: Sequence[tuple[str, Picture]]) -> Iterator[Image.Image]:
    """Each picture in turn, in its own size and 8 bits, all grey or else all in colour.

    Raises:
        DataError: as above, or one is of 16 bits.
    """
    headers = _headers(pictures)
    deep = next((header.name for header in headers if header.mode in _DEEP), None)
    if deep is not None:
        raise DataError(
            f"{deep}: has 16 bits a channel, which transform= does not take; use size= and "
            "normalize= in its place, or save it with 8 bits"
        )
    mode = _common_mode(headers)
    for name, source in pictures:
        with _opened(name, source) as picture:
            yield picture.convert(mode)


@dataclass(frozen=True)
class _Header:
    name: str
    size: Size
    mode: str
    transparent: bool
    frames: bool
    """Whether there is more than the first one."""


def _headers(pictures: Sequence[tuple[str, Picture]]) -> list[_Header]:
    headers = []
    for name, source in pictures:
        with _opened(name, source) as picture:
            headers.append(_header(picture, name, in_file=not isinstance(source, Image.Image)))
    return headers


def _common_mode(headers: Sequence[_Header]) -> str:
    return "L" if all(header.mode in _GREY + _DEEP for header in headers) else "RGB"


def _header(picture: Image.Image, name: str, *, in_file: bool) -> _Header:
    if picture.mode not in _GREY + _DEEP + _COLOUR:
        raise DataError(
            f"{name}: pixels of mode {picture.mode} cannot be used; save it with 8 bits a channel, "
            "or 16 of grey"
        )
    size, mode = (picture.height, picture.width), picture.mode
    transparent = mode in _TRANSPARENT or "transparency" in picture.info
    return _Header(name, size, mode, transparent, in_file and _has_more(picture))


def _has_more(picture: Image.Image) -> bool:
    """Whether a file has a second frame; it stands there then."""
    with suppress(Exception):  # a decoder may fail in any way at what is not looked for
        picture.seek(1)
        return True
    return False


def _common_layout(headers: Sequence[_Header], origin: str, size: Size | None) -> tuple[Size, str]:
    """Size, and mode with one grey or three colour channels, that fit all of these pictures."""
    if size is not None and min(size) < 1:
        raise UsageError(f"size={_spell(size)}: is empty; say size=HEIGHTxWIDTH in pixels")
    if not headers:
        raise DataError(f"{origin}: there are no pictures")
    first, common = headers[0].name, headers[0].size
    other = next((header for header in headers if header.size != common), None)
    if size is None and other is not None:
        raise DataError(
            f"{other.name}: is of {_spell(other.size)} pixels and {first} of {_spell(common)}; "
            "say size=HEIGHTxWIDTH to resize all"
        )
    mode = _common_mode(headers)
    expect_to_fit((len(headers), len(mode), *(size or common)), origin)
    return size or common, mode


@contextmanager
def _opened(name: str, source: Picture) -> Iterator[Image.Image]:
    if isinstance(source, Image.Image):
        yield source
        return
    with (
        _decoding(name),
        warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
        Image.open(_content(source), formats=_FORMATS) as picture,
    ):
        yield picture


def _content(source: Path | bytes) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else expect_file(source)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise DataError(printable(f"{error}", 1000)) from error
    except GradauditError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: has too many pixels to be read") from error
    except Exception as error:  # damage shows in every way that a decoder can fail
        raise DataError(
            f"{name}: cannot be read as a picture; repair it or leave it out"
        ) from error


def _spell(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
