"""Converts a model's arrays between a message and the vector of an update."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core.randomness import Seed, number
from gradaudit.errors import AuditError

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Form = Literal["weights", "differences"]
"""Whether a message holds the weights, or what training added to those received."""
LENGTHS = (1e-2, 1.0, 1e2, 1e4)
"""L2 norms of simulated updates: a clip that lies between two of them shows."""
LONG = len(LENGTHS) - 2
Exchange = Literal["numpy", "pytorch"]
"""Whether the arrays of a message are NumPy's or PyTorch's tensors."""


class ReplyError(AuditError):
    """A client's reply is an error, whose reason leaves the client."""


@dataclass(frozen=True)
class Payload:
    """The arrays of a message by their keys, and whether they are weights or differences."""

    arrays: Arrays
    form: Form


@dataclass(frozen=True)
class Outgoing:
    """A client's result, and what is sent with its arrays.

    Attributes:
        arrays: by their keys.
        form: of the arrays.
        numbers: by name.
        exchange: format of the arrays.
        extras: other values that leave, such as lists and texts, by name.
    """

    arrays: Arrays
    form: Form
    numbers: Mapping[str, float]
    exchange: Exchange = "numpy"
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Layout of a client's received message: the shapes and types of its arrays."""

    received: Arrays

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "Layout":
        """The layout of a state dict; numpy has no bfloat16, which becomes float32."""
        return cls({key: as_array(tensor) for key, tensor in state.items()})

    @property
    def elements(self) -> int:
        """Length of an update."""
        return sum(array.size for array in self.received.values())

    @cached_property
    def places(self) -> dict[str, slice]:
        """Position of each array in an update."""
        ends = accumulate((array.size for array in self.received.values()), initial=0)
        return {key: slice(*at) for key, at in zip(self.received, pairwise(ends), strict=True)}

    def where(self, keys: Collection[str]) -> Tensor:
        """Mark the elements that belong to these keys, (elements,) bool."""
        mask = torch.zeros(self.elements, dtype=torch.bool)
        for key in keys:
            mask[self.places[key]] = True
        return mask

    @property
    def real(self) -> list[str]:
        """Keys of arrays of real numbers; the others count, or are indices."""
        return [key for key, array in self.received.items() if array.dtype.kind == "f"]

    @property
    def counters(self) -> list[str]:
        """Keys of whole numbers without dimensions, as BatchNorm's count of batches."""
        arrays = self.received.items()
        return [key for key, array in arrays if not array.ndim and array.dtype.kind in "iu"]

    def payload(self, update: Tensor, form: Form) -> Payload:
        """Make the message of an update (elements,), with new arrays of the received types."""
        numbers = update.detach().cpu().double().numpy()
        arrays = {}
        for key, received in self.received.items():
            moved = numbers[self.places[key]].reshape(received.shape)
            weights = (received + moved).astype(received.dtype)
            arrays[key] = weights if form == "weights" else moved.astype(received.dtype)
        return Payload(arrays, form)

    @cached_property
    def smallest(self) -> Tensor:
        """Make the shortest update (elements,) that weights can represent."""
        steps = np.concatenate([_steps(array) for array in self.received.values()])
        update = torch.zeros(self.elements, dtype=torch.float64)
        update[int(steps.argmin())] = float(steps.min())
        return update

    def update(self, sent: Payload) -> Tensor:
        """Read the update (elements,) float32 in a message; zero where a key is missing."""
        numbers = np.zeros(self.elements, np.float32)
        for key, received in self.received.items():
            if key in sent.arrays:
                leaves = np.asarray(sent.arrays[key]).astype(np.float64)
                moved = leaves - received if sent.form == "weights" else leaves
                numbers[self.places[key]] = moved.ravel()
        return torch.from_numpy(numbers)

    def as_real(self, keys: Collection[str]) -> "Layout":
        """Change the layout so that the arrays of these keys are real numbers."""
        real = {key: self.received[key].astype(np.float64) for key in keys}
        return Layout({**self.received, **real})


def simulated(layout: Layout, seed: Seed) -> Tensor:
    """Draw an update (elements,) of norm one that moves every array of real numbers."""
    generator = torch.Generator().manual_seed(number(seed, "update"))
    made = torch.randn(layout.elements, generator=generator, dtype=torch.float64)
    made[~layout.where(layout.real)] = 0
    unit: Tensor = made / made.norm()
    return unit


def _steps(array: Array) -> Array:
    """Compute each element's smallest step (size,); infinite for arrays without real numbers."""
    if array.dtype.kind != "f" or not array.ndim:
        return np.full(array.size, np.inf)
    floor = np.sqrt(np.finfo(array.dtype).tiny)
    steps: Array = np.maximum(np.spacing(np.abs(array)), floor).astype(float).ravel()
    return steps


def as_array(tensor: Tensor) -> Array:
    """Copy a tensor of any device into an array."""
    tensor = tensor.detach().cpu()
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: Array = tensor.numpy().copy()
    return array


def messaged(arrays: Arrays, exchange: Exchange) -> dict[str, Any]:
    """Copy arrays into a message, as NumPy's or as PyTorch's."""
    copies = {key: np.array(array) for key, array in arrays.items()}
    if exchange == "numpy":
        return copies
    return {key: torch.from_numpy(array) for key, array in copies.items()}


def unpacked(data: Mapping[str, Any]) -> dict[str, Array]:
    """Read the arrays of a message, NumPy's or PyTorch's."""
    return {
        key: as_array(value) if isinstance(value, Tensor) else np.asarray(value)
        for key, value in data.items()
    }


def owner_of(key: str, layers: Collection[str]) -> str | None:
    """Find the layer that a state dict's key belongs to; None where it has none.

    It is the innermost one whose module holds the array; what the model itself holds belongs to
    ``(model)``, where that is a layer.
    """
    if "." not in key:
        return "(model)" if "(model)" in layers else None
    inside = [name for name in layers if key.startswith(f"{name}.")]
    return max(inside, key=len, default=None)
