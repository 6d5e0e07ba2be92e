"""Reads NumPy archives of plain arrays, as Flower and ``numpy.savez`` write weights."""

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError, one_line
from gradaudit.models.checkpoint.kinds import describe

MAX_UNPACKED_BYTES = 1 << 28
MAX_RATIO = 50
"""Size that an archive's arrays may always unpack to, and times its own size beyond that."""

_KINDS = "biuf"
_IN_ORDER = re.compile(r"arr_(\d+)")
_SAVE = "save plain arrays, with numpy.savez(FILE, **{name: array.numpy() …})"


def read_npz(path: Path) -> dict[str, Tensor]:
    """Return tensors by the arrays' names, in the order of the archive.

    Raises:
        CheckpointError: it is damaged, a bomb, or holds other than arrays of numbers.
    """
    most = max(MAX_UNPACKED_BYTES, MAX_RATIO * path.stat().st_size)
    try:
        arrays = contained.read(partial(_arrays, path, most), memory=most, output=most + (1 << 20))
    except ContainedError as error:
        raise CheckpointError(
            f"{describe(path)}: cannot be read as a NumPy archive ({error}); fetch or save it again"
        ) from error
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def in_order(names: Collection[str]) -> list[str] | None:
    """Return the names ``arr_0``, ``arr_1``, … in order where the archive has no others."""
    numbers = {match[1]: name for name in names if (match := _IN_ORDER.fullmatch(name))}
    ordered = [numbers.get(str(place)) for place in range(len(names))]
    return [name for name in ordered if name] if names and all(ordered) else None


def _arrays(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """Read an archive, in the child."""
    with np.load(path, allow_pickle=False) as archive:
        if len(set(archive.files)) < len(archive.files):
            raise CheckpointError(f"{describe(path)}: is an archive in which names repeat; {_SAVE}")
        unpacked = sum(entry.file_size for entry in archive.zip.infolist())
        if unpacked > most:
            raise CheckpointError(
                f"{describe(path)}: would unpack to {unpacked >> 20} MiB, over {MAX_RATIO} times "
                f"the file; {_SAVE}"
            )
        return {name: _array(archive, name, path) for name in archive.files}


def _array(archive: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        array = archive[name]
    except ValueError as error:
        raise CheckpointError(
            f"{describe(path)}: array {printable(name, 60)}: {one_line(error)}; {_SAVE}"
        ) from error
    if not isinstance(array, np.ndarray):
        what = f"holds {printable(name, 60)}, which is no array"
    elif array.dtype.kind not in _KINDS:
        what = f"array {printable(name, 60)} is of type {array.dtype}, and weights are numbers"
    else:
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    raise CheckpointError(f"{describe(path)}: {what}; {_SAVE}")
