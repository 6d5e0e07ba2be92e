"""Checks the zip archive of ``torch.save``, then reads it: the only ``torch.load`` of the package.

Two readers of one file must see the same: the directory is read here, strictly, and whatever
another reader could take otherwise is refused (a directory that does not lie right before the end
record, a zip64 record that contradicts it, comments, extra fields, names that differ by case).
"""

import os
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import torch

from gradaudit.core.text import listed, printable
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.kinds import REMEDY, convert_script, describe
from gradaudit.models.checkpoint.pickled import RefusedError, UnsafeGlobalsError, follow, stand_ins

MAX_PICKLE_BYTES = 64 << 20
MAX_DIRECTORY_BYTES = 16 << 20

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_EXTRA = struct.Struct("<2H")
_SCRIPT = "is a TorchScript archive, a program and not weights"

_ENCRYPTED = 0x1
_KNOWN_FLAGS = 0x80F
"""Flags that may be set: encryption, compression levels, sizes behind the data, UTF-8 names."""
_16, _32 = 0xFFFF, 0xFFFFFFFF


class _MalformedError(Exception):
    """The bytes are not a complete zip archive."""


class _DoubtfulError(Exception):
    """Raised for an archive that two readers may read differently."""


class Entry(NamedTuple):
    """A file in the archive, as the directory describes it.

    Attributes:
        name: with its folder.
        flags: of the format.
        method: of compression, 0 for none.
        packed: bytes it takes.
        size: bytes it unpacks to.
        header: where its header lies in the file.
    """

    name: str
    flags: int
    method: int
    packed: int
    size: int
    header: int


def read_pickle(path: Path) -> tuple[bytes, dict[str, int]]:
    """Returns the pickle of an archive of plain weights from ``torch.save``; refuses any other.

    Returns:
        The content of ``data.pkl``, and the size in bytes of each file of the archive, by its name
        without the folder of all.

    Raises:
        CheckpointError: truncated or damaged, compressed, encrypted, with entries that overlap or
            repeat, with too large a directory or pickle, of two meanings, or some other zip
            (TorchScript, ``torch.export``, ``torch.package``, NumPy, Keras).
    """
    try:
        with path.open("rb") as stream:
            start, entries = _directory(stream, path)
            reason = _other_archive(entries) or _danger_in(entries)
            remedy = convert_script(path) if reason == _SCRIPT else REMEDY
            if not reason:
                places = dict(_places(stream, entries, start))
                place, size = places["data.pkl"]
                stream.seek(place)
                return stream.read(size), {name: size for name, (_, size) in places.items()}
    except _DoubtfulError as doubt:
        remedy = REMEDY
        reason = f"is an archive {doubt}, which readers take differently"
    except (_MalformedError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{describe(path)}: is a truncated or damaged zip archive; fetch or save it again"
        ) from error
    raise CheckpointError(f"{describe(path)}: {reason}; {remedy}")


def _directory(stream: BinaryIO, path: Path) -> tuple[int, list[Entry]]:
    """Returns where the directory starts, and its entries in order."""
    size = stream.seek(0, os.SEEK_END)
    count, length, start, end = _end(stream, size)
    if length > MAX_DIRECTORY_BYTES:
        raise CheckpointError(
            f"{describe(path)}: its zip directory claims {length} bytes, over the limit of "
            f"{MAX_DIRECTORY_BYTES}; {REMEDY}"
        )
    if start + length != end:
        raise _DoubtfulError("whose directory does not lie where its end record says")
    stream.seek(start)
    entries = list(_entries(stream.read(length)))
    if len(entries) != count:
        raise _DoubtfulError("whose end record gives another number of entries than it has")
    return start, entries


def _end(stream: BinaryIO, size: int) -> tuple[int, int, int, int]:
    """Returns entries, bytes and start of the directory, and where the records after it begin."""
    place = size - _END.size
    signature, disk, first, here, count, length, start, comment = _unpacked(_END, stream, place)
    if signature != b"PK\x05\x06" or comment:
        raise _MalformedError
    place64 = place - _LOCATOR.size - _END64.size
    if place64 < 0:
        return _single(disk, first, here, count), length, start, place
    mark, _, pointed, _ = _unpacked(_LOCATOR, stream, place - _LOCATOR.size)
    if mark != b"PK\x06\x07":
        return _single(disk, first, here, count), length, start, place
    known, bytes_, _, _, disk64, first64, here64, count64, length64, start64 = _unpacked(
        _END64, stream, place64
    )
    short = (min(count64, _16), min(length64, _32), min(start64, _32))
    if (
        known != b"PK\x06\x06"
        or (pointed, bytes_) != (place64, _END64.size - 12)
        or short != (count, length, start)
    ):
        raise _DoubtfulError("with two end records that contradict each other")
    return _single(disk64, first64, here64, count64), length64, start64, place64


def _single(disk: int, first: int, here: int, count: int) -> int:
    """Returns the number of entries of an archive in one part."""
    if disk or first or here != count:
        raise _DoubtfulError("in several parts")
    return count


def _unpacked(record: struct.Struct, stream: BinaryIO, place: int) -> tuple[Any, ...]:
    if place < 0:
        raise _MalformedError
    stream.seek(place)
    return record.unpack(stream.read(record.size))


def _entries(directory: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(directory):
        fields = _CENTRAL.unpack_from(directory, at)
        mark, (flags, method), header = fields[0], fields[3:5], fields[16]
        packed, size, named, extra, comment, part = fields[8:14]
        end = at + _CENTRAL.size + named
        if mark != b"PK\x01\x02" or end + extra + comment > len(directory):
            raise _MalformedError
        if comment or part or flags & ~_KNOWN_FLAGS:
            raise _DoubtfulError("with comments, parts or flags that torch.save never writes")
        size, packed, header = _long(directory[end : end + extra], size, packed, header)
        name = directory[at + _CENTRAL.size : end].decode()
        yield Entry(name, flags, method, packed, size, header)
        at = end + extra


def _long(extra: bytes, *numbers: int) -> list[int]:
    """Returns numbers, from the zip64 extra field where they do not fit into 32 bits."""
    saturated = [number for number in numbers if number == _32]
    size = 8 * len(saturated)
    head = _EXTRA.pack(1, size) if saturated else b""
    if not extra.startswith(head) or len(extra) != len(head) + size:
        raise _DoubtfulError("with extra fields that torch.save never writes")
    fields = iter(struct.unpack(f"<{len(saturated)}Q", extra[_EXTRA.size :]))
    return [next(fields) if number == _32 else number for number in numbers]


def _other_archive(entries: Collection[Entry]) -> str | None:
    paths = {entry.name for entry in entries}
    names = {path.partition("/")[2] for path in paths}
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return _SCRIPT
    if "archive_format" in names:
        return "is a torch.export archive, a program and not weights (--model would run it)"
    if ".data/extern_modules" in names:
        return "is a torch.package archive, a program and not weights"
    if "model.weights.h5" in paths:
        return "is a Keras archive, not a PyTorch checkpoint"
    if "data.pkl" not in names or len({path.partition("/")[0] for path in paths}) != 1:
        return "is a zip archive that torch.save did not write"
    return None


def _danger_in(entries: Collection[Entry]) -> str | None:
    """Returns why entries must not be unpacked (repeated, encrypted, too large, …), or None."""
    if len({entry.name.casefold() for entry in entries}) < len(entries):
        return "is an archive in which names repeat"
    if any(entry.flags & _ENCRYPTED for entry in entries):
        return "is an encrypted archive"
    if any(entry.method for entry in entries):
        return "is a compressed archive, which can unpack to any size"
    if any(entry.size != entry.packed for entry in entries):
        return "is an archive whose entry sizes contradict each other"
    if any(entry.name.endswith("/data.pkl") and entry.size > MAX_PICKLE_BYTES for entry in entries):
        return f"is an archive with over {MAX_PICKLE_BYTES} bytes of pickle"
    return None


def _places(
    stream: BinaryIO, entries: Collection[Entry], directory: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Returns start and size of each entry's bytes, by its name below the common folder."""
    ordered = sorted(entries, key=lambda entry: entry.header)
    limits = [*(entry.header for entry in ordered), directory]
    if limits[0] != 0:
        raise _DoubtfulError("whose entries overlap or leave the file")
    for entry, (_, limit) in zip(ordered, pairwise(limits), strict=True):
        mark, _, _, method, *_, named, extra = _unpacked(_LOCAL, stream, entry.header)
        name = stream.read(named).decode(errors="replace")
        start = entry.header + _LOCAL.size + named + extra
        if mark != b"PK\x03\x04" or start + entry.size > limit:
            raise _DoubtfulError("whose entries overlap or leave the file")
        if (method, name) != (entry.method, entry.name):
            raise _DoubtfulError("whose entries differ from what its directory says")
        yield entry.name.partition("/")[2], (start, entry.size)


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
            f"{describe(path)}: torch's weights-only loader cannot read it "
            f"({_reason(error)}); {REMEDY}"
        ) from error


def _reason(error: Exception) -> str:
    """Returns the loader's own error, without its advice to load the file unsafely."""
    *_, last = str(error).split("WeightsUnpickler error:")
    return printable(last.strip().split("\n")[0], 200) or type(error).__name__


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
