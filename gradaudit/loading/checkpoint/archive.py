"""The zip archive of ``torch.save`` looked through before torch opens it."""

import os
import struct
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from gradaudit.errors import CheckpointError
from gradaudit.loading.checkpoint.kinds import REMEDY, describe

MAX_PICKLE_BYTES = 64 << 20
MAX_DIRECTORY_BYTES = 16 << 20

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_BYTES = 20
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 0x1


def check_archive(path: Path) -> None:
    """Refuse an archive that ``torch.save`` did not write as plain weights.

    Raises:
        CheckpointError: truncated or damaged, compressed, encrypted, with entries that overlap or
            repeat, with too large a directory or pickle, or some other zip (TorchScript,
            ``torch.export``, ``torch.package``, NumPy, Keras).
    """
    entries, directory = read_directory(path)
    reason = _other_archive(entries) or danger_in(entries, directory)
    if reason:
        raise CheckpointError(f"{describe(path)}: {reason}; {REMEDY}")


def read_directory(path: Path) -> tuple[list[zipfile.ZipInfo], int]:
    """The entries of a zip archive and where its directory starts.

    Raises:
        CheckpointError: truncated or damaged, or with too large a directory.
    """
    try:
        _check_directory_size(path)
        with zipfile.ZipFile(path) as archive:
            return archive.infolist(), archive.start_dir
    except CheckpointError:
        raise
    except Exception as error:  # zipfile raises most of the built-in errors on damaged archives
        raise CheckpointError(
            f"{describe(path)}: is a truncated or damaged zip archive; fetch or save it again"
        ) from error


def _check_directory_size(path: Path) -> None:
    """Bound the central directory by the end record, before ``zipfile`` reads it whole."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _END.size - _LOCATOR_BYTES - _END64.size))
        tail = stream.read()
    signature, *_, directory, _, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or comment:
        raise zipfile.BadZipFile("no end record at the end")
    if directory == 0xFFFFFFFF:
        signature, *_, directory, _ = _END64.unpack(tail[: _END64.size])
        if signature != b"PK\x06\x06":
            raise zipfile.BadZipFile("no zip64 end record before the end record")
    if directory > MAX_DIRECTORY_BYTES:
        raise CheckpointError(
            f"{describe(path)}: its zip directory claims {directory} bytes, over the limit of "
            f"{MAX_DIRECTORY_BYTES}; {REMEDY}"
        )


def _other_archive(entries: Sequence[zipfile.ZipInfo]) -> str | None:
    paths = {entry.filename for entry in entries}
    names = {path.partition("/")[2] for path in paths}
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return "is a TorchScript archive, a program and not weights"
    if "archive_format" in names:
        return "is a torch.export archive, a program and not weights (--model would run it)"
    if ".data/extern_modules" in names:
        return "is a torch.package archive, a program and not weights"
    if "model.weights.h5" in paths:
        return "is a Keras archive, not a PyTorch checkpoint"
    if paths and all(path.endswith(".npy") for path in paths):
        return "is a NumPy archive, not a PyTorch checkpoint"
    return None if "data.pkl" in names else "is a zip archive that torch.save did not write"


def danger_in(entries: Sequence[zipfile.ZipInfo], directory: int) -> str | None:
    """Why entries must not be unpacked, or None: repeated, encrypted, compressed, overlapping."""
    if len({entry.filename for entry in entries}) < len(entries):
        return "is an archive in which names repeat"
    if any(entry.flag_bits & _ENCRYPTED for entry in entries):
        return "is an encrypted archive"
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return "is a compressed archive, which can unpack to any size"
    if any(entry.file_size != entry.compress_size for entry in entries):
        return "is an archive whose entry sizes contradict each other"
    if _overlap(entries, directory):
        return "is an archive whose entries overlap or leave the file"
    if any(
        entry.filename.endswith("/data.pkl") and entry.file_size > MAX_PICKLE_BYTES
        for entry in entries
    ):
        return f"is an archive with over {MAX_PICKLE_BYTES} bytes of pickle"
    return None


def _overlap(entries: Sequence[zipfile.ZipInfo], directory: int) -> bool:
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    starts = [entry.header_offset for entry in ordered]
    ends = [
        entry.header_offset
        + _LOCAL_HEADER_BYTES
        + len(entry.filename.encode("utf-8", "surrogatepass"))
        + entry.compress_size
        for entry in ordered
    ]
    return starts[0] != 0 or any(
        end > start for end, (_, start) in zip(ends, pairwise([*starts, directory]), strict=True)
    )
