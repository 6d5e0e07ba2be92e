"""Checks a checkpoint's tensors against a model: names, shapes, dtypes and values."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from gradaudit.core.text import listed, printable
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.naming import (
    COMPILED,
    MAY_BE_MISSING,
    NO_RENAME,
    Naming,
    Rename,
    in_order_of,
    match_keys,
)
from gradaudit.models.checkpoint.state_dict import LoadedCheckpoint
from gradaudit.report import CheckpointRecord

_NAMED = (
    "check that --model names the architecture, with its options, that it was saved from, and say "
    "--prefix OLD=NEW where its keys begin otherwise"
)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class FittedTensors:
    """Tensors under the model's names, in the model's shapes and dtypes, all finite.

    ``notes`` say what was stripped, left aside, taken from a tied tensor or cast; ``random`` are
    the names that the checkpoint has no weights for, where it may be partial.
    """

    state: dict[str, Tensor]
    notes: tuple[str, ...]
    random: tuple[str, ...] = ()


Pair = tuple[str, Tensor, Tensor]
"""A name in the model, the tensor in the file, and the model's tensor that it replaces."""


@dataclass(frozen=True)
class Fit:
    """Options of how a checkpoint may be made to fit.

    Attributes:
        rename: the prefix to replace in its keys; without it one that all share is stripped.
        partial: whether what is missing or misshapen stays as it was built.
        or_in_part: how to ask for that where some of it fits, in words.
    """

    rename: Rename | None = None
    partial: bool = False
    or_in_part: str = ""


WHOLE = Fit()
"""The fit in which every key has its place, and every place its key."""


def apply_checkpoint(
    model: nn.Module, loaded: LoadedCheckpoint, how: Fit = WHOLE
) -> CheckpointRecord:
    """Put a checkpoint's weights and buffers into a model, all of them or none.

    Returns:
        The checkpoint's record, with everything worth saying about it.

    Raises:
        CheckpointError: it does not fit; the model is then as it was.
    """
    state = model.state_dict(keep_vars=True)
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    fitted = fit_state(tensors, loaded, how, partial(renamed_by_hooks, model))
    model.load_state_dict(fitted.state, strict=False)
    facts = {"notes": [*loaded.notes, *fitted.notes], "random": list(fitted.random)}
    return loaded.record.model_copy(update=facts)


def renamed_by_hooks(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load a state dict as torch does, into a copy, whose hooks rename keys of old modules.

    Returns:
        The given tensors that found a place, by the model's names, and those that found none;
        nothing where torch cannot load them.
    """
    try:
        shell = copy.deepcopy(model)
        rest = shell.load_state_dict(state, strict=False, assign=True)
    except Exception:  # of shapes, types or the model's own code: ``fit_state`` names what is amiss
        return {}
    given = {tensor.data_ptr() for tensor in state.values()}
    placed = {
        name: tensor.detach()
        for name, tensor in shell.state_dict().items()
        if isinstance(tensor, Tensor) and tensor.data_ptr() in given
    }
    return placed | {key: state[key] for key in rest.unexpected_keys}


def fit_state(
    expected: Mapping[str, Tensor],
    loaded: LoadedCheckpoint,
    how: Fit = WHOLE,
    rename_old: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None,
) -> FittedTensors:
    """Returns a checkpoint's tensors under the names of ``expected``.

    Names that share one tensor in ``expected`` (tied weights) need only one in the checkpoint, as
    safetensors keeps only one; BatchNorm's ``num_batches_tracked`` may be missing. Arrays without
    names are taken in the order of ``expected``.

    Args:
        expected: what must be there: a model's state, or its parameters for an update.
        loaded: the checkpoint.
        how: what is done to make it fit.
        rename_old: gives keys of older versions their present names, where they do not fit.

    Raises:
        CheckpointError: keys are missing, unexpected or misshapen, dtypes cannot be cast, tied
            names hold different tensors, or values are not finite. No value is read before all
            names, shapes and dtypes fit.
    """
    file = loaded.record.file
    given = in_order_of(expected, loaded) if loaded.ordered else loaded.state
    groups: dict[int, list[str]] = {}
    for name, tensor in expected.items():
        groups.setdefault(id(tensor), []).append(name)
    tied = groups.values()
    required = [names for names in tied if not names[0].endswith(MAY_BE_MISSING)]
    naming = match_keys(expected, required, given, how.rename)
    notes: list[str] = []
    if rename_old and not naming.fits:
        named_here = naming.renamed(given)
        current = rename_old(named_here)
        again = match_keys(expected, required, current, NO_RENAME)
        if len(again.keys) > len(naming.keys):
            old = [key for key in named_here if key not in current]
            notes = [f"keys of an older version, renamed as the model does: {listed(old)}"]
            naming = replace(again, rename=naming.rename, outside=naming.outside)
            given = current
    pairs = [(name, given[key], expected[name]) for name, key in naming.keys.items()]
    if how.partial:
        pairs = _fitting_pairs(pairs, file)
    else:
        _check_names_and_shapes(naming, pairs, file, how.or_in_part)
    _check_dtypes(pairs, file)
    state = {name: _cast(tensor, wanted.dtype) for name, tensor, wanted in pairs}
    _check_values(state, tied, file)
    random = [names[0] for names in required if state.keys().isdisjoint(names)]
    notes += _notes(naming, pairs, expected, random)
    return FittedTensors(state, tuple(notes), tuple(random))


def _fitting_pairs(pairs: Collection[Pair], file: str) -> list[Pair]:
    """Returns the pairs with equal shapes; raises an error where there are none."""
    fitting = [pair for pair in pairs if _fits(pair)]
    if not fitting:
        raise CheckpointError(f"{file}: nothing in it fits the model, by name and shape; {_NAMED}")
    return fitting


def _fits(pair: Pair) -> bool:
    _, given, wanted = pair
    return given.shape == wanted.shape


def _check_names_and_shapes(
    naming: Naming, pairs: Collection[Pair], file: str, or_in_part: str
) -> None:
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
            + (f"{or_in_part}, or " if or_in_part and any(map(_fits, pairs)) else "")
            + _NAMED
        )


def _check_dtypes(pairs: Collection[Pair], file: str) -> None:
    wrong = [
        f"{printable(name)} ({_kind(given)} in the file, {_kind(wanted)} in the model)"
        for name, given, wanted in pairs
        if not (_castable(given, wanted) or _is_averaged_count(name, given, wanted))
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
    return given.dtype == wanted.dtype and (given.dtype == torch.bool or given.is_complex())


def _is_averaged_count(name: str, given: Tensor, wanted: Tensor) -> bool:
    """Whether a real number counts BatchNorm's batches, averaged over clients as Flower does."""
    counts = name.endswith(MAY_BE_MISSING) and wanted.dtype == torch.int64
    if not counts or given.dtype not in _FLOATS or given.is_meta:
        return False
    return bool(((given >= 0) & (given < 1 << 53)).all())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to a dtype; real numbers are rounded to whole ones."""
    rounds = tensor.is_floating_point() and dtype in _INTEGERS
    return (tensor.round() if rounds else tensor).to(dtype)


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
    naming: Naming,
    pairs: Collection[Pair],
    expected: Mapping[str, Tensor],
    random: Collection[str],
) -> Iterator[str]:
    old, new = naming.rename
    if old and not new:
        yield f"prefix {old!r} stripped from the keys"
    elif new:
        yield f"prefix {old!r} of the keys replaced by {new!r}" if old else f"prefix {new!r} added"
    if any(COMPILED in key and COMPILED not in name for name, key in naming.keys.items()):
        yield "'_orig_mod.' of torch.compile dropped from the keys"
    if naming.outside:
        yield f"left aside, without the prefix: {listed(naming.outside)}"
    if naming.unexpected:
        yield f"left aside, not in the model: {listed(naming.unexpected)}"
    yield from _absences(naming, expected, random)
    counts = [name for name, given, wanted in pairs if _is_averaged_count(name, given, wanted)]
    if counts:
        yield f"rounded to whole numbers: {listed(counts)}"
    casts = {(given.dtype, wanted.dtype) for name, given, wanted in pairs if name not in counts}
    for given, wanted in sorted(casts, key=str):
        if given != wanted:
            yield f"cast from {str(given)[6:]} to {str(wanted)[6:]}"


def _absences(
    naming: Naming, expected: Mapping[str, Tensor], random: Collection[str]
) -> Iterator[str]:
    """Names what the model has and the file lacks."""
    absent = [name for name in expected if name not in naming.keys and name not in random]
    tracked = [name for name in absent if name.endswith(MAY_BE_MISSING)]
    shared = [name for name in absent if name not in tracked]
    if tracked:
        yield f"not in the file, left as built: {listed(tracked)}"
    if shared:
        yield f"not in the file, tied to a tensor that is: {listed(shared)}"
    if random:
        yield f"RANDOM, as the file has no weights for them: {listed(random, 20)}"
