"""From what training scripts put into a file to the state dict inside it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.kinds import REMEDY
from gradaudit.text import listed

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
"""Keys that scripts wrap a state dict in: Lightning and the ImageNet example, PyTorch's tutorials,
torchvision's references, DeepSpeed."""

_MAX_DEPTH = 3


def unwrap(content: object, file: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The named tensors in a loaded file, and notes on what was unwrapped and left aside.

    Args:
        content: what the weights-only loader returned.
        file: the file's name for messages.

    Raises:
        CheckpointError: there is no state dict in it, or more than one.
    """
    notes: list[str] = []
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise CheckpointError(f"{file}: holds a {kind}, not a dict of named tensors; {REMEDY}")
    level: Mapping[Any, Any] = content
    for _ in range(_MAX_DEPTH):
        key = _wrapper(level, file)
        if key is None:
            break
        inner = level[key]
        notes.append(f"state dict taken from {key!r}")
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
    found = [key for key in WRAPPERS if _is_state(content.get(key))]
    if len(found) > 1:
        raise CheckpointError(
            f"{file}: holds several state dicts ({', '.join(found)}); save the one to audit alone"
        )
    return found[0] if found else None


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
