"""The nodes of an exported graph as steps that can be run, without evaluating any text in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradaudit.errors import CheckpointError
from gradaudit.loading.exported.archive import DTYPES
from gradaudit.loading.exported.operators import is_check, is_in_place, resolve

_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_PLAIN = {
    *("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_int_lists"),
    *("as_float", "as_floats", "as_float_lists"),
}
_POSITIONAL = 1


@dataclass(frozen=True)
class Value:
    """A value known when the graph runs: of another step, or one of the three below."""

    name: str


DTYPE = Value("%dtype")
"""The model's precision where the archive has its own: a model in float64 stays in float64."""
DEVICE = Value("%device")
TRAINING = Value("%training")


@dataclass(frozen=True)
class OnlyInTraining:
    """A dropout probability."""

    value: Any


@dataclass(frozen=True)
class Step:
    """One operator call.

    Attributes:
        target: the operator's name, one that may run.
        args: positional arguments; values, lists and plain numbers.
        kwargs: keyword arguments.
        outputs: the name, or nested list of names, of what it returns (None: dropped).
        writes_to: the name of the value that it changes in place; empty without one.
    """

    target: str
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: Any
    writes_to: str

    def __call__(self, values: dict[str, Any]) -> None:
        """Run on ``values`` and add the results to it."""
        args, kwargs = fill([self.args, self.kwargs], values)
        _assign(self.outputs, resolve(self.target)(*args, **kwargs), values)


def steps_of(graph: Mapping[str, Any], precision: torch.dtype | None) -> list[Step]:
    """The graph's nodes in order, those that only check sizes left out.

    Args:
        graph: a graph as the archive's JSON has it.
        precision: the floating dtype of the archive's weights, if it has one.

    Raises:
        CheckpointError: an operator may not run, or an argument is no plain data.
    """
    return [_step(node, precision) for node in graph["nodes"] if not is_check(node["target"])]


def _step(node: Mapping[str, Any], precision: torch.dtype | None) -> Step:
    target = node["target"]
    resolve(target)
    args, kwargs = [], {}
    for given in node["inputs"]:
        argument = _by_mode(given["name"], decode(given["arg"], precision))
        if given["kind"] == _POSITIONAL:
            args.append(argument)
        else:
            kwargs[given["name"]] = argument
    names = [_names(output) for output in node["outputs"]]
    outputs = names[0] if len(names) == 1 else names
    return Step(target, args, kwargs, outputs, args[0].name if is_in_place(target) else "")


def _by_mode(parameter: str, argument: Any) -> Any:
    if parameter in ("training", "train") and isinstance(argument, bool):
        return TRAINING
    return OnlyInTraining(argument) if parameter == "dropout_p" else argument


def decode(argument: Mapping[str, Any], precision: torch.dtype | None) -> Any:
    """An argument of the archive's JSON as plain data with :class:`Value` where it refers."""
    ((kind, content),) = argument.items()
    if kind == "as_none":
        return None
    if kind in _PLAIN:
        return _numbers(content) if "float" in kind else content
    if kind in ("as_tensor", "as_name"):
        return Value(content["name"] if kind == "as_tensor" else content)
    if kind in ("as_tensors", "as_nested_tensors"):
        return _tensors(content)
    if kind in ("as_sym_int", "as_sym_bool", "as_sym_float", "as_optional_tensor"):
        return decode(content, precision)
    if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats", "as_optional_tensors"):
        return [decode(part, precision) for part in content]
    return _tensor_option(kind, content, precision)


def _tensor_option(kind: str, content: Any, precision: torch.dtype | None) -> Any:
    if kind == "as_scalar_type":
        return DTYPE if DTYPES[content] == precision else DTYPES[content]
    if kind == "as_device":
        return DEVICE
    if kind == "as_memory_format":
        return _MEMORY_FORMATS[content]
    if kind == "as_layout":
        return torch.strided
    raise CheckpointError(
        f"its graph has an argument of kind {kind.removeprefix('as_')}, which cannot be run; "
        "give the model as path/to/file.py:factory"
    )


def _tensors(content: list[Any]) -> list[Any]:
    return [_tensors(t) if isinstance(t, list) else Value(t["name"]) for t in content]


def _numbers(content: Any) -> Any:
    """Floats; JSON has infinities and NaN as text."""
    return [_numbers(part) for part in content] if isinstance(content, list) else float(content)


def _names(output: Mapping[str, Any]) -> Any:
    value = decode(output, None)
    if isinstance(value, list):
        return [part.name if isinstance(part, Value) else None for part in value]
    return value.name if isinstance(value, Value) else None


def fill(argument: Any, values: Mapping[str, Any]) -> Any:
    """An argument with every :class:`Value` replaced by what it stands for."""
    if isinstance(argument, Value):
        return values[argument.name]
    if isinstance(argument, OnlyInTraining):
        return fill(argument.value, values) if values[TRAINING.name] else 0.0
    if isinstance(argument, list):
        return [fill(part, values) for part in argument]
    if isinstance(argument, dict):
        return {key: fill(part, values) for key, part in argument.items()}
    return argument


def _assign(names: Any, results: Any, values: dict[str, Any]) -> None:
    if isinstance(names, list):
        for name, result in zip(names, results, strict=True):
            _assign(name, result, values)
    elif names is not None:
        values[names] = results
