"""Files that are given as a checkpoint, or as a captured update, and are none."""

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hostile.case import CANARY, DATA, MODEL, OUTPUT, Case, Touch
from hostile.data import arrays, declared, header, members, twice
from hostile.pickles import DOUBTFUL, PICKLES, archived, called, entry, rebuilt

READ = f"copa-metric -m '{MODEL}' -d {DATA} -c hostile.pt {OUTPUT}"
UPDATE = f"attack reconstruct -m '{MODEL}' -d {DATA} --update hostile.pt {OUTPUT}"

Content = bytes | Callable[[Path], object]


class System:
    """Pickles into a command of the shell."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {CANARY}",)


class Evaluated:
    """Pickles into an expression."""

    def __reduce__(self) -> tuple[object, ...]:
        return eval, (f"open({CANARY!r}, 'w')",)


def saved(content: object, **options: object) -> bytes:
    """What torch.save writes."""
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def zipped(names: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return stream.getvalue()


def state() -> dict[str, torch.Tensor]:
    """Weights that fit the model."""
    net = nn.ModuleDict({"fc1": nn.Linear(2, 3), "output": nn.Linear(3, 2)})
    return dict(net.state_dict())


def patched(offset: int, value: int, size: int = 4) -> bytes:
    """A sound archive of weights in which the directory's entry of the numbers is another."""
    data = bytearray(archived(entry(rebuilt())))
    place = data.rindex(b"a/data/0") - 46 + offset
    return bytes(data[:place] + value.to_bytes(size, "little") + data[place + size :])


def safetensors(header: object, data: bytes = bytes(24), length: int | None = None) -> bytes:
    """A safetensors file, sound or not."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def tensor(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    """A tensor in the header of a safetensors file."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def tar_file() -> bytes:
    """What torch.save wrote in its first years."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return stream.getvalue()


def bomb(path: Path) -> None:
    """An archive of 32 MiB of zeros in less than one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a/data.pkl", entry(rebuilt()))
        archive.writestr("a/data/0", bytes(32 << 20))


def sparse_file(path: Path) -> None:
    """A file larger than any checkpoint, of which nothing is on the disk."""
    with path.open("wb") as stream:
        stream.truncate((64 << 30) + 1)


def other(name: str, value: torch.Tensor) -> bytes:
    """Weights of which one tensor is another."""
    return saved({**state(), name: value})


SAVED = saved({"w": torch.arange(2000.0)})
SAFE = safetensors({"w": tensor(0, 4000, [1000])}, bytes(4000))
TWICE = (
    b'{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},'
    b'"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
)

CODE: dict[str, tuple[Content, str]] = {
    "a call that makes a file": (saved({"w": torch.ones(2), "x": Touch()}), "getattr"),
    "a command as a value": (saved({"w": torch.ones(2), "x": System()}), "posix.system"),
    "an expression": (saved({"x": Evaluated()}), "eval"),
    "code in a wrapper": (saved({"state_dict": state(), "epoch": Touch()}), "getattr"),
    "code as a key": (saved({"w": torch.ones(2), Touch(): 1}), "getattr"),
    "code of protocol 4": (saved({"x": Touch()}, pickle_protocol=4), "cannot read it"),
    "code in a bare pickle": (pickle.dumps({"w": Touch()}, protocol=2), "a bare pickle"),
    "code in an old pickle": (pickle.dumps({"w": Touch()}, protocol=0), "not a checkpoint"),
    "code in a legacy file": (
        saved({"x": Touch()}, _use_new_zipfile_serialization=False),
        "legacy torch.save pickle",
    ),
    "a legacy file of plain weights": (
        saved(state(), _use_new_zipfile_serialization=False),
        "legacy torch.save pickle",
    ),
    "a whole model": (saved(nn.Sequential(nn.Linear(2, 2))), "whole pickled model"),
    "TorchScript": (zipped({"a/data.pkl": b"", "a/code/x.py": b""}), "TorchScript"),
    "a torch.export archive": (
        zipped({"a/archive_format": b"pt2", "a/data.pkl": pickle.dumps(Touch())}),
        "torch.export archive, a program",
    ),
    "a torch.package archive": (
        zipped({"p/.data/extern_modules": b"os", "p/data.pkl": pickle.dumps(Touch())}),
        "torch.package",
    ),
    "a nested tensor": (
        lambda path: torch.save({"w": torch.nested.nested_tensor([torch.ones(2)])}, path),
        "more than plain dense tensors",
    ),
    "a sparse tensor": (saved({"w": torch.eye(2).to_sparse()}), "more than plain dense tensors"),
    "a quantised tensor": (
        lambda path: torch.save(
            {"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, path
        ),
        "more than plain dense tensors",
    ),
    "an allowed name called with a command": (
        archived(entry(called("collections.OrderedDict", b"cposix\nsystem\n"))),
        "asks to run posix.system",
    ),
    "escapes in a name": (archived(entry(b"c\x1b[31mred\n\x07bell\n")), "asks to run"),
    "a module that is not there": (
        archived(entry(b"c__main__\nwhatever\n)R")),
        "asks to run __main__.whatever",
    ),
    "a tensor on no device": (
        saved({"w": torch.empty(2, device="meta")}),
        "more than plain dense tensors",
    ),
}

ARCHIVES: dict[str, tuple[Content, str]] = {
    "a bomb": (bomb, "compressed archive"),
    "names that lead out": (
        zipped({"../../data.pkl": entry(rebuilt()), "../../data/0": bytes(24)}),
        "torch.save did not write",
    ),
    "names from the root": (
        zipped({"/data.pkl": entry(rebuilt())}),
        "cannot read it",
    ),
    "entries that overlap": (patched(42, 0), "differ from what its directory"),
    "an entry beyond the file": (patched(20, 1 << 30), "cannot read it"),
    "an entry that leaves the file": (
        patched(20, (1 << 30) * (1 + (1 << 32)), 8),
        "entries overlap",
    ),
    "an encrypted entry": (patched(8, 1, 2), "encrypted"),
    "two pickles": (zipped({"a/data.pkl": b"", "b/data.pkl": b""}), "torch.save did not write"),
    "pickles that differ by case": (
        zipped({"a/data.pkl": entry(rebuilt()), "a/DATA.PKL": entry(b"N")}),
        "names repeat",
    ),
    "65 MiB of pickle": (
        lambda path: path.write_bytes(zipped({"a/data.pkl": bytes(65 << 20)})),
        "cannot read it",
    ),
    "a Keras model": (zipped({"model.weights.h5": b""}), "a Keras archive"),
    "a document": (zipped({"word/document.xml": b"<x/>"}), "torch.save did not write"),
    "no entry": (zipped({}), "torch.save did not write"),
    "bytes before the beginning": (b"PK\3\4" + bytes(60) + SAVED, "cannot read it"),
    **{
        f"cut after {share:.1%}": (SAVED[: int(share * len(SAVED))], "damaged zip")
        for share in (0.02, 0.5, 0.999)
    },
}

NO_CHECKPOINTS: dict[str, tuple[Content, str]] = {
    "nothing": (b"", "is empty"),
    "one zero": (b"\0", "no known format"),
    "zeros": (bytes(4096), "no known format"),
    "text": (b"epoch,loss\n1,0.5\n", "plain text"),
    "JSON": (b'{"layers": [1, 2]}', "JSON text"),
    "a page": (b"<!DOCTYPE html><html><body>404", "HTML"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(40), "no known format"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    "gzip": (b"\x1f\x8b\x08" + bytes(40), "no known format"),
    "tar": (tar_file(), "no known format"),
    "a folder": (lambda path: path.mkdir(), "is a directory"),
    "a pipe": (os.mkfifo, "no regular file"),
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "64 GiB": (sparse_file, "over the limit"),
}

SAFETENSORS: dict[str, tuple[Content, str]] = {
    "a header of 4 EiB": (safetensors({"w": tensor(0, 24, [6])}, length=1 << 62), "over the limit"),
    "a header beyond the file": (safetensors({}, length=9_999_999), "is truncated"),
    "a header that is cut": (
        safetensors({"w": tensor(0, 24, [6])}, length=20),
        "read as safetensors",
    ),
    "a header that is no JSON": (safetensors(b"{nonsense}"), "read as safetensors"),
    "a deep header": (safetensors(b'{"a":' * 100_000), "read as safetensors"),
    "a name twice": (safetensors(TWICE), "twice"),
    "tensors that overlap": (
        safetensors({"w": tensor(0, 24, [6]), "v": tensor(0, 24, [6])}),
        "invalid offset",
    ),
    "a gap": (safetensors({"w": tensor(4, 24, [5])}), "invalid offset"),
    "too many bytes": (safetensors({"w": tensor(0, 20, [5])}), "not fully covered"),
    "4 TiB": (safetensors({"w": tensor(0, 4 << 40, [1 << 40])}), "not fully covered"),
    "a size of 2^124": (safetensors({"w": tensor(0, 24, [1 << 62, 1 << 62])}), "overflow"),
    "a size below zero": (safetensors({"w": tensor(0, 24, [-6])}), "read as safetensors"),
    "an unknown type": (safetensors({"w": tensor(0, 24, [6], "X9")}), "read as safetensors"),
    "a name of escapes": (safetensors({"w\x1b[31m": tensor(0, 24, [7])}), "invalid shape"),
    "another name of escapes": (
        safetensors({"w\x1b[31m\n<b>": tensor(0, 24, [6])}),
        "does not fit the model",
    ),
    "no tensor": (safetensors({}, b""), "no named tensors"),
    **{
        f"cut after {size} bytes": (SAFE[:size], words)
        for size, words in (
            (4, "no known format"),
            (40, "truncated"),
            (2000, "read as safetensors"),
        )
    },
}

CONTENT: dict[str, tuple[Content, str]] = {
    "a tensor alone": (saved(torch.ones(2)), "not a dict of named tensors"),
    "a list": (saved([torch.ones(2)]), "not a dict of named tensors"),
    "numbers for names": (saved({0: torch.ones(2)}), "no named tensors"),
    "no tensors": (saved({"epoch": 3}), "no named tensors"),
    "two state dicts": (
        saved({"model": OrderedDict(state()), "net": OrderedDict(state())}),
        "several state dicts",
    ),
    "weights of NaN": (
        other("fc1.weight", torch.full((3, 2), torch.nan)),
        "not finite in fc1.weight",
    ),
    "infinite weights": (
        other("fc1.weight", torch.full((3, 2), torch.inf)),
        "not finite in fc1.weight",
    ),
    "another shape": (other("fc1.weight", torch.ones(2, 3)), "misshapen fc1.weight"),
    "whole numbers": (other("fc1.weight", torch.ones(3, 2, dtype=torch.long)), "int64 in the file"),
    "complex numbers": (
        other("fc1.weight", torch.ones(3, 2, dtype=torch.complex64)),
        "complex64 in the file",
    ),
    "a layer too many": (other("fc9.weight", torch.ones(2)), "unexpected fc9.weight"),
    "a layer missing": (saved({"fc1.weight": torch.ones(3, 2)}), "missing fc1.bias"),
    "names of escapes": (
        saved({"\x1b]0;red\x07\n<script>": torch.ones(2)}),
        "does not fit the model",
    ),
    "4 TiB by one number": (
        other("fc1.weight", torch.ones(1).expand(1 << 20, 1 << 20)),
        "misshapen fc1.weight",
    ),
}


ARRAYS: dict[str, tuple[Content, str]] = {
    "no array": (zipped({"weights.npy": b""}), "holds weights, which is no array"),
    "objects": (
        arrays(w=np.array([Touch()], dtype=object)),
        "array w: ValueError: Object arrays cannot be loaded",
    ),
    "text": (arrays(w=np.array(["a"])), "array w is of type <U1"),
    "a pickle beside it": (
        zipped({"w.npy": b"", "data.pkl": pickle.dumps(Touch())}),
        "holds w, which is no array",
    ),
    "a bomb": (
        lambda path: path.write_bytes(arrays(w=np.zeros(300 << 20, np.int8))),
        "would unpack to 300 MiB",
    ),
    "a shape that it does not hold": (declared("<f8", (10**9, 1000)), "MiB of memory"),
    "a size below zero": (declared("<f8", (-4, 2)), "negative dimensions"),
    "a header that is code": (
        members(w=header(b"{'descr': __import__('os').abort()}")),
        "array w: ValueError: malformed node",
    ),
    "an entry twice": (twice, "names repeat"),
    "names of escapes": (arrays(**{"\x1b[31mred": np.zeros(2)}), "does not fit the model"),
    "cut short": (arrays(w=np.zeros(99))[:-30], "read as a NumPy archive"),
    "arrays in another order": (
        arrays(arr_0=np.zeros(3), arr_1=np.zeros((3, 2))),
        "array arr_0 is of shape (3,) where the model has fc1.weight (3, 2)",
    ),
    "arrays too few": (arrays(arr_0=np.zeros((3, 2))), "holds 1 arrays without names"),
}


def beside(path: Path, shard: bytes, names: Collection[str] = ("w",)) -> None:
    """A shard, and its index."""
    path.with_name("shard").write_bytes(shard)
    path.write_bytes(index(dict.fromkeys(names, "shard")))


def many(path: Path, count: int) -> None:
    """A shard of so many empty tensors."""
    header = {f"w{number}": tensor(0, 0, [0]) for number in range(count)}
    beside(path, safetensors(header, b""), header)


def index(places: object) -> bytes:
    """An index of shards."""
    return json.dumps({"weight_map": places}).encode()


INDICES: dict[str, tuple[Content, str]] = {
    "a shard outside": (index({"w": "../shard.safetensors"}), "not a file beside it"),
    "a shard from the root": (index({"w": "/etc/passwd"}), "not a file beside it"),
    "a shard of Windows": (index({"w": "..\\shard.safetensors"}), "not a file beside it"),
    "the folder": (index({"w": ".."}), "not a file beside it"),
    "itself": (index({"w": "hostile.index.json"}), "an index of shards, and no shard"),
    "a shard that is not there": (index({"w": "gone\x1b[31m.safetensors"}), "not beside it"),
    "a shard that is no checkpoint": (index({"w": "table.csv"}), "plain text, not a checkpoint"),
    "no names": (index({"w": ["x"]}), "names no files"),
    "a shard of NumPy": (lambda path: beside(path, arrays(w=[1.0])), "and no shard"),
    "shards of 30,000 tensors": (lambda path: many(path, 30_000), "does not fit the model"),
    "no map": (index([1, 2]), "read as an index of shards"),
    "a name twice": (b'{"weight_map": {"w": "a", "w": "b"}}', "read as an index of shards"),
    "deep nests": (b'{"a":' * 100_000, "read as an index of shards"),
    "17 MiB": (lambda path: path.write_bytes(b"{" + b" " * (17 << 20)), "as no index"),
}


def _cases(command: str, table: dict[str, tuple[Content, str]], kind: str) -> list[Case]:
    return [
        Case(f"{kind}, {name}", "hostile.pt", content, command, words)
        for name, (content, words) in table.items()
    ]


TOLD = (
    "a nested tuple that takes for ever to hash",
    "deep tuples",
    "3 GB of bytes",
    "an empty set",
    "bytes by encoding",
    "a storage by its size",
    "attributes on a tensor",
    "attributes on a dict",
    "a size below zero",
    "a size of 2000 bits",
    "strides beyond it",
    "a storage beyond the file",
    "a storage that is not there",
    "something else that is kept outside",
    "another protocol",
    "a class made",
)
"""Of the pickles made by hand, those that are read by the command too."""

DOUBTED = {
    "two directories": "damaged zip",
    "other counts": "cannot read it",
    "a comment of an entry": "damaged zip",
    "a field of an entry": "damaged zip",
}

BY_HAND = {name: (archived(PICKLES[name][0]), PICKLES[name][1]) for name in TOLD}
DOUBTS = {
    name: (DOUBTFUL[name](archived(entry(rebuilt()))), words) for name, words in DOUBTED.items()
}

CHECKPOINTS = [
    *_cases(READ, CODE, "code"),
    *_cases(READ, BY_HAND, "pickle"),
    *_cases(READ, {**ARCHIVES, **DOUBTS}, "archive"),
    *_cases(READ, NO_CHECKPOINTS, "no checkpoint"),
    *_cases(READ, SAFETENSORS, "safetensors"),
    *_cases(READ, CONTENT, "content"),
    *_cases(READ, ARRAYS, "NumPy"),
    *(
        Case(
            f"shards, {name}",
            "hostile.index.json",
            content,
            READ.replace("hostile.pt", "hostile.index.json"),
            words,
        )
        for name, (content, words) in INDICES.items()
    ),
    Case("a link to itself", "hostile.pt", lambda p: p.symlink_to(p), READ, "symbolic links", 2),
]

UPDATED = (
    "a command as a value",
    "a whole model",
    "a nested tensor",
    "a tensor alone",
    "no tensors",
    "weights of NaN",
    "another shape",
    "a layer too many",
    "names of escapes",
)
UPDATES = _cases(
    UPDATE,
    {name: {**CODE, **CONTENT}[name] for name in UPDATED},
    "update",
)
