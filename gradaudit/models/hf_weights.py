"""Weights in a folder of transformers, under the library's names for a model."""

import copy
import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.core.huggingface import reason
from gradaudit.core.text import listed
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import LoadedCheckpoint
from gradaudit.models.checkpoint.naming import common_prefixes
from gradaudit.models.hf_adapter import has_adapter, with_frozen

_WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


def weights_in(folder: Path) -> Path | None:
    """Returns the file of weights in a folder, or the index of several; None without any."""
    files = [path for name in _WEIGHTS if (path := folder.expanduser() / name).exists()]
    return files[0] if files else None


def as_named_here(loaded: LoadedCheckpoint, model: nn.Module) -> LoadedCheckpoint:
    """Returns a checkpoint under the names that the library gives the model's weights.

    The library knows older names, prefixes, and weights that files join or split (experts). An
    adapter comes without the weights below it. The checkpoint of any other model is left as it is.

    Raises:
        CheckpointError: the library fails on it, or would make weights of whole numbers.
    """
    if has_adapter(model):
        return with_frozen(loaded, model)
    own = model.state_dict()
    if not hasattr(model, "base_model_prefix") or loaded.state.keys() <= own.keys():
        return loaded
    for prefix in common_prefixes(loaded.state):
        given = {key.removeprefix(prefix): tensor for key, tensor in loaded.state.items()}
        found, info = _converted(given, model, loaded.record.file)
        if found:
            break
    else:
        return loaded
    shapes = {name: shape for name, shape, _ in info["mismatched_keys"]}
    left = [key for key in given if _is_passed_over(key, model) and key not in found]
    _expect_numbers(given, {*own, *left, *info["unexpected_keys"]}, own, loaded.record.file)
    state = found | {name: torch.empty(shape) for name, shape in shapes.items()}
    state |= {key: given.get(key, torch.empty(0)) for key in sorted(info["unexpected_keys"])}
    renamed = given.keys() - state.keys() - {*left}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in given.values()}
    notes = [
        f"prefix {prefix!r} stripped from the keys" if prefix else "",
        f"left aside: {listed(left)}" if left else "",
        f"{len(renamed)} of {len(given)} weights named as transformers has them" if renamed else "",
        f"of {listed(sorted(kinds))} in the file" if len(kinds) > 1 else "",
    ]
    return replace(loaded, state=state, notes=(*loaded.notes, *filter(None, notes)))


def _converted(
    state: dict[str, Tensor], model: Any, file: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns what the library finds for a model's weights, and the keys that it does not."""
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    try:
        with torch.random.fork_rng(()):  # the library draws what the file lacks
            made, info = type(model).from_pretrained(
                None,
                config=copy.deepcopy(model.config),
                state_dict=dict(state),
                dtype=reduce(torch.promote_types, kinds) if kinds else torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever the library makes of weights that it did not write
        raise CheckpointError(
            f"{file}: transformers cannot convert its weights to those of this model "
            f"({reason(error)}); save them with save_pretrained again"
        ) from error
    absent = info["missing_keys"] | {name for name, *_ in info["mismatched_keys"]}
    names = made.state_dict().keys() - absent
    tensors = (*made.named_parameters(), *made.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors if name in names}, info


def _is_passed_over(key: str, model: Any) -> bool:
    """Whether the library reads no such key, as of buffers that there are no more."""
    prefix = f"{model.base_model_prefix}."
    known = {key, f"{prefix}{key}", key.removeprefix(prefix)} & model.state_dict().keys()
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return not known and any(re.search(each, key) for each in ignored)


def _expect_numbers(
    state: dict[str, Tensor], known: set[str], own: dict[str, Tensor], file: str
) -> None:
    """Raise an error for whole numbers that the library would cast to weights."""
    whole = [
        key
        for key, tensor in state.items()
        if not tensor.is_floating_point()
        and (own[key].is_floating_point() if key in own else key not in known)
    ]
    if whole:
        kind = str(state[whole[0]].dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{file}: cannot be cast to the model's types: {listed(whole)} ({kind} in the file); "
            "save dense weights of the model's types"
        )
