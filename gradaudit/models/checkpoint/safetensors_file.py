"""Reads safetensors files, which hold tensors by name and nothing else."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.kinds import describe
from gradaudit.text import printable


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns tensors by name; a CheckpointError where the file is truncated or damaged."""
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


def metadata_of(path: Path) -> dict[str, str]:
    """Returns the metadata of a safetensors file; empty for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except Exception:  # whatever is wrong with it is told where its tensors are read
        return {}
