"""Reads a checkpoint of any format and returns the state dict inside it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gradaudit.core.files import digest_of, digest_of_shards
from gradaudit.core.text import listed, printable
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint.kinds import REMEDY, describe, kind_of
from gradaudit.models.checkpoint.npz_weights import in_order, read_npz
from gradaudit.models.checkpoint.shards import (
    other_weights,
    places_in,
    read_safetensors,
    read_shards,
    weights_in,
)
from gradaudit.models.checkpoint.torch_file import read_torch
from gradaudit.report import CheckpointRecord

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
"""Keys under which scripts save a state dict: Lightning and the ImageNet example, PyTorch's
tutorials, torchvision's references, DeepSpeed."""

_MAX_DEPTH = 3
_MOST_NAMED = 5
"""Largest number of state dicts that a message names."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The named tensors of a checkpoint.

    Attributes:
        state: tensors by the names in the file; they stay mapped from it, on the CPU.
        record: the file's name and content hash.
        notes: what was unwrapped and left aside, for the report.
        ordered: whether the tensors have no names but stand in the order of a state dict.
    """

    state: dict[str, Tensor]
    record: CheckpointRecord
    notes: tuple[str, ...] = ()
    ordered: bool = False


def load_checkpoint(path: Path | str, weights: str | None = None) -> LoadedCheckpoint:
    """Returns the named tensors in a file (weights, gradients), which is treated as untrusted.

    A folder stands for the index of shards in it, or for its one file of weights.

    Args:
        path: of the file or folder.
        weights: key of the state dict, where the file holds several.

    Raises:
        UsageError: the file is missing or cannot be opened.
        CheckpointError: it is refused, damaged or holds no named tensors.
    """
    path = Path(path)
    file = weights_in(path) if path.is_dir() else path
    beside = other_weights(path, file) if path.is_dir() else ()
    sharded = kind_of(file) == "shards"
    if weights is not None and (sharded or kind_of(file) != "torch"):
        raise UsageError(
            f"--state-dict {weights}: {describe(file)} holds the named tensors of one model alone; "
            "leave it out"
        )
    if sharded:
        state, digest = (
            read_shards(file, _of_shard),
            digest_of_shards(file, places_in(file).values()),
        )
        notes: tuple[str, ...] = (f"read from the shards that {describe(Path(file.name))} names",)
    else:
        (state, notes), digest = _of_file(file, weights), digest_of(file)
    notes = (*notes, *([f"files left aside: {listed(beside)}"] if beside else []))
    record = CheckpointRecord(file=describe(path), sha256=digest)
    if names := in_order(state):
        return LoadedCheckpoint({name: state[name] for name in names}, record, notes, ordered=True)
    return LoadedCheckpoint(state, record, notes)


def _of_shard(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a shard, memory-mapped from the file."""
    if kind_of(path) == "npz":
        raise CheckpointError(f"{describe(path)}: is a NumPy archive, and no shard")
    return _of_file(path)[0]


def _of_file(path: Path, weights: str | None = None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the named tensors of a single file, and notes."""
    match kind_of(path):
        case "npz":
            return _unwrap(read_npz(path), describe(path))
        case "safetensors":
            return _unwrap(read_safetensors(path), describe(path))
        case "torch":
            content, aside = read_torch(path)
            content, chosen = _chosen(content, describe(path), weights)
            state, notes = _unwrap(content, describe(path))
            return state, (*notes, *chosen, *aside)
        case "shards":
            raise CheckpointError(f"{describe(path)}: is an index of shards, and no shard")


def _chosen(content: object, file: str, key: str | None) -> tuple[object, tuple[str, ...]]:
    """Returns the requested state dict, else all, and notes on those that are left aside."""
    if key is None:
        return content, ()
    given = content if isinstance(content, Mapping) else {}
    states = {k: state for k, state in given.items() if isinstance(k, str) and _is_state(state)}
    if key not in states:
        raise UsageError(
            f"--state-dict {key}: {file} holds no such state dict; its state dicts are: "
            f"{listed(states, 20) or 'none'}"
        )
    left = [name for name in states if name != key]
    note = f"state dict taken from {key!r}, as --state-dict says"
    return states[key], (note, *([f"left aside: {listed(left)}"] if left else []))


def _unwrap(content: object, file: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the named tensors in a loaded file, and notes on what was unwrapped or ignored."""
    notes: list[str] = []
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise CheckpointError(f"{file}: holds a {kind}, not a dict of named tensors; {REMEDY}")
    level: Mapping[Any, Any] = content
    for _ in range(_MAX_DEPTH):
        if (key := _wrapper(level, file)) is None:
            break
        notes.append(f"state dict taken from {key!r}")
        inner = level[key]
        _note_rest([other for other, value in level.items() if value is not inner], level, notes)
        level = inner
    state = {k: v.detach() for k, v in level.items() if _names_tensor(k, v)}
    if not state:
        inside = [k for k, v in content.items() if isinstance(k, str) and _is_state(v)]
        ways = [f"--state-dict {shlex.quote(printable(key))}" for key in inside[:_MOST_NAMED]]
        raise CheckpointError(
            f"{file}: holds no named tensors at the top or inside {', '.join(WRAPPERS)}; "
            + (
                f"those elsewhere in a checkpoint are taken by {' or '.join(ways)}"
                if ways
                else REMEDY
            )
        )
    _note_rest([key for key in level if key not in state], level, notes)
    return state, tuple(notes)


def _wrapper(content: Mapping[Any, Any], file: str) -> str | None:
    keys = [key for key in WRAPPERS if _is_state(content.get(key))]
    if len(keys) > 1:
        raise CheckpointError(
            f"{file}: holds several state dicts ({', '.join(keys)}); save the one to audit alone"
        )
    return keys[0] if keys else None


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and (
        any(_names_tensor(k, v) for k, v in value.items())
        or any(isinstance(value.get(key), Mapping) for key in WRAPPERS)
    )


def _names_tensor(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, Tensor)


def _note_rest(keys: list[object], level: Mapping[Any, Any], notes: list[str]) -> None:
    """Name keys that are left aside; state dicts come first, as averaged weights are."""
    if keys:
        names = [str(key) for key in sorted(keys, key=lambda key: not _is_state(level[key]))]
        notes.append(f"left aside: {listed(names)}")
