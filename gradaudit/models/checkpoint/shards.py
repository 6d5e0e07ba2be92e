"""Reads safetensors files, and checkpoints in several files with an index."""

import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.files import once
from gradaudit.core.text import listed, printable
from gradaudit.errors import CheckpointError, one_line
from gradaudit.models.checkpoint.kinds import MAX_FILE_BYTES, describe, expect_not_distributed

MAX_INDEX_BYTES = 16 << 20
MAX_TENSORS = 100_000
"""Largest number of tensors in a safetensors file."""
INDEX = ".index.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns tensors by name.

    Raises:
        CheckpointError: the library cannot read it, a name occurs twice, or it has too many.
    """
    # The library checks that offsets are in range and that tensors neither overlap nor leave gaps.
    try:
        names = contained.read(partial(_names, path))
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    except (ContainedError, SafetensorError, OSError) as error:
        reason = str(error).partition("Error while deserializing header: ")
        raise CheckpointError(
            f"{describe(path)}: cannot be read as safetensors "
            f"({printable(reason[2] or reason[0], 200)}); fetch or save it again"
        ) from error


def _names(path: Path) -> list[str]:
    """Open a file in the child, and return its tensors' names."""
    _expect_plain_header(path)
    with safe_open(path, framework="pt") as file:
        names: list[str] = file.keys()
        return names


def _expect_plain_header(path: Path) -> None:
    """Raise an error for a header with a name twice, of which the library takes the last."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length), object_pairs_hook=once)
    if len(header) > MAX_TENSORS:
        raise CheckpointError(
            f"{describe(path)}: holds {len(header):,} tensors, over the limit of {MAX_TENSORS:,}; "
            "save the weights in several files"
        )


def metadata_of(path: Path) -> dict[str, str]:
    """Returns the metadata of a safetensors file; empty for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):  # what is wrong is said where its tensors are read
        return {}


def weights_in(folder: Path) -> Path:
    """Returns the index of shards in a folder, or its one file of weights.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    patterns = (f"*.safetensors{INDEX}", "*.safetensors", f"*.bin{INDEX}", "*.bin")
    for pattern in patterns:
        files = sorted(folder.glob(pattern))
        if len(files) == 1:
            return files[0]
        if files:
            names = listed([file.name for file in files])
            raise CheckpointError(
                f"{describe(folder)}: is a directory of several weights ({names}); name one of them"
            )
    expect_not_distributed(folder)
    raise CheckpointError(
        f"{describe(folder)}: is a directory without model.safetensors{INDEX} or one file "
        "*.safetensors; name the checkpoint file inside it"
    )


def other_weights(folder: Path, file: Path) -> list[str]:
    """Names of files of weights in a folder beside the one that is read, and its shards."""
    read = {file.name, *(set(places_in(file).values()) if file.name.endswith(INDEX) else ())}
    return sorted(p.name for p in folder.iterdir() if p.suffix in _WEIGHTS and p.name not in read)


def read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the tensors of all shards by name, in the order of the index.

    Args:
        index: the file that says where each is.
        read: reads the tensors of one shard.

    Raises:
        CheckpointError: the index names other than files beside it, a file is missing or refused,
            or a tensor is not where the index says.
    """
    places = places_in(index)
    by_shard: dict[str, list[str]] = {}
    for tensor, shard in places.items():
        by_shard.setdefault(shard, []).append(tensor)
    _expect_there(index, by_shard)
    state: dict[str, Tensor] = {}
    for shard, names in by_shard.items():
        held = _shard(index, shard, read)
        _expect_the_same(index, shard, names, held)
        state |= held
    return {name: state[name] for name in places}


def _shard(index: Path, name: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    try:
        return read(index.parent / name)
    except CheckpointError as error:
        raise CheckpointError(f"{describe(index)}: of its shards, {error}") from error


def places_in(index: Path) -> dict[str, str]:
    """Returns the file of each tensor, as the index names it."""
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise CheckpointError(f"{describe(index)}: has over {MAX_INDEX_BYTES} bytes, as no index")
    try:
        content = json.loads(index.read_bytes(), object_pairs_hook=once)
        places = content["weight_map"]
        plain = bool(places) and all(isinstance(name, str) for name in places.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{describe(index)}: cannot be read as an index of shards "
            f"({printable(one_line(error), 200)}); it needs a weight_map of tensor to file"
        ) from error
    if not plain:
        raise CheckpointError(f"{describe(index)}: its weight_map names no files; save it again")
    for name in places.values():
        if name in (".", "..", "") or any(part in name for part in ("/", "\\", "\0")):
            raise CheckpointError(
                f"{describe(index)}: names {printable(name, 60)!r}, which is not a file beside it; "
                "shards are named without a folder"
            )
    return dict(places)


def _expect_there(index: Path, shards: Collection[str]) -> None:
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{describe(index)}: names {listed(missing)}, which is not beside it; fetch all shards"
        )
    if sum((index.parent / name).stat().st_size for name in shards) > MAX_FILE_BYTES:
        raise CheckpointError(f"{describe(index)}: its shards take over {MAX_FILE_BYTES} bytes")


def _expect_the_same(
    index: Path, shard: str, names: Collection[str], held: Collection[str]
) -> None:
    named = set(names)
    absent = [name for name in names if name not in held]
    extra = [name for name in held if name not in named]
    if absent or extra:
        what = f"lacks {listed(absent)}" if absent else f"holds {listed(extra)} besides"
        raise CheckpointError(
            f"{describe(index)}: is not of these shards: {printable(shard, 60)} {what}; fetch the "
            "index and the shards together"
        )
