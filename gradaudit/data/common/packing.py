"""Several inputs of a model side by side in one tensor, and what the model is called with."""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

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
