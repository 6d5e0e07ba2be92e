"""Reads NumPy archives of plain arrays, as Flower and ``numpy.savez`` write weights.

Each array's header is read first: objects (pickles) are refused, and nothing is unpacked that the
file could not hold.
"""

import math
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradaudit.core.npz import SUFFIX, NpzArchive, opened
from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError, one_line
from gradaudit.models.checkpoint.kinds import describe

MAX_UNPACKED_BYTES = 1 << 28
MAX_RATIO = 50
"""Size that a compressed archive may always unpack to, and times its own size beyond that."""

_KINDS = "biuf"
_IN_ORDER = re.compile(r"arr_(\d+)")
_SAVE = "save plain arrays, with numpy.savez(FILE, **{name: array.numpy() …})"


def read_npz(path: Path) -> dict[str, Tensor]:
    """Returns tensors by the arrays' names, in the order of the archive.

    Raises:
        CheckpointError: it is damaged, a bomb, or holds other than arrays of numbers.
    """
    try:
        with opened(path) as archive:
            _expect_plain_archive(archive, path)
            return {
                name.removesuffix(SUFFIX): _tensor(archive, name, path) for name in archive.names
            }
    except CheckpointError:
        raise
    except Exception as error:  # damage shows in every way that zipfile and numpy can fail
        raise CheckpointError(
            f"{describe(path)}: cannot be read as a NumPy archive "
            f"({printable(one_line(error), 200)}); fetch or save it again"
        ) from error


def in_order(names: Collection[str]) -> list[str] | None:
    """Returns the names ``arr_0``, ``arr_1``, … in order where the archive has no others."""
    numbers = {match[1]: name for name in names if (match := _IN_ORDER.fullmatch(name))}
    ordered = [numbers.get(str(place)) for place in range(len(names))]
    return [name for name in ordered if name] if names and all(ordered) else None


def _expect_plain_archive(archive: NpzArchive, path: Path) -> None:
    names, packed = archive.names, path.stat().st_size
    size = sum(map(archive.size, names))
    reason = None
    if other := next((name for name in names if not name.endswith(SUFFIX)), None):
        reason = f"holds {printable(other, 60)}, which is no array"
    elif len(set(names)) < len(names):
        reason = "is an archive in which names repeat"
    elif size > max(MAX_UNPACKED_BYTES, MAX_RATIO * packed):
        reason = f"would unpack to {size >> 20} MiB, over {MAX_RATIO} times the file"
    if reason:
        raise CheckpointError(f"{describe(path)}: {reason}; {_SAVE}")


def _tensor(archive: NpzArchive, name: str, path: Path) -> Tensor:
    if reason := _why_not(archive, name):
        key = printable(name.removesuffix(SUFFIX), 60)
        raise CheckpointError(f"{describe(path)}: array {key} {reason}; {_SAVE}")
    array = archive.array(name)
    return torch.from_numpy(np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _why_not(archive: NpzArchive, name: str) -> str | None:
    """Returns why an array must not be unpacked, judged by its header; None where it may."""
    shape, dtype = archive.header(name)
    if dtype.hasobject:
        return "holds Python objects, which can run code when read"
    if dtype.kind not in _KINDS:
        return f"is of type {dtype}, and weights are numbers"
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > archive.size(name):
        return f"declares the shape {shape}, which it does not hold"
    return None
