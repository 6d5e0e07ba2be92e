"""Reading a checkpoint to the state dict inside it: the only ``torch.load`` of the package."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.archive import read_pickle
from gradaudit.models.checkpoint.kinds import REMEDY, describe, kind_of
from gradaudit.models.checkpoint.pickled import RefusedError, UnsafeGlobalsError, follow
from gradaudit.report import CheckpointRecord
from gradaudit.text import listed, printable

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
"""Keys that scripts wrap a state dict in: Lightning and the ImageNet example, PyTorch's tutorials,
torchvision's references, DeepSpeed."""

_MAX_DEPTH = 3


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The named tensors of a checkpoint file.

    Attributes:
        state: tensors by the names in the file; they stay mapped from it, on the CPU.
        record: the file's name and content hash.
        notes: what was unwrapped and left aside, for the report.
    """

    state: dict[str, Tensor]
    record: CheckpointRecord
    notes: tuple[str, ...] = ()


def load_checkpoint(path: Path | str) -> LoadedCheckpoint:
    """The named tensors in a file (weights, gradients), which is treated as untrusted data.

    Raises:
        UsageError: the file is missing or cannot be opened.
        CheckpointError: it is refused, damaged or holds no named tensors.
    """
    path = Path(path)
    if kind_of(path) == "safetensors":
        content: object = _read_safetensors(path)
    else:
        _expect_plain_weights(path)
        content = _read_archive(path)
    state, notes = _unwrap(content, describe(path))
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return LoadedCheckpoint(state, CheckpointRecord(file=describe(path), sha256=digest), notes)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    # The library checks that offsets are in range and that tensors neither overlap nor leave gaps.
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except Exception as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        reason = printable(reason) if isinstance(error, SafetensorError) else type(error).__name__
        raise CheckpointError(
            f"{describe(path)}: is a truncated or damaged safetensors file ({reason}); "
            "fetch or save it again"
        ) from error


def _expect_plain_weights(path: Path) -> None:
    """Follow the pickle and name what it would run, before anything of it is interpreted."""
    try:
        follow(*read_pickle(path))
    except RefusedError as why:
        reason = f"its pickle holds no plain weights: {why}"
        if isinstance(why, UnsafeGlobalsError):
            reason = _what_is_run(why.names)
        raise CheckpointError(f"{describe(path)}: {reason}; {REMEDY}") from why


def _what_is_run(names: Sequence[str]) -> str:
    modules = [name for name in names if name.startswith("torch.nn.modules.")]
    if modules:
        return f"holds a whole pickled model ({listed(modules)}), which runs code when loaded"
    rebuilt = any(name.startswith("torch._utils._rebuild") for name in names)
    if rebuilt and all(name.startswith("torch.") for name in names):
        return f"holds more than plain dense tensors ({listed(names)})"
    return f"asks to run {listed(names)} when loaded, which weights never need"


def _read_archive(path: Path) -> object:
    # Mapped storages cannot be resized, so no declared shape makes torch allocate.
    try:
        with _without_suffix(path) as plain:
            return torch.load(plain, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the loader raises whatever a hostile pickle leads it into
        raise CheckpointError(
            f"{describe(path)}: the weights-only loader cannot read it "
            f"({type(error).__name__}): it is damaged, declares tensors larger than itself, or "
            f"holds more than tensors; {REMEDY}"
        ) from error


@contextmanager
def _without_suffix(path: Path) -> Iterator[Path]:
    """The file under a name that ``torch.load`` does not take for safetensors by its suffix."""
    if not path.name.endswith(".safetensors"):
        yield path
        return
    with TemporaryDirectory() as folder:
        link = Path(folder) / "checkpoint"
        link.symlink_to(path.resolve())
        yield link


def _unwrap(content: object, file: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The named tensors in a loaded file, and notes on what was unwrapped and left aside."""
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
        _note_rest([other for other, value in level.items() if value is not inner], notes)
        level = inner
    state = {k: v.detach() for k, v in level.items() if _names_tensor(k, v)}
    if not state:
        raise CheckpointError(
            f"{file}: holds no named tensors (looked at the top and inside "
            f"{', '.join(WRAPPERS)}); {REMEDY}"
        )
    _note_rest([key for key in level if key not in state], notes)
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


def _note_rest(keys: list[object], notes: list[str]) -> None:
    if keys:
        names = [key if isinstance(key, str) else type(key).__name__ for key in keys]
        notes.append(f"left aside: {listed(names)}")
