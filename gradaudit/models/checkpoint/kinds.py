"""Finds the format of a checkpoint file from its first bytes."""

import stat
from pathlib import Path
from typing import Literal

from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError, UsageError

Kind = Literal["safetensors", "torch", "npz", "shards"]

MAX_FILE_BYTES = 64 << 30
MAX_HEADER_BYTES = 16 << 20
"""Largest header of a safetensors file in bytes, enough for some 100,000 tensors."""

REMEDY = (
    "save the weights alone, with safetensors.torch.save_file(model.state_dict(), FILE) "
    "or torch.save(model.state_dict(), FILE)"
)

CONVERT = 'convert it with python -c "import sys, torch; torch.save({}, sys.argv[2])" {} new.pt'
_OF_LEGACY = "torch.load(sys.argv[1], weights_only=True)"
_OF_SCRIPT = "torch.jit.load(sys.argv[1]).state_dict()"

_HEAD = 512
_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLE_PROTOCOLS = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (_LEGACY_TORCH, "a legacy torch.save pickle (from before torch 1.6)"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
)


def describe(path: Path) -> str:
    """Returns the file's name as messages show it."""
    return printable(str(path))


def convert_script(path: Path) -> str:
    """Returns the command that runs a TorchScript archive to extract its weights."""
    return f"if you trust its program, {CONVERT.format(_OF_SCRIPT, describe(path))}"


def expect_not_distributed(path: Path) -> None:
    """Raise an error for a distributed checkpoint's folder, or a file in it.

    Its ``.metadata``, which says where the tensors lie, is a pickle, and is not read.

    Raises:
        CheckpointError: it is one; the message says how it is converted.
    """
    inside = path.suffix == ".distcp" or path.name == ".metadata"
    folder = path.parent if inside else path
    if inside or (folder / ".metadata").is_file() or any(folder.glob("*.distcp")):
        raise CheckpointError(
            f"{describe(path)}: is a distributed checkpoint, whose .metadata is a pickle that "
            "could run code; where you trust who wrote it, convert it by `python -m "
            f"torch.distributed.checkpoint.format_utils dcp_to_torch {describe(folder)} weights.pt`"
        )


def kind_of(path: Path) -> Kind:
    """Returns a checkpoint's format, found by its content.

    Raises:
        UsageError: the file is missing or cannot be opened.
        CheckpointError: it is no file, empty, over the size limit, or of another format.
    """
    name = describe(path)
    size = _size(path, name)
    expect_not_distributed(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        raise UsageError(f"{name}: cannot be opened: {error.strerror or error}") from error
    if not head:
        raise CheckpointError(f"{name}: is empty; the write or download was cut short")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]  # the first file's name
        return "npz" if first.endswith(b".npy") else "torch"
    if head[8:9] == b"{" and b"\0" in head[:8]:
        _check_header_length(name, int.from_bytes(head[:8], "little"), size)
        return "safetensors"
    if head.lstrip()[:1] == b"{" and path.name.endswith(".index.json"):
        return "shards"
    legacy = head.startswith(_LEGACY_TORCH)
    remedy = f"{CONVERT.format(_OF_LEGACY, name)}, which runs nothing" if legacy else REMEDY
    raise CheckpointError(f"{name}: is {_name_of(head)}, not a checkpoint; {remedy}")


def _size(path: Path, name: str) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{name}: no such checkpoint file ({reason})") from error
    if stat.S_ISDIR(status.st_mode):
        raise CheckpointError(f"{name}: is a directory; name the checkpoint file inside it")
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{name}: is no regular file; copy its content to one")
    if status.st_size > MAX_FILE_BYTES:
        raise CheckpointError(
            f"{name}: has {status.st_size} bytes, over the limit of {MAX_FILE_BYTES}; "
            "save the weights without optimizer state, or in float16"
        )
    return status.st_size


def _check_header_length(name: str, length: int, size: int) -> None:
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{name}: its safetensors header claims {length} bytes, over the limit of "
            f"{MAX_HEADER_BYTES}; save the weights in several files"
        )
    if length > size - 8:
        raise CheckpointError(
            f"{name}: is truncated: its safetensors header claims {length} bytes, {size - 8} "
            "are there; fetch or save it again"
        )


def _name_of(head: bytes) -> str:
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head.startswith(_PICKLE_PROTOCOLS):
        return "a bare pickle, which would run code when loaded"
    return _text_name(head) or "of no known format"


def _text_name(head: bytes) -> str | None:
    # The head may end inside a character of several bytes.
    text = head.decode("utf-8", errors="ignore").strip()
    if len(text.encode()) < len(head.strip()) - 3 or any(c in text for c in "\0\x1b"):
        return None
    if text[:1] == "<":
        return "an HTML or XML page (often a failed download)"
    return "JSON text" if text[:1] in "{[" and text else "plain text"
