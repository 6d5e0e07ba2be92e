"""What a ``torch.export`` archive holds: a graph as JSON, and weights as raw bytes."""

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.errors import CheckpointError, GradauditError
from gradaudit.loading.checkpoint.archive import danger_in, read_directory
from gradaudit.loading.checkpoint.kinds import describe
from gradaudit.text import printable

REMEDY = "export the model and save it with torch.export.save again"
MAX_JSON_BYTES = 64 << 20

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
"""``ScalarType`` of the archive's schema."""

_NOT_ONE = "is no torch.export archive (weights go to --checkpoint)"
_SCHEMA = 8
_STRIDED = 7


@dataclass(frozen=True)
class Archive:
    """A read archive.

    Attributes:
        path: the file.
        program: the exported program as the archive's JSON has it.
        weights: parameters (``nn.Parameter``) and buffers by name; tied ones are one object.
        constants: the tensors that the graph holds besides.
    """

    path: Path
    program: dict[str, Any]
    weights: dict[str, Tensor]
    constants: dict[str, Tensor]


def read_archive(path: Path) -> Archive:
    """Read an archive without running anything in it.

    Raises:
        CheckpointError: the file is no such archive, is damaged, or holds anything pickled.
    """
    entries, directory = read_directory(path)
    root = entries[0].filename.partition("/")[0] if entries else ""
    sizes = {
        entry.filename.removeprefix(f"{root}/"): entry.file_size
        for entry in entries
        if entry.filename.startswith(f"{root}/")
    }
    reason = _unlike_an_export(sizes) or danger_in(entries, directory)
    if reason:
        raise CheckpointError(f"{describe(path)}: {reason}; {REMEDY}")
    with zipfile.ZipFile(path) as file, telling_damage(path):
        return _read(path, _Files(file, root, sizes))


@contextmanager
def telling_damage(path: Path) -> Iterator[None]:
    """Turn whatever a malformed archive makes go wrong into one line that names it."""
    try:
        yield
    except GradauditError:
        raise
    except Exception as error:
        what = printable(f"{type(error).__name__}: {error}".splitlines()[0])
        raise CheckpointError(
            f"{describe(path)}: is damaged or of an unknown version ({what}); {REMEDY}"
        ) from error


@dataclass(frozen=True)
class _Files:
    archive: zipfile.ZipFile
    root: str
    sizes: dict[str, int]

    def read(self, name: str) -> bytes:
        return self.archive.read(f"{self.root}/{name}")

    def json(self, name: str) -> Any:
        if self.sizes[name] > MAX_JSON_BYTES:
            raise ValueError(f"{name} has over {MAX_JSON_BYTES} bytes")
        return json.loads(self.read(name))


def _unlike_an_export(sizes: dict[str, int]) -> str | None:
    if "archive_format" not in sizes:
        older = "serialized_exported_program.json" in sizes
        return "is an export of torch before 2.8" if older else _NOT_ONE
    if not any(_is_program(name) for name in sizes):
        return "holds compiled code and no graph"
    return None


def _is_program(name: str) -> bool:
    return name.startswith("models/") and name.endswith(".json")


def _read(path: Path, files: _Files) -> Archive:
    names = [name for name in files.sizes if _is_program(name)]
    if len(names) > 1:
        raise CheckpointError(f"{describe(path)}: holds {len(names)} models; save one by itself")
    if files.read("byteorder") != b"little":
        raise CheckpointError(f"{describe(path)}: is big-endian; {REMEDY} on another machine")
    program = files.json(names[0])
    version = program["schema_version"]["major"]
    if version != _SCHEMA:
        raise ValueError(f"schema version {version}, where {_SCHEMA} is known")
    model = names[0].removeprefix("models/").removesuffix(".json")
    weights = _tensors(path, files, f"data/weights/{model}_weights_config.json")
    constants = _tensors(path, files, f"data/constants/{model}_constants_config.json")
    return Archive(path, program, weights, constants)


def _tensors(path: Path, files: _Files, config: str) -> dict[str, Tensor]:
    if config not in files.sizes:
        raise CheckpointError(f"{describe(path)}: its tensors are pickled; {REMEDY}")
    folder = config.rpartition("/")[0]
    found: dict[str, Tensor] = {}
    shared: dict[str, Tensor] = {}
    for name, payload in files.json(config)["config"].items():
        if payload["use_pickle"] or payload["tensor_meta"] is None:
            raise CheckpointError(
                f"{describe(path)}: its tensor {printable(name)} is pickled, which would run "
                f"code when loaded; {REMEDY}"
            )
        key = json.dumps([payload["path_name"], payload["tensor_meta"], payload["is_param"]])
        if key not in shared:
            shared[key] = _tensor(payload, files.read(f"{folder}/{payload['path_name']}"))
        found[name] = shared[key]
    return found


def _tensor(payload: dict[str, Any], data: bytes) -> Tensor:
    meta = payload["tensor_meta"]
    dtype = DTYPES[meta["dtype"]]
    size, stride = ([part["as_int"] for part in meta[key]] for key in ("sizes", "strides"))
    if meta["layout"] != _STRIDED or prod(size) * dtype.itemsize > len(data):
        raise ValueError(f"{payload['path_name']} does not hold a dense tensor of {size}")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.as_strided(size, stride, meta["storage_offset"]["as_int"]).contiguous()
    if payload["is_param"]:
        return nn.Parameter(tensor, requires_grad=meta["requires_grad"])
    return tensor
