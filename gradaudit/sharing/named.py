"""An update by names, as it leaves a client: what was trained, and what goes beside it.

Arrays are matched by their names, never by their order; arrays without names are only taken where
every one has the shape of its place in a state dict. Weights and differences are distinguished by
c = ⟨after, before⟩/‖before‖²: about 1 of weights, about 0 of a difference, which has no reason to
point where the weights do.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core.text import listed, printable
from gradaudit.errors import AuditError

Kind = Literal["weights", "difference", "gradient"]
"""Kinds of what leaves: the weights after training, after − before, or a gradient."""
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_WEIGHTS, _DIFFERENCE = 0.75, 0.25
"""c from which on arrays are weights, and up to which they are a difference."""
_ENOUGH = 1 << 18
"""Elements that suffice to distinguish weights from differences."""


class Packed(Protocol):
    """An array as a federation sends it, unpacked when it is read."""

    def numpy(self) -> NDArray[Any]:
        """Return the values as a NumPy array."""
        ...


Array = Tensor | NDArray[Any] | Packed


@dataclass(frozen=True)
class NamedUpdate:
    """A client's shared update, by name.

    Attributes:
        after: what leaves, of parameters of floating point and one dimension or more.
        before: the weights that came, by the same names and more; empty where they are not known.
        kind: what ``after`` is.
        apart: why each other array that leaves is no part of the update, by its name.
        beside: those arrays, by their names.
        hidden: names that came and do not leave.
        records: how many records are behind it, where that is known.
        smoothing: of the labels, by the loss that it was trained with.
        errors: how far rounding moves an element, by name, where the arrays do not show it.
        cache: differences that were taken already.
    """

    after: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    kind: Kind
    apart: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    records: int | None = None
    smoothing: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict)
    cache: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def change(self, name: str) -> Tensor:
        """The update of one parameter in the gradient's direction: before − after, or a gradient.

        In single precision at least, in the parameter's shape.
        """
        if name not in self.cache:
            after = _widened(self.after[name])
            if self.kind == "weights":
                after = _widened(self.before[name]) - after
            self.cache[name] = -after if self.kind == "difference" else after
        return self.cache[name]

    def rounding(self, name: str) -> float:
        """About how far rounding moves an element: the unit in the last place of its size."""
        if name in self.errors:
            return self.errors[name]
        return unit_of(self.before[name] if self.kind == "weights" else self.after[name])

    def layers(self) -> dict[str, tuple[str, ...]]:
        """The parameters of each layer: those whose names are alike up to the last dot."""
        layers: dict[str, list[str]] = {}
        for name in self.after:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
        return {layer: tuple(names) for layer, names in layers.items()}


def unit_of(array: Tensor, dtype: torch.dtype | None = None) -> float:
    """The unit in the last place of an element of usual size, in the array's type or another."""
    if not array.numel():
        return 0.0
    size = float(_widened(array).norm()) / math.sqrt(array.numel())
    return torch.finfo(dtype or array.dtype).eps * size


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def named_update(
    before: Mapping[str, Array] | None,
    after: Mapping[str, Array],
    *,
    kind: Kind | None = None,
    parameters: Iterable[str] | None = None,
    records: int | None = None,
    smoothing: float = 0.0,
    state: Mapping[str, Array] | None = None,
) -> NamedUpdate:
    """Match what leaves with what came.

    Args:
        before: the weights that came, buffers too; a gradient needs none.
        after: what leaves: some or all of the same names.
        kind: what that is; found by comparing the two where it is not given.
        parameters: names of the trained parameters; all else are buffers. Without them, buffers
            are known by BatchNorm's names.
        records: how many records were trained on.
        smoothing: of the labels, by the loss.
        state: a state dict with the names of arrays that are called 0, 1, … by their order; their
            shapes are compared with it.

    Raises:
        AuditError: something is no array or no kind, names or shapes do not match, the two kinds
            cannot be told apart, values are not finite, or nothing is left.
    """
    if kind not in (None, *get_args(Kind)):
        raise AuditError(f"kind: {kind!r} is none of {', '.join(get_args(Kind))}")
    came, left = _tensors(before or {}, state), _tensors(after, state)
    _expect_match(came, left, gradient=kind == "gradient")
    trained = None if parameters is None else set(parameters)
    reasons = {name: _why_apart(name, array, trained) for name, array in left.items()}
    apart = {name: why for name, why in reasons.items() if why}
    inside = {name: array for name, array in left.items() if name not in apart}
    if not inside:
        raise AuditError("no array of floating point leaves, so there is no update to look at")
    if broken := [printable(name) for name, array in inside.items() if not _is_finite(array)]:
        raise AuditError(
            f"the update is not finite in {listed(broken)}; training diverged, look at the rate"
        )
    return NamedUpdate(
        after=inside,
        before=came,
        kind=kind or kind_of(came, inside),
        apart=apart,
        beside={name: left[name] for name in apart},
        hidden=tuple(name for name in came if name not in left),
        records=records,
        smoothing=smoothing,
    )


def _tensors(arrays: Mapping[str, Array], state: Mapping[str, Array] | None) -> dict[str, Tensor]:
    tensors = {name: _tensor(array) for name, array in arrays.items()}
    if not tensors or not all(name.isdigit() for name in tensors):
        return tensors
    if state is None:
        raise AuditError(
            "the arrays have no names but their order; give state=model.state_dict(), which has "
            "the names, or send names"
        )
    return in_order(list(tensors.values()), {name: _tensor(held) for name, held in state.items()})


def _tensor(array: Array) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()
    if not isinstance(array, np.ndarray) and not hasattr(array, "numpy"):
        raise AuditError(f"a {type(array).__name__} is no array; give tensors or numpy's arrays")
    plain = array if isinstance(array, np.ndarray) else array.numpy()
    plain = np.ascontiguousarray(plain, plain.dtype.newbyteorder("=")).reshape(plain.shape)
    return torch.from_numpy(plain if plain.flags.writeable else plain.copy())


def _expect_match(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, gradient: bool
) -> None:
    if gradient and not before:
        return
    if unknown := [printable(name) for name in after if name not in before]:
        raise AuditError(
            f"what leaves cannot be matched with what came: {listed(unknown)} did not come; "
            "name arrays as in model.state_dict() on both sides"
        )
    for name, array in after.items():
        if array.shape != before[name].shape:
            raise AuditError(
                f"{printable(name)}: {tuple(array.shape)} leaves where "
                f"{tuple(before[name].shape)} came; arrays of one name must have one shape"
            )


def _is_finite(array: Tensor) -> bool:
    """Look in one pass, and without another array of its size."""
    return not array.numel() or all(math.isfinite(end) for end in torch.stack(array.aminmax()))


def _why_apart(name: str, array: Tensor, parameters: set[str] | None) -> str:
    """Why an array is no part of the update; empty where it is one."""
    if not array.is_floating_point():
        return "integer"
    if name.endswith(_BUFFERS) if parameters is None else name not in parameters:
        return "buffer"
    return "" if array.dim() else "0-d"


def kind_of(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Kind:
    """Whether what leaves are weights, or their difference from what came.

    Raises:
        AuditError: neither is near enough, or there is nothing to compare with.
    """
    along, length, seen = 0.0, 0.0, 0
    for name, array in after.items():
        if seen < _ENOUGH:
            came = before[name].flatten()[: _ENOUGH - seen].double()
            along += float(came @ array.flatten()[: _ENOUGH - seen].double())
            length += float(came @ came)
            seen += array.numel()
    share = along / length if length else math.nan
    if share > _WEIGHTS:
        return "weights"
    if share < _DIFFERENCE:
        return "difference"
    raise AuditError(
        "whether weights or their difference leave cannot be known "
        f"(⟨after, before⟩/‖before‖² is {share:.2f}, about 1 of weights and 0 of a difference); "
        "say kind='weights' or kind='difference'"
    )


def in_order(arrays: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Arrays without names under the names of a state dict, whose order and shapes they have.

    Raises:
        AuditError: there are more or fewer, or the shape of one is another.
    """
    if len(arrays) != len(state):
        raise AuditError(
            f"{len(arrays)} arrays without names where the model's state has {len(state)}; "
            "send all of model.state_dict() in order, or send names"
        )
    for array, (name, held) in zip(arrays, state.items(), strict=True):
        if array.shape != held.shape:
            raise AuditError(
                f"an array without a name is of shape {tuple(array.shape)} where the model has "
                f"{printable(name)} {tuple(held.shape)}; send model.state_dict() in order, or names"
            )
    return dict(zip(state, arrays, strict=True))
