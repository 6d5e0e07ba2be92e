"""Reads the archives of ``torch.save`` by torch's weights-only loader, in a child process.

The child loads the structure alone, on the device ``meta``, so that no declared shape costs memory,
and tells where each tensor's bytes lie; this process maps them from the file. Values beside weights
(arguments, paths, times) are data, but reading them needs their classes to be called: an object
that keeps nothing stands for each.
"""

import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.text import listed, printable
from gradaudit.errors import CheckpointError, one_line
from gradaudit.models.checkpoint.kinds import REMEDY, convert_script, describe

_PLAIN = r"list|dict|int|float|str|bool|tuple"
_OBJECTS = re.compile(
    r"pathlib\.(?:_local\.)?(?:Pure)?(?:Posix|Windows)?Path"
    r"|argparse\.Namespace|types\.SimpleNamespace|typing\.Any"
    rf"|(?:__builtin__|builtins)\.(?:{_PLAIN})"
    r"|datetime\.(?:datetime|date|time|timedelta|timezone)"
    r"|decimal\.Decimal|fractions\.Fraction|uuid\.UUID"
    r"|numpy\.(?:dtype|ndarray)|numpy\._?core\.multiarray\.(?:scalar|_reconstruct)"
    r"|numpy\.dtypes\.\w+DType"
    r"|omegaconf\.(?:dictconfig\.DictConfig|listconfig\.ListConfig|nodes\.\w+Node"
    r"|base\.(?:ContainerMetadata|Metadata))"
)
_DICTS = re.compile(
    r"collections\.defaultdict|easydict\.EasyDict|addict\.addict\.Dict"
    r"|(?:lightning|lightning_fabric|lightning\.fabric|pytorch_lightning|lightning\.pytorch)"
    r"\.utilities\.(?:data|parsing)\.AttributeDict"
)
_SCRIPT = "is a TorchScript archive, a program and not weights"
_DOUBTFUL = "is an archive {}, which readers take differently"
_ENCRYPTED = 0x1
_LOCAL_HEADER = 30
"""Bytes of an entry's own header before its name."""
_DEPTH = 5
"""Dicts within dicts that are looked into; state dicts lie higher."""


class RefusedValue:
    """Stand in for a value beside weights: accept any call and keep nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Dict:
    """Stand in for a dict that a pickle fills: it is a plain dict."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def read_torch(path: Path) -> tuple[object, tuple[str, ...]]:
    """Return an archive's content, and notes on values beside weights, for which None stands.

    Tensors are mapped from the file.

    Raises:
        CheckpointError: it is damaged, no archive of plain weights, or would run something.
    """
    try:
        found = contained.read(partial(_structure, path))
    except ContainedError as error:
        raise CheckpointError(
            f"{describe(path)}: torch's weights-only loader cannot read it ({error}); {REMEDY}"
        ) from error
    size = path.stat().st_size
    file = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    try:
        content = _content(found["root"], [{} for _ in found["dicts"]], found["dicts"], file)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{describe(path)}: its tensors cannot be mapped ({printable(one_line(error), 200)}); "
            "fetch or save it again"
        ) from error
    aside = found["aside"]
    notes = (f"not read, as they are no weights: values of {listed(aside)}",) if aside else ()
    return content, notes


def _structure(path: Path) -> dict[str, Any]:
    """Load an archive's structure, in the child."""
    places = _places(path)
    asked = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    inert = {name for name in asked if _OBJECTS.fullmatch(name) or _DICTS.fullmatch(name)}
    if unsafe := sorted({*asked} - inert):
        raise CheckpointError(f"{describe(path)}: {_what_is_run(unsafe)}; {REMEDY}")
    stand_ins: list[Any] = [
        (_Dict if _DICTS.fullmatch(name) else RefusedValue, name.replace("__builtin__", "builtins"))
        for name in inert
    ]
    with path.open("rb") as file, torch.serialization.safe_globals(stand_ins):
        try:
            content = torch.load(file, map_location="meta", weights_only=True)
        except NotImplementedError as error:  # of layouts that have no form without data
            raise _more_than_dense(describe(path), _reason(error)) from error
        except Exception as error:  # the loader raises whatever a hostile pickle leads it into
            raise ContainedError(_reason(error)) from error
    dicts: list[Any] = []
    root = _encoded(content, dicts, {}, places, describe(path))
    aside = sorted(name.removeprefix("__builtin__.") for name in inert)
    return {"root": root, "dicts": dicts, "aside": aside}


def _reason(error: Exception) -> str:
    """Return the loader's own error, without its advice to load the file unsafely."""
    *_, last = str(error).split("WeightsUnpickler error:")
    return printable(last.strip().split("\n")[0], 200) or type(error).__name__


def _more_than_dense(file: str, what: str) -> CheckpointError:
    return CheckpointError(f"{file}: holds more than plain dense tensors ({what}); {REMEDY}")


def _encoded(
    value: Any,
    dicts: list[Any],
    known: dict[int, int],
    places: Mapping[int, int],
    file: str,
    depth: int = 0,
) -> Any:
    """Return a value as its kind, and for tensors where its bytes lie; a dict by its number."""
    if isinstance(value, Tensor):
        return _span(value, places, file)
    if not isinstance(value, Mapping) or depth == _DEPTH:
        return type(value).__name__
    if id(value) not in known:
        known[id(value)] = len(dicts)
        pairs: list[Any] = []
        dicts.append(pairs)
        for key, each in value.items():
            named = isinstance(key, str)
            inside = _encoded(each, dicts, known, places, file, depth + 1)
            pairs.append([named, key if named else type(key).__name__, inside])
    return known[id(value)]


def _span(tensor: Tensor, places: Mapping[int, int], file: str) -> list[Any]:
    """Return an offset, a size in bytes, type, shape, strides and first element."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        what = str(tensor.layout if tensor.layout != torch.strided else tensor.dtype)
        raise _more_than_dense(file, what)
    storage = tensor.untyped_storage()
    place, size = getattr(storage, "_checkpoint_offset", None), storage.nbytes()
    if place is None:
        raise _more_than_dense(file, "a tensor without data")
    if places.get(place, -1) < size:
        raise CheckpointError(
            f"{file}: declares tensors larger than itself, or two directories; fetch or save it "
            "again"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    return [place, size, kind, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]


def _content(
    value: Any, made: list[dict[Any, Any]], dicts: Sequence[Sequence[Any]], file: Tensor
) -> Any:
    """Return what ``_encoded`` described, with tensors mapped from the file."""
    if isinstance(value, list):
        return _mapped(file, *value)
    if not isinstance(value, int):
        return None
    if dicts[value] and not made[value]:
        for number, (named, key, _) in enumerate(dicts[value]):
            made[value][key if named else _Unnamed(key, number)] = None
        for key, (_, _, inside) in zip(list(made[value]), dicts[value], strict=True):
            made[value][key] = _content(inside, made, dicts, file)
    return made[value]


def _mapped(
    file: Tensor,
    place: int,
    size: int,
    kind: str,
    shape: Sequence[int],
    strides: Sequence[int],
    first: int,
) -> Tensor:
    """Return a tensor of a file's bytes."""
    dtype: torch.dtype = getattr(torch, kind)
    last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if place + size > len(file) or (0 not in shape and (last + 1) * dtype.itemsize > size):
        raise ValueError
    part = file[place : place + size - size % dtype.itemsize]
    whole = (part.clone() if place % dtype.itemsize else part).view(dtype)
    return whole.as_strided(shape, strides, whole.storage_offset() + first)


class _Unnamed:
    """A key that is no text; two of a dict differ."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number

    def __str__(self) -> str:
        """Name its type."""
        return self.kind


def _what_is_run(names: Sequence[str]) -> str:
    modules = [name for name in names if name.startswith("torch.nn.modules.")]
    if modules:
        return f"holds a whole pickled model ({listed(modules)}), which runs code when loaded"
    rebuilt = any(name.startswith("torch._utils._rebuild") for name in names)
    if rebuilt and all(name.startswith("torch.") for name in names):
        return f"holds more than plain dense tensors ({listed(names)})"
    return f"asks to run {listed(names)} when loaded, which weights never need"


def _places(path: Path) -> dict[int, int]:
    """Return the size of each entry by where its bytes begin, as zipfile reads the archive.

    Torch reads the archive by another library: where both do not find the same bytes, it has two
    meanings.
    """
    file = describe(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            reason = _other_archive({entry.filename for entry in entries}) or _danger_in(entries)
            order = next((e for e in entries if e.filename.endswith("/byteorder")), None)
            if not reason and order and archive.read(order).decode() != sys.byteorder:
                reason = "holds numbers in another order of bytes than this machine's"
        places = {} if reason else _starts(path, entries)
    except (
        zipfile.BadZipFile,
        UnicodeDecodeError,
        ValueError,
        OSError,
        NotImplementedError,
    ) as why:
        raise CheckpointError(
            f"{file}: is a truncated or damaged zip archive; fetch or save it again"
        ) from why
    ends = sorted(places.items())
    if any(place + size > after for (place, size), (after, _) in pairwise(ends)):
        reason = _DOUBTFUL.format("whose entries overlap")
    if reason:
        remedy = convert_script(path) if reason == _SCRIPT else REMEDY
        raise CheckpointError(f"{file}: {reason}; {remedy}")
    return places


def _starts(path: Path, entries: Sequence[zipfile.ZipInfo]) -> dict[int, int]:
    """Return sizes by the places behind each entry's own header, which must name it too."""
    places = {}
    with path.open("rb") as stream:
        for entry in entries:
            stream.seek(entry.header_offset)
            header = stream.read(_LOCAL_HEADER)
            named, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
            if stream.read(named) != entry.orig_filename.encode():
                raise CheckpointError(
                    f"{describe(path)}: "
                    f"{_DOUBTFUL.format('whose entries differ from what its directory says')}; "
                    f"{REMEDY}"
                )
            places[entry.header_offset + _LOCAL_HEADER + named + extra] = entry.file_size
    return places


def _other_archive(paths: set[str]) -> str | None:
    """Return what kind of archive it is, where torch.save did not write it."""
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


def _danger_in(entries: Sequence[zipfile.ZipInfo]) -> str | None:
    """Return why entries must not be unpacked (repeated, encrypted, compressed), or None."""
    if len({entry.filename.casefold() for entry in entries}) < len(entries):
        return "is an archive in which names repeat"
    if any(entry.flag_bits & _ENCRYPTED for entry in entries):
        return "is an encrypted archive"
    if any(entry.compress_type for entry in entries):
        return "is a compressed archive, which can unpack to any size"
    return None
