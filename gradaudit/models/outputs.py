"""Outputs of a model: the tensor of its prediction, or all tensors packed into one.

Engines take outputs as one tensor (records, …). A loss of the user's may see more of them than the
prediction: dictionaries of heads, the mean and the variance of a VAE, the embeddings of a triplet.
Those are laid side by side in (records, positions), and put together again before the loss is
called, so every engine differentiates all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from gradaudit.core.text import listed
from gradaudit.errors import AuditError

PREDICTIONS = ("logits", "out", "outputs", "output", "predictions", "prediction")
"""Names that models give to their prediction among other outputs."""


def unwrap(output: Any) -> Tensor:
    """Returns the tensor in a model's output: itself, the first of a sequence, or its ``logits``.

    Of ``start_logits`` and ``end_logits``, (records, positions) each, it is (records, positions,
    2): where an answer begins and ends are two labels, of which the positions are the classes.

    Raises:
        AuditError: there is none.
    """
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    ends = [_part(output, f"{end}_logits") for end in ("start", "end")]
    if all(isinstance(end, Tensor) for end in ends):
        return torch.stack(ends, dim=2)
    found = output.get("logits") if isinstance(output, Mapping) else output
    found = getattr(found, "logits", found)
    if isinstance(found, Tensor):
        return found
    names = f" of {listed(list(map(str, output)))}" if isinstance(output, Mapping) else ""
    raise AuditError(
        f"the model returns {type(output).__name__}{names}; it must return a tensor, a tuple whose "
        "first part is one, or something with `logits`, or be given a loss that takes what it "
        "returns (--loss FILE.py:NAME)"
    )


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


@dataclass(frozen=True)
class OutputLeaf:
    """A tensor of structured outputs, and its place in the packed ones.

    Attributes:
        name: the keys that lead to it, with points between them.
        start: its first position.
        shape: of one record's.
        dtype: of whole numbers and truth values, None of real numbers.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    def of(self, packed: Tensor) -> Tensor:
        """Returns the tensor, (records, …), from packed outputs."""
        block = packed[:, self.start : self.start + prod(self.shape)]
        block = block.reshape(len(packed), *self.shape)
        if self.dtype is None:
            return block
        return block > 0 if self.dtype is torch.bool else block.round().to(self.dtype)


@dataclass(frozen=True)
class OutputBranch:
    """A tuple, list, mapping or dataclass in structured outputs."""

    kind: type
    parts: tuple[tuple[Any, Any], ...]

    def of(self, packed: Tensor) -> Any:
        """Returns the structure filled with tensors from the packed ones."""
        kinds = (OutputLeaf, OutputBranch)
        parts = {k: part.of(packed) if isinstance(part, kinds) else part for k, part in self.parts}
        make: Any = self.kind
        if is_dataclass(self.kind):
            return make(**parts)
        if issubclass(self.kind, Mapping):
            return parts if self.kind is dict else make(parts)
        values = list(parts.values())
        return make(*values) if hasattr(self.kind, "_fields") else make(values)

    def leaves(self) -> list[OutputLeaf]:
        """Yields its tensors in order."""
        found = []
        for _, part in self.parts:
            if isinstance(part, OutputLeaf):
                found.append(part)
            elif isinstance(part, OutputBranch):
                found += part.leaves()
        return found

    def prediction(self) -> OutputLeaf:
        """Returns the model's prediction: the tensor with a known name, else the first real one."""
        leaves = self.leaves()
        named = [leaf for name in PREDICTIONS for leaf in leaves if leaf.name == name]
        real = [leaf for leaf in leaves if leaf.dtype is None]
        return (*named, *real, *leaves)[0]


def packed_outputs(output: Any) -> tuple[Tensor, OutputBranch]:
    """Packs structured outputs side by side, (records, positions), and returns their layout.

    Raises:
        AuditError: there is no tensor in them, or one is not of the same records.
    """
    tensors: list[Tensor] = []
    branch = _branch(output, "", tensors, [0])
    if not isinstance(branch, OutputBranch) or not tensors:
        raise AuditError(
            f"the model returns {type(output).__name__}, in which there is no tensor; it must "
            "return tensors, or tuples, mappings or dataclasses of them"
        )
    if torch.is_floating_point(tensors[0]) or any(map(torch.is_floating_point, tensors)):
        dtype = next(tensor.dtype for tensor in tensors if tensor.is_floating_point())
        tensors = [tensor.to(dtype) for tensor in tensors]
    counts = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
    if len(counts) > 1 or 0 in counts:
        leaves = zip(branch.leaves(), tensors, strict=True)
        shapes = listed([f"{leaf.name} {tuple(tensor.shape)}" for leaf, tensor in leaves])
        raise AuditError(
            f"the model returns tensors of shapes {shapes}, which are not all of the same records; "
            "return one part a record in each, (records, …)"
        )
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1), branch


def _branch(value: Any, name: str, tensors: list[Tensor], at: list[int]) -> Any:
    """Returns the structure with a leaf for each tensor; plain values are kept, others are None."""
    if isinstance(value, Tensor):
        tensors.append(value)
        dtype = None if value.is_floating_point() else value.dtype
        leaf = OutputLeaf(name, at[0], tuple(value.shape[1:]), dtype)
        at[0] += prod(leaf.shape)
        return leaf
    if (parts := _parts(value)) is None:
        return value if isinstance(value, (bool, int, float, str)) else None
    inner = tuple((k, _branch(v, f"{name}.{k}".strip("."), tensors, at)) for k, v in parts)
    return OutputBranch(type(value), inner)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None
