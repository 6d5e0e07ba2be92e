"""Weights in a folder of transformers, under the library's names for a model."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.core.huggingface import library, reason
from gradaudit.core.text import listed
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import LoadedCheckpoint
from gradaudit.models.hf_adapter import with_frozen

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

    Some keys have had other names, and some are of buffers that there are no more. An adapter comes
    without the weights below it. The checkpoint of a model of another kind is left as it is.
    """
    if not hasattr(model, "base_model_prefix"):
        return loaded
    passed_over = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    prefix, keys = f"{model.base_model_prefix}.", model.state_dict().keys()

    def known(key: str) -> bool:
        return not keys.isdisjoint((key, f"{prefix}{key}", key.removeprefix(prefix)))

    def named(key: str) -> str:
        """Returns a key with the prefix of the model below its head, or without, as here."""
        names = key, f"{prefix}{key}", key.removeprefix(prefix)
        return next((n for n in names if n in keys and (n == key or n not in loaded.state)), key)

    left = [
        key
        for key in loaded.state
        if not known(key) and any(re.search(each, key) for each in passed_over)
    ]
    now = _renaming(model)
    state = {
        key if known(key) else now(key): tensor
        for key, tensor in loaded.state.items()
        if key not in left
    }
    if any(not known(key) for key in state) and (
        converted := _converted(state, model, loaded.record.file)
    ):
        state = converted
    notes = [*loaded.notes, *([f"left aside: {listed(left)}"] if left else [])]
    other = [key for key in state if named(key) != key]
    if other:
        done = "stripped from" if other[0].startswith(prefix) else "added to"
        notes.append(f"prefix {prefix!r} {done} {len(other)} of {len(state)} keys")
    state = {named(key): tensor for key, tensor in state.items()}
    return with_frozen(replace(loaded, state=state, notes=tuple(notes)), model)


def _converted(state: Mapping[str, Tensor], model: Any, file: str) -> dict[str, Tensor]:
    """Returns a state dict converted by the library, which joins or splits weights of files.

    A mixture of experts has its experts side by side in one weight, and apart in files. Empty where
    the library has no rules for it, or does not find all that the model needs.

    Raises:
        CheckpointError: the library fails on it.
    """
    rules, loading = _rules(model)
    if not any(isinstance(rule, loading.WeightConverter) for rule in rules):
        return {}
    try:
        made, loading_info = type(model).from_pretrained(
            None,
            config=copy.deepcopy(model.config),
            state_dict=dict(state),
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # whatever the library makes of weights that it did not write
        raise CheckpointError(
            f"{file}: transformers cannot convert its weights to those of this model "
            f"({reason(error)}); save them with save_pretrained again"
        ) from error
    whole = not any(
        loading_info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    return dict(made.state_dict()) if whole else {}


def _rules(model: Any) -> tuple[list[Any], Any]:
    """Returns the library's rules for converting files' weights, and the module of their types."""
    mapping = library("transformers.conversion_mapping")
    loading = library("transformers.core_model_loading")
    return mapping.get_model_conversion_mapping(model), loading


def _renaming(model: nn.Module) -> Callable[[str], str]:
    """Returns the library's current name of a weight that files call otherwise."""
    rules, loading = _rules(model)
    renamings = [renaming for renaming in rules if isinstance(renaming, loading.WeightRenaming)]
    return lambda key: str(loading.rename_source_key(key, renamings, [])[0])
