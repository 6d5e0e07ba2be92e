"""Reading a NumPy archive of plain arrays, as Flower and ``numpy.savez`` write weights.

Each array's header is read first: objects (pickles) are refused, and nothing is unpacked that the
file could not hold.
"""

import math
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.kinds import describe
from gradaudit.text import printable

MAX_UNPACKED_BYTES = 1 << 28
MAX_RATIO = 50
"""What a compressed archive may unpack to in any case, and how many times its size beyond that."""

_SUFFIX = ".npy"
_KINDS = "biuf"
_IN_ORDER = re.compile(r"arr_(\d+)")
_SAVE = "save plain arrays, with numpy.savez(FILE, **{name: array.numpy() …})"


def read_npz(path: Path) -> dict[str, Tensor]:
    """Tensors by the arrays' names, in the order of the archive.

    Raises:
        CheckpointError: it is damaged, a bomb, or holds other than arrays of numbers.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry.filename for entry in archive.infolist()]
            _expect_plain_archive(archive, path)
            return {name.removesuffix(_SUFFIX): _tensor(archive, name, path) for name in names}
    except CheckpointError:
        raise
    except Exception as error:  # damage shows in every way that zipfile and numpy can fail
        raise CheckpointError(
            f"{describe(path)}: is a truncated or damaged NumPy archive "
            f"({type(error).__name__}); fetch or save it again"
        ) from error


def in_order(names: Collection[str]) -> list[str] | None:
    """The names ``arr_0``, ``arr_1``, … by their numbers, where these are all there are."""
    numbers = {found[1]: name for name in names if (found := _IN_ORDER.fullmatch(name))}
    ordered = [numbers.get(str(place)) for place in range(len(names))]
    return [name for name in ordered if name] if names and all(ordered) else None


def _expect_plain_archive(archive: zipfile.ZipFile, path: Path) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    size, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    reason = None
    if other := next((name for name in names if not name.endswith(_SUFFIX)), None):
        reason = f"holds {printable(other, 60)}, which is no array"
    elif len(set(names)) < len(names):
        reason = "is an archive in which names repeat"
    elif size > max(MAX_UNPACKED_BYTES, MAX_RATIO * packed):
        reason = f"would unpack to {size >> 20} MiB, over {MAX_RATIO} times the file"
    if reason:
        raise CheckpointError(f"{describe(path)}: {reason}; {_SAVE}")


def _tensor(archive: zipfile.ZipFile, name: str, path: Path) -> Tensor:
    with archive.open(name) as stream:
        reason = _why_not(stream, archive.getinfo(name).file_size)
    if reason:
        key = printable(name.removesuffix(_SUFFIX), 60)
        raise CheckpointError(f"{describe(path)}: array {key} {reason}; {_SAVE}")
    with archive.open(name) as stream:
        array = npy.read_array(stream, allow_pickle=False)
    native = array.dtype.newbyteorder("=")
    return torch.from_numpy(np.asarray(array, dtype=native, order="C"))


def _why_not(stream: IO[bytes], size: int) -> str | None:
    """Why an array of so many bytes must not be unpacked, by its header."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        return "holds Python objects, which can run code when read"
    if dtype.kind not in _KINDS:
        return f"is of type {dtype}, and weights are numbers"
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > size:
        return f"declares the shape {shape}, which it does not hold"
    return None
