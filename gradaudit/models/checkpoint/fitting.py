"""A checkpoint's tensors checked against a model: names, shapes, dtypes and values.

Which key is which of the model's is told through the prefixes of wrappers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.reading import LoadedCheckpoint
from gradaudit.text import listed, printable

PREFIXES = ("module.", "model.", "net.")
"""DataParallel and DDP, and the attributes Lightning modules keep a model in."""

_COMPILED = "_orig_mod."
_MAX_DEPTH = 4
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MAY_BE_MISSING = "num_batches_tracked"


@dataclass(frozen=True)
class Naming:
    """How a checkpoint's keys map to a model's.

    Attributes:
        prefix: stripped from the checkpoint's keys.
        keys: the checkpoint's key of each of the model's keys that has one.
        missing: required keys of the model without one.
        unexpected: keys of the checkpoint under the prefix that the model lacks.
        outside: keys of the checkpoint that do not begin with the prefix.
    """

    prefix: str
    keys: dict[str, str]
    missing: list[str]
    unexpected: list[str]
    outside: list[str]


def match_keys(
    model: Collection[str], required: Collection[Sequence[str]], file: Collection[str]
) -> Naming:
    """Map keys under the shortest prefix that makes them fit, else the one that matches most keys.

    ``_orig_mod.`` (a compiled submodule) is passed over anywhere in a key, on both sides.
    Of every group of keys (tied to one another) in ``required`` the file must have one.
    """
    plain = {_plain(key): key for key in file}

    def under(prefix: str) -> Naming:
        candidates = {name: prefix + _plain(name) for name in model}
        keys = {name: plain[key] for name, key in candidates.items() if key in plain}
        used = set(keys.values())
        inside = {key for key in file if _plain(key).startswith(prefix)}
        return Naming(
            prefix,
            keys,
            missing=[tied[0] for tied in required if keys.keys().isdisjoint(tied)],
            unexpected=[key for key in file if key in inside and key not in used],
            outside=[key for key in file if key not in inside],
        )

    namings = [under(prefix) for prefix in sorted(_prefixes(plain), key=len)]
    fitting = (naming for naming in namings if not naming.missing and not naming.unexpected)
    return next(fitting, max(namings, key=lambda naming: len(naming.keys)))


def _prefixes(names: Collection[str], prefix: str = "", depth: int = 0) -> Iterator[str]:
    yield prefix
    for more in PREFIXES if depth < _MAX_DEPTH else ():
        longer = prefix + more
        inside = [name for name in names if name.startswith(longer)]
        if inside:
            yield from _prefixes(inside, longer, depth + 1)


def _plain(key: str) -> str:
    return key.replace(_COMPILED, "")


@dataclass(frozen=True)
class Fitted:
    """Tensors under the model's names, in the model's shapes and dtypes, all finite.

    ``notes`` say what was stripped, left aside, taken from a tied tensor or cast.
    """

    state: dict[str, Tensor]
    notes: tuple[str, ...]


Pair = tuple[str, Tensor, Tensor]
"""A name of the model, the tensor in the file, and the one that it goes to."""


def apply_checkpoint(model: nn.Module, loaded: LoadedCheckpoint) -> tuple[str, ...]:
    """Put a checkpoint's weights and buffers into a model, all of them or none.

    Returns:
        Everything worth saying about the checkpoint, for the report.

    Raises:
        CheckpointError: it does not fit; the model is then as it was.
    """
    state = model.state_dict(keep_vars=True)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    fitted = fit_state(tensors, loaded)
    model.load_state_dict(fitted.state, strict=False)
    return (*loaded.notes, *fitted.notes)


def fit_state(expected: Mapping[str, Tensor], loaded: LoadedCheckpoint) -> Fitted:
    """A checkpoint's tensors under the names of ``expected``.

    Names that share one tensor in ``expected`` (tied weights) need only one in the checkpoint, as
    safetensors keeps only one; BatchNorm's ``num_batches_tracked`` may be missing.

    Args:
        expected: what must be there: a model's state, or its parameters for an update.
        loaded: the checkpoint.

    Raises:
        CheckpointError: keys are missing, unexpected or misshapen, dtypes cannot be cast, tied
            names hold different tensors, or values are not finite. No value is read before all
            names, shapes and dtypes fit.
    """
    groups: dict[int, list[str]] = {}
    for name, tensor in expected.items():
        groups.setdefault(id(tensor), []).append(name)
    tied = groups.values()
    required = [names for names in tied if not names[0].endswith(_MAY_BE_MISSING)]
    naming = match_keys(expected, required, loaded.state)
    pairs = [(name, loaded.state[key], expected[name]) for name, key in naming.keys.items()]
    _check_names_and_shapes(naming, pairs, loaded.record.file)
    _check_dtypes(pairs, loaded.record.file)
    state = {name: given.to(wanted.dtype) for name, given, wanted in pairs}
    _check_values(state, tied, loaded.record.file)
    return Fitted(state, tuple(_notes(naming, pairs, expected)))


def _check_names_and_shapes(naming: Naming, pairs: Collection[Pair], file: str) -> None:
    misshapen = [
        f"{printable(name)} ({tuple(given.shape)} in the file, {tuple(wanted.shape)} in the model)"
        for name, given, wanted in pairs
        if given.shape != wanted.shape
    ]
    faults = {"missing": naming.missing, "unexpected": naming.unexpected, "misshapen": misshapen}
    faulty = "; ".join(f"{fault} {listed(names)}" for fault, names in faults.items() if names)
    if faulty:
        raise CheckpointError(
            f"{file}: does not fit the model: {faulty}; "
            "check that --model names the architecture, with its options, that it was saved from"
        )


def _check_dtypes(pairs: Collection[Pair], file: str) -> None:
    wrong = [
        f"{printable(name)} ({_kind(given)} in the file, {_kind(wanted)} in the model)"
        for name, given, wanted in pairs
        if not _castable(given, wanted)
    ]
    if wrong:
        raise CheckpointError(
            f"{file}: cannot be cast to the model's types: {listed(wrong)}; "
            "save dense weights of the model's types"
        )


def _castable(given: Tensor, wanted: Tensor) -> bool:
    if given.layout != torch.strided or given.is_quantized or given.is_meta:
        return False
    if given.dtype in _FLOATS:
        return wanted.dtype in _FLOATS
    if given.dtype in _INTEGERS and wanted.dtype in _INTEGERS:
        return torch.promote_types(given.dtype, wanted.dtype) == wanted.dtype
    return given.dtype == wanted.dtype == torch.bool


def _kind(tensor: Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else f"{str(tensor.layout)[6:]} "
    return f"{layout}{str(tensor.dtype)[6:]}{' without data' if tensor.is_meta else ''}"


def _check_values(state: Mapping[str, Tensor], tied: Collection[Sequence[str]], file: str) -> None:
    broken = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise CheckpointError(
            f"{file}: holds values that are not finite in {listed(broken)}; training diverged or "
            "the file is damaged, take an earlier checkpoint"
        )
    for names in tied:
        present = [name for name in names if name in state]
        if any(not torch.equal(state[present[0]], state[name]) for name in present[1:]):
            raise CheckpointError(
                f"{file}: {listed(present)} are one tensor in the model but differ in the file; "
                "check that --model ties the weights that it was trained with"
            )


def _notes(
    naming: Naming, pairs: Collection[Pair], expected: Mapping[str, Tensor]
) -> Iterator[str]:
    if naming.prefix:
        yield f"prefix {naming.prefix!r} stripped from the keys"
    if any(_COMPILED in key and _COMPILED not in name for name, key in naming.keys.items()):
        yield "'_orig_mod.' of torch.compile dropped from the keys"
    if naming.outside:
        yield f"left aside, without the prefix: {listed(naming.outside)}"
    absent = [name for name in expected if name not in naming.keys]
    tracked = [name for name in absent if name.endswith(_MAY_BE_MISSING)]
    shared = [name for name in absent if name not in tracked]
    if tracked:
        yield f"not in the file, left as built: {listed(tracked)}"
    if shared:
        yield f"not in the file, tied to a tensor that is: {listed(shared)}"
    casts = {(given.dtype, wanted.dtype) for _, given, wanted in pairs}
    for given, wanted in sorted(casts, key=str):
        if given != wanted:
            yield f"cast from {str(given)[6:]} to {str(wanted)[6:]}"
