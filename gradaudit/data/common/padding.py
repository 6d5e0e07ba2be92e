"""Items of different widths, as collators that pad each batch to its own widest item give them.

Where a mask says which positions are filled (``attention_mask``), the arrays beside it that are as
long are padded to the widest of all items, on the side where the batches have their padding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.records import IGNORED

_NO_TOKENS = ("mask", "type", "position")
"""Words in the names of whole numbers that are no tokens, which are padded with zeros."""


def padded(
    inputs: Sequence[Mapping[str, NDArray[Any]]], labels: Sequence[Any]
) -> tuple[list[dict[str, NDArray[Any]]], list[Any], dict[str, JsonValue]]:
    """Inputs and labels with the arrays beside a mask brought to its widest; and a note.

    Tokens get the token that stands where a mask says that nothing is, or 0; masks, types and
    numbers get 0; whole numbers as labels, -100. What is as long as no mask stays as it is.

    Args:
        inputs: arrays of each record by the names of the model's arguments.
        labels: of each record.
    """
    made, told, notes = [dict(one) for one in inputs], list(labels), dict[str, JsonValue]()
    for mask in [name for name, first in inputs[0].items() if "mask" in name and first.ndim == 1]:
        lengths = _lengths([one[mask] for one in inputs])
        if not lengths or len(set(lengths)) == 1:
            continue
        left = any(not one[mask][:1].all() for one in inputs)
        filling = _filling(made, mask, lengths)
        for name, value in filling.items():
            for one in made:
                one[name] = _wide(one[name], max(lengths), value, left)
        notes["padded_to"] = max(lengths)
        if _lengths(told) == lengths and np.asarray(told[0]).dtype.kind in "iu":
            told = [_wide(np.asarray(one), max(lengths), IGNORED, left) for one in told]
    ragged = _lengths(told)
    if notes and len(set(ragged)) > 1 and np.asarray(told[0]).dtype.kind in "iu":
        told = [_wide(np.asarray(one), max(ragged), IGNORED, left=False) for one in told]
    return made, told, notes


def _lengths(values: Sequence[Any]) -> list[int]:
    """How many positions each has; empty where one has none."""
    shapes = [np.shape(value) for value in values]
    return [shape[0] for shape in shapes] if all(shapes) else []


def _filling(
    inputs: Sequence[Mapping[str, NDArray[Any]]], mask: str, lengths: Sequence[int]
) -> dict[str, int]:
    """What fills up each of the arrays that are as long as the mask."""
    found = {}
    for name, first in inputs[0].items():
        if _lengths([one[name] for one in inputs]) != lengths:
            continue
        words = first.dtype.kind in "iu" and not any(word in name for word in _NO_TOKENS)
        behind = (one[name][~one[mask].astype(bool)] for one in inputs) if words else ()
        found[name] = next((int(tokens.flat[0]) for tokens in behind if tokens.size), 0)
    return found


def _wide(array: NDArray[Any], width: int, value: int, left: bool) -> NDArray[Any]:
    """The array with as many positions, the new ones in front or behind."""
    more = width - len(array)
    ends = [(more, 0) if left else (0, more), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, ends, constant_values=value)
