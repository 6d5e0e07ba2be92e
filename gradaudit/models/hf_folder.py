"""Models of transformers, from a folder that ``save_pretrained`` wrote.

``config.json`` names the architecture; weights are a checkpoint as any other. Experts are called
one by one, as their joint products take no float64. Attention is the library's plain one with its
mask written out for every record, which ``torch.func`` can follow: left to itself the library looks
whether a mask hides anything, and lets it out where not.
"""

import copyreg
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gradaudit.core import contained
from gradaudit.core.huggingface import library, most_weights, reason, settings_of
from gradaudit.data.common.tokenizing import ReadingTask, TextModel
from gradaudit.errors import GradauditError, UsageError, foreign
from gradaudit.models import hf_adapter
from gradaudit.models.checkpoint import apply_checkpoint, load_checkpoint
from gradaudit.models.hf_adapter import with_adapter
from gradaudit.models.hf_weights import as_named_here, weights_in
from gradaudit.report import CheckpointRecord

CONFIG = "config.json"
Task = Literal[
    ReadingTask,
    "token-classification",
    "image-classification",
    "audio-classification",
    "sequence-to-sequence",
    "question-answering",
]
"""Task of a model: a ``ReadingTask`` reads texts of a file, others take a function's data."""
_CLASSES: Mapping[Task, tuple[str, str]] = {
    "next-token": ("CausalLM", "CAUSAL_LM"),
    "masked-token": ("MaskedLM", "MASKED_LM"),
    "classification": ("SequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "token-classification": ("TokenClassification", "TOKEN_CLASSIFICATION"),
    "image-classification": ("ImageClassification", "IMAGE_CLASSIFICATION"),
    "audio-classification": ("AudioClassification", "AUDIO_CLASSIFICATION"),
    "sequence-to-sequence": ("Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "question-answering": ("QuestionAnswering", "QUESTION_ANSWERING"),
}
"""Suffixes of a task's AutoModel class, and of the library's table of model classes."""


def load_folder(
    folder: Path,
    adapter: Path | None = None,
    task: Task | None = None,
    classes: int | None = None,
) -> nn.Module:
    """Returns the model of a folder's ``config.json``, in float32, with newly drawn weights.

    Args:
        folder: of ``config.json``; nothing is downloaded, and no code in it is run.
        adapter: folder of a PEFT adapter, which alone is trained then, on the folder's weights.
        task: what it is to predict, where that is not what its architecture was made for.
        classes: how many it distinguishes, if it does; those of the folder without it.

    Raises:
        UsageError: the folder is missing, holds no such file, or names a model that the library
            does not know, that needs other code, or that is of no task that can be audited.
        CheckpointError: the adapter, or the weights below it, are of another model.
    """
    folder = folder.expanduser()
    settings = settings_of(folder, CONFIG)
    if "quantization_config" in settings:
        raise UsageError(
            f"{folder / CONFIG}: quantization_config: quantised weights have no gradients; name "
            "the folder of the model that they were made of"
        )
    held = most_weights(weights_in(folder))
    kind = str(settings.get("model_type"))
    asked: Task = task or _task(folder, settings, kind)
    try:
        _imported(_table(asked).get(kind))
        size = contained.read(lambda: _size(_config(folder, classes), asked))
        if size > held:
            raise UsageError(
                f"{folder / CONFIG}: asks for {size:,} weights, more than its folder can hold "
                f"({held:,}); is it damaged, or are the weights missing?"
            )
        with foreign():
            model = _built(_config(folder, classes), asked)
    except GradauditError:
        raise
    except Exception as error:
        raise UsageError(
            f"{folder / CONFIG}: transformers makes no model for {asked} of it ({reason(error)}); "
            "name a folder that save_pretrained wrote"
        ) from error
    copyreg.pickle(type(model), _reduced)
    return model if adapter is None else with_adapter(model, adapter, _filled(model, folder))


def _built(config: Any, task: Task) -> nn.Module:
    model: nn.Module = getattr(_transformers(), f"AutoModelFor{_CLASSES[task][0]}").from_config(
        config,
        attn_implementation="eager",
        experts_implementation="eager",
        dtype=torch.float32,
    )
    return model


def _size(config: Any, task: Task) -> int:
    """Counts the weights and buffers of a model without taking memory for them."""
    with torch.device("meta"):
        model = _built(config, task)
    return sum(tensor.numel() for part in (model.parameters, model.buffers) for tensor in part())


def _imported(names: str | tuple[str, ...] | None) -> None:
    """Import classes of the library, so that a process that is forked from this one has them."""
    for name in (names,) if isinstance(names, str) else names or ():
        getattr(_transformers(), name, None)


def _filled(model: nn.Module, folder: Path) -> CheckpointRecord:
    """Load the folder's weights into the model."""
    if (weights := weights_in(folder)) is None:
        raise UsageError(f"{folder}: holds no model.safetensors, and an adapter lies on weights")
    return apply_checkpoint(model, as_named_here(load_checkpoint(weights), model))


def brought_by(folder: Path, adapter: Path | None) -> Path | None:
    """Returns the checkpoint that comes with a folder: its weights, the adapter's, or None."""
    return weights_in(folder) if adapter is None else hf_adapter.weights_in(adapter)


def reading_of(model: nn.Module) -> TextModel | None:
    """Returns how a folder's model reads texts; None for any other model."""
    config: Any = getattr(model, "config", None)
    named = getattr(config, "name_or_path", None)
    folder = Path(named) if isinstance(named, str) and named else None
    if folder is None or not (folder / CONFIG).is_file():
        return None
    task = _task_of(type(model).__name__)
    if task not in ("next-token", "masked-token", "classification"):
        return None
    return TextModel(
        tokenizer=folder,
        task=task,
        vocabulary=model.get_input_embeddings().num_embeddings,  # type: ignore[operator]
        positions=_positions(model),
        padding=config.pad_token_id,
        classes=class_names(model),
    )


def expect_data_of(model: nn.Module, spec: str) -> None:
    """Raise a UsageError where a folder's model takes other inputs than the texts of a file."""
    kinds = type(model).__mro__  # a class of the library says that it is loaded
    if not spec.startswith("text:") or not any("transformers." in k.__module__ for k in kinds):
        return
    task = _task_of(type(model).__name__)
    if task is not None and task not in get_args(ReadingTask):
        raise UsageError(
            f"--data {spec}: the model is made for {task} and takes no texts of a file; return its "
            "arguments by name from a function, as in --data FILE.py:factory"
        )


def class_names(model: nn.Module) -> tuple[str, ...]:
    """Returns the class names of a model of transformers, in the model's order."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    return tuple(names[k] for k in sorted(names)) if isinstance(names, dict) else ()


def _positions(model: Any) -> int | None:
    """Returns the largest number of tokens; some models count positions after the padding's."""
    most: int | None = getattr(model.config, "max_position_embeddings", None)
    tables = [
        m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == most
    ]
    behind = [table.padding_idx + 1 for table in tables if table.padding_idx is not None]
    return most if most is None or not behind else most - max(behind)


@cache
def _transformers() -> Any:
    """Returns the library, with attention that per-sample gradients can pass."""
    transformers = library("transformers")
    masks = library("transformers.masking_utils")
    masks.AttentionMaskInterface.register("eager", _written_out)
    return transformers


def _written_out(*args: Any, **kwargs: Any) -> Tensor:
    """Returns the mask that is added to attention scores, also where it hides nothing."""
    masks = library("transformers.masking_utils")
    mask: Tensor = masks.eager_mask(*args, **{**kwargs, "allow_is_bidirectional_skip": False})
    return mask


def _config(folder: Path, classes: int | None) -> Any:
    given = {} if classes is None else {"num_labels": classes}
    try:
        config = _transformers().AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **given
        )
    except Exception as error:  # whatever the library makes of a file that it did not write
        raise UsageError(
            f"{folder / CONFIG}: transformers cannot read it ({reason(error)}); name a folder that "
            "save_pretrained wrote"
        ) from error
    config.use_cache = False
    config.return_dict = True
    if not all(isinstance(name, str) for name in (config.id2label or {}).values()):
        raise UsageError(f"{folder / CONFIG}: id2label: a class is named by a text")
    if getattr(config, "pad_token_id", 0) is None:
        ends = config.eos_token_id
        config.pad_token_id = (ends[0] if isinstance(ends, list) and ends else ends) or 0
    return config


def _task(folder: Path, settings: Mapping[str, Any], model_type: str) -> Task:
    """Returns the task of the named architecture."""
    named = settings.get("architectures")
    for name in named if isinstance(named, list) else ():
        if (task := _task_of(str(name))) is not None:
            return task
    known = [task for task in _CLASSES if model_type in _table(task)]
    named = ", ".join(map(str, named)) if isinstance(named, list) else "none"
    other = f"say ?task={'|'.join(known)}, or " if known else ""
    raise UsageError(
        f"{folder / CONFIG}: architectures names no model with a loss that is known here ({named});"
        f" {other}name a function that builds the model, as in --model FILE.py:factory, and its "
        "loss by --loss FILE.py:NAME"
    )


def _task_of(architecture: str) -> Task | None:
    for task in _CLASSES:
        if architecture in _table(task).values():
            return task
    return None


def _table(task: Task) -> Mapping[str, str]:
    """Returns the names of the library's classes by the type of model."""
    auto = library("transformers.models.auto.modeling_auto")
    table: Mapping[str, str] = getattr(auto, f"MODEL_FOR_{_CLASSES[task][1]}_MAPPING_NAMES")
    return table


def _reduced(model: nn.Module) -> tuple[Any, ...]:
    """Pickles a model so that a worker imports the library before the model's classes."""
    return _empty, (type(model).__module__, type(model).__qualname__), vars(model)


def _empty(module: str, name: str) -> nn.Module:
    _transformers()
    kind: type[nn.Module] = getattr(library(module), name)
    return kind.__new__(kind)
