"""Reads files of ``torch.save`` with the only ``torch.load`` of the package."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.archive import read_pickle
from gradaudit.models.checkpoint.inert import stand_ins
from gradaudit.models.checkpoint.kinds import REMEDY, describe
from gradaudit.models.checkpoint.pickled import RefusedError, UnsafeGlobalsError, follow
from gradaudit.text import listed


def read_torch(path: Path) -> tuple[object, tuple[str, ...]]:
    """Returns an archive's content, with stand-ins for values beside weights, and notes on them.

    Raises:
        CheckpointError: it is damaged, or would run something when loaded.
    """
    inert = _followed(path)
    names = sorted(name.replace(" ", ".").removeprefix("__builtin__.") for name in inert)
    notes = (f"not read, as they are no weights: values of {listed(names)}",) if names else ()
    return _read_archive(path, inert), notes


def _followed(path: Path) -> Collection[str]:
    """Follow the pickle and refuse what it would run, before torch interprets it."""
    try:
        return follow(*read_pickle(path))
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


def _read_archive(path: Path, inert: Collection[str]) -> object:
    # Mapped storages cannot be resized, so no declared shape makes torch allocate.
    try:
        with _without_suffix(path) as plain, torch.serialization.safe_globals(stand_ins(inert)):
            return torch.load(plain, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the loader raises whatever a hostile pickle leads it into
        raise CheckpointError(
            f"{describe(path)}: the weights-only loader cannot read it "
            f"({type(error).__name__}): it is damaged, declares tensors larger than itself, or "
            f"holds more than tensors; {REMEDY}"
        ) from error


@contextmanager
def _without_suffix(path: Path) -> Iterator[Path]:
    """Yields the file under a name whose suffix ``torch.load`` does not take for safetensors."""
    if not path.name.endswith(".safetensors"):
        yield path
        return
    with TemporaryDirectory() as folder:
        link = Path(folder) / "checkpoint"
        link.symlink_to(path.resolve())
        yield link
