"""Adapters of PEFT: only their few weights are trained, the model below is frozen.

What is frozen comes with the model's folder, so that a checkpoint of such a model is the adapter
alone, as PEFT writes it or as it is called in the model.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gradaudit.core import contained
from gradaudit.core.huggingface import library, most_weights, reason, settings_of
from gradaudit.errors import CheckpointError, UsageError, foreign
from gradaudit.models.checkpoint import LoadedCheckpoint
from gradaudit.report import CheckpointRecord

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_NAME = "default"
_PREFIX = "base_model.model."
_BASE = "below_the_adapter"
_WEIGHTS_A_SECOND = 1 << 25
"""Weights below an adapter that it is put onto in a second at least."""
_COPIES = 4
"""How many times its file's size an adapter takes at most: in single precision, drawn at first."""
_VOLATILE = re.compile(
    "_name_or_path|transformers_version|dtype|torch_dtype|use_cache|architectures"
)


def with_adapter(model: nn.Module, folder: Path, base: CheckpointRecord) -> nn.Module:
    """Returns the model with a newly drawn adapter in its layers; the rest is frozen.

    Args:
        model: with its weights.
        folder: of ``adapter_config.json``.
        base: where the model's weights are from.

    Raises:
        UsageError: the folder holds no adapter, or one that does not go into layers.
        CheckpointError: the adapter is one of another model.
    """
    folder = folder.expanduser()
    settings = settings_of(folder, CONFIG)
    path = folder / CONFIG
    if settings.get("megatron_config") is not None:
        raise UsageError(
            f"{path}: megatron_config: imports a module that the file names, which is never done; "
            "take it out"
        )
    _expect_same_base(model, settings, folder)
    files = [file for name in _WEIGHTS if (file := folder / name).is_file()]
    library("peft")
    before, held = _weights(model), sum(file.stat().st_size for file in files)
    try:
        size = contained.read(
            lambda: _weights(_injected(model, folder)) - before,
            seconds=before / _WEIGHTS_A_SECOND,
            memory=_COPIES * held,
        )
        if size > (most := most_weights(files[0] if files else None)):
            raise CheckpointError(
                f"{path}: asks for {size:,} weights, more than its folder can hold ({most:,}); is "
                "it damaged?"
            )
        with foreign():
            adapted = _injected(model, folder)
    except CheckpointError:
        raise
    except Exception as error:  # whatever the library makes of settings of another model
        raise CheckpointError(
            f"{path}: peft cannot put the adapter into this model ({reason(error)}); name the "
            "model that it was trained on, and an adapter of layers such as LoRA"
        ) from error
    vars(adapted)[_BASE] = base
    return adapted


def _weights(model: nn.Module) -> int:
    return sum(tensor.numel() for part in (model.parameters, model.buffers) for tensor in part())


def _injected(model: nn.Module, folder: Path) -> nn.Module:
    """Puts the adapter of a folder into a model; it is written over."""
    peft = library("peft")
    config = peft.PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False
    adapted: nn.Module = peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    return adapted


def weights_in(folder: Path) -> Path:
    """Returns the file of an adapter's weights.

    Raises:
        UsageError: there is none.
    """
    folder = folder.expanduser()
    files = [path for name in _WEIGHTS if (path := folder / name).is_file()]
    if not files:
        raise UsageError(f"{folder}: holds no {_WEIGHTS[0]}; name the folder of a saved adapter")
    return files[0]


def has_adapter(model: nn.Module) -> bool:
    """Whether an adapter alone is trained in a model."""
    return isinstance(vars(model).get(_BASE), CheckpointRecord)


def frozen_below(model: nn.Module) -> frozenset[str]:
    """Names the frozen weights of a model with an adapter; empty for every other model."""
    if not has_adapter(model):
        return frozenset()
    every = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in every if not parameter.requires_grad)


def with_frozen(loaded: LoadedCheckpoint, model: nn.Module) -> LoadedCheckpoint:
    """Returns an adapter's checkpoint under the model's names, with the model's frozen weights."""
    base = vars(model)[_BASE]
    state = model.state_dict()
    frozen = {name: state[name] for name in frozen_below(model) & state.keys()}
    names = _names(model, state)
    given = {key.removeprefix(_PREFIX): tensor for key, tensor in loaded.state.items()}
    renamed = {names.get(key, key): tensor for key, tensor in given.items()}
    note = f"frozen below it: {base.file} (sha256 {base.sha256})"
    return replace(loaded, state={**frozen, **renamed}, notes=(*loaded.notes, note))


def _names(model: Any, own: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the model's names of the adapter's weights by PEFT's names in its files."""
    called = {id(tensor): name for name, tensor in own.items()}
    saved = library("peft").get_peft_model_state_dict(
        model, state_dict=dict(own), adapter_name=_NAME, save_embedding_layers=False
    )
    return {key.removeprefix(_PREFIX): called[id(t)] for key, t in saved.items() if id(t) in called}


def _expect_same_base(model: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """Raise an error where the adapter's own model beside it has other settings than this one.

    Raises:
        CheckpointError: they differ, and where.
    """
    named = settings.get("base_model_name_or_path")
    base = Path(named) if isinstance(named, str) else Path()
    if not (base / "config.json").is_file():
        return
    here = settings_of(Path(model.config.name_or_path), "config.json")
    there = settings_of(base, "config.json")
    keys = [key for key in sorted({*here, *there}) if not _VOLATILE.fullmatch(key)]
    for key in keys:
        if here.get(key) != there.get(key):
            raise CheckpointError(
                f"{folder / CONFIG}: base_model_name_or_path is another model: {key} is "
                f"{there.get(key)!r} there and {here.get(key)!r} here; name that one by hf:{base}"
            )
