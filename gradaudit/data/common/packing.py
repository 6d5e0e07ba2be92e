"""Several inputs of a model side by side in one tensor, and what the model is called with."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.data.common.arrays import as_inputs
from gradaudit.data.common.checks import expect_length, quote
from gradaudit.errors import DataError

Kind = Literal["numbers", "tokens", "flags"]


@dataclass(frozen=True)
class InputPart:
    """The place and kind of one of a model's inputs in the records' inputs.

    Attributes:
        name: the keyword that the model takes it by; empty for its only argument, and the place,
            from 0, of several that have no names.
        shape: of one record's.
        kind: real numbers, whole ones, or truth values (a mask).
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "numbers"

    @property
    def size(self) -> int:
        """Returns the number of positions that the input takes."""
        return prod(self.shape)


def packed(
    arrays: Mapping[str, NDArray[Any]], origin: str
) -> tuple[NDArray[Any], tuple[InputPart, ...]]:
    """Arrays (records, …) by the name that the model takes them by, side by side.

    Returns:
        (records, positions): int64 where all are whole numbers or truth values, else float32; and
        the parts in their order.

    Raises:
        DataError: there are none, they are not of the same records, or one cannot be an input.
    """
    if not arrays:
        raise DataError(f"{origin}: there are none; give the model's arguments by name")
    count, columns, parts = len(next(iter(arrays.values()))), [], []
    for name, array in arrays.items():
        where = f"{origin}: {quote(name)}"
        if not array.ndim or not len(array):
            raise DataError(f"{where}: is of shape {array.shape}; (records, …) is needed")
        expect_length(len(array), count, where)
        kind = kind_of(array)
        shaped = array.reshape(-1, 1) if array.ndim == 1 else array
        values = as_inputs(shaped, where) if kind == "numbers" else shaped.astype(np.int64)
        shape = array.shape[1:] if array.ndim == 1 else values.shape[1:]
        columns.append(values.reshape(count, -1))
        parts.append(InputPart(name, tuple(shape), kind))
    whole = all(part.kind != "numbers" for part in parts)
    return np.concatenate(columns, axis=1).astype(np.int64 if whole else np.float32), tuple(parts)


def kind_of(array: NDArray[Any]) -> Kind:
    """Kind of an array's values; bytes of more than one dimension are pictures."""
    if array.dtype.kind == "b":
        return "flags"
    pictures = array.dtype == np.uint8 and array.ndim > 2
    return "tokens" if array.dtype.kind in "iu" and not pictures else "numbers"


def packed_labels(
    arrays: Mapping[str, NDArray[Any]], origin: str
) -> tuple[NDArray[np.float32], tuple[InputPart, ...]]:
    """Labels (records, …) by name, side by side as real numbers.

    Raises:
        DataError: they are not of the same records, or a whole number is beyond what float32 holds.
    """
    whole = {n: a.astype(np.int64) if a.dtype.kind in "iu" else a for n, a in arrays.items()}
    for name, array in whole.items():
        if array.dtype.kind == "i" and array.size and np.abs(array).max() > _LARGEST_WHOLE:
            raise DataError(
                f"{origin}: {quote(name)} has numbers beyond {_LARGEST_WHOLE:,}; number from 0"
            )
    block, parts = packed(whole, origin)
    return block.astype(np.float32), parts


_LARGEST_WHOLE = 1 << 24
"""Whole numbers up to which float32 holds each of them."""


def arguments(
    parts: tuple[InputPart, ...], inputs: Tensor
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of a model's call: the inputs as they are without parts, else each by its name.

    Args:
        parts: in the order in which they lie side by side.
        inputs: (records, …), or (records, positions) of the parts.
    """
    if not parts:
        return (inputs,), {}
    shaped = unpacked(parts, inputs)
    if in_order(parts):
        return tuple(shaped.values()), {}
    return (), shaped


def in_order(parts: tuple[InputPart, ...]) -> bool:
    """Whether parts have places and no names: a single one, or several numbered from 0."""
    return all(not part.name or part.name.isdecimal() for part in parts)


def unpacked(parts: tuple[InputPart, ...], block: Tensor) -> dict[str, Tensor]:
    """The parts by name that lie side by side in (records, positions)."""
    blocks = torch.split(block, [part.size for part in parts], dim=1)
    return {part.name: _as(part, one) for part, one in zip(parts, blocks, strict=True)}


def _as(part: InputPart, block: Tensor) -> Tensor:
    block = block.reshape(len(block), *part.shape)
    if part.kind == "flags":
        return block > 0
    if part.kind == "tokens":
        return block if not block.is_floating_point() else block.round().long()
    return block if block.is_floating_point() else block.to(torch.get_default_dtype())
