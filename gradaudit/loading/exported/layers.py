"""Convolutions and fully connected layers of an exported graph as modules of ``torch.nn``.

The graph calls them as functions of a weight. Where the weight and bias are those of one module of
the original's name and type, and nothing else uses them, the module is made again, so that engines
which look for ``nn.Conv2d`` find it, with stride and padding, and can watch it run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradaudit.loading.exported.graph import Step, Value

MODEL = Value("%model")

_ATEN = "torch.ops.aten."
_CONVOLUTIONS: Mapping[str, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
}
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True)
class Called:
    """A call of a module, in place of a step.

    Attributes:
        path: of the module.
        argument: what it is called on.
        outputs: the name of what it returns.
    """

    path: str
    argument: Value
    outputs: str
    writes_to: str = ""

    def __call__(self, values: dict[str, Any]) -> None:
        """Run on ``values`` and add the result to it."""
        module = values[MODEL.name].get_submodule(self.path)
        values[self.outputs] = module(values[self.argument.name])


def as_layers(
    model: nn.Module, steps: Iterable[Step], sources: Mapping[str, str]
) -> list[Step | Called]:
    """The steps, with a call of a layer wherever one was made in the model.

    What is not exactly such a layer stays as it is: a weight with several uses, a module of another
    type's name, and a convolution behind a padding that is an operation of its own, whose input is
    not the layer's.

    Args:
        model: whose modules hold the parameters; some are replaced, with the same parameters.
        steps: of the graph.
        sources: parameters' names, by those of the graph's values.
    """
    steps = list(steps)
    uses = Counter(name for step in steps for name in _names([step.args, step.kwargs]))
    padded = {str(step.outputs) for step in steps if "pad" in _operator(step)}
    found: list[Step | Called] = []
    for step in steps:
        call = _call(step)
        path = _path(call, sources, uses) if call and isinstance(step.outputs, str) else None
        layer = _layer(model, path, step, call) if path is not None and call else None
        if layer is None or path is None or call is None or call["input"].name in padded:
            found.append(step)
            continue
        _put(model, path, layer)
        found.append(Called(path, call["input"], str(step.outputs)))
    return found


def _operator(step: Step) -> str:
    return step.target.removeprefix(_ATEN).partition(".")[0]


def _names(argument: Any) -> list[str]:
    if isinstance(argument, Value):
        return [argument.name]
    if isinstance(argument, dict):
        argument = list(argument.values())
    return (
        [name for part in argument for name in _names(part)] if isinstance(argument, list) else []
    )


def _call(step: Step) -> dict[str, Any] | None:
    """The arguments by name of what may be a layer."""
    operator = _operator(step)
    if operator != "linear" and operator not in _CONVOLUTIONS:
        return None
    call = _DEFAULTS | dict(zip(_ARGUMENTS, step.args, strict=False)) | step.kwargs
    values = call.get("input"), call.get("weight"), call["bias"] or call.get("weight")
    plain = not _names([call[name] for name in _ARGUMENTS[3:]])
    return call if plain and all(isinstance(value, Value) for value in values) else None


def _path(
    call: Mapping[str, Any], sources: Mapping[str, str], uses: Mapping[str, int]
) -> str | None:
    """The module whose weight and bias are used, if here alone."""
    path, _, weight = sources.get(call["weight"].name, "").rpartition(".")
    held = {call["weight"].name} | ({call["bias"].name} if call["bias"] else set())
    bias = sources.get(call["bias"].name) if call["bias"] else None
    fits = weight == "weight" and bias in (None, f"{path}.bias")
    once = all(uses[name] == 1 for name in held)
    return path if path and fits and once and bool(bias) == bool(call["bias"]) else None


def _layer(model: nn.Module, path: str, step: Step, call: Mapping[str, Any]) -> nn.Module | None:
    """A layer of the original's type with the held parameters, or None where it does not fit."""
    part = model.get_submodule(path)
    parameters = dict(part.named_parameters())
    names = {"weight", "bias"} if call["bias"] else {"weight"}
    if set(parameters) != names or any(True for _ in part.children()) or list(part.buffers()):
        return None
    operator = _operator(step)
    kind = nn.Linear if operator == "linear" else _CONVOLUTIONS[operator]
    if type(part).__name__ != kind.__name__:
        return None
    layer = _made(kind, parameters["weight"], call)
    if layer is None or any(layer.get_parameter(n).shape != p.shape for n, p in parameters.items()):
        return None
    for name, parameter in parameters.items():
        layer.register_parameter(name, parameter)
    return layer.train(part.training)


def _made(kind: type[nn.Module], weight: torch.Tensor, call: Mapping[str, Any]) -> nn.Module | None:
    bias = call["bias"] is not None
    if kind is nn.Linear:
        return nn.Linear(weight.shape[1], weight.shape[0], bias, device="meta")
    sizes = {name: call[name] for name in ("stride", "padding", "dilation")}
    dimensions = weight.dim() - 2
    sizes = {name: _each(size, dimensions) for name, size in sizes.items()}
    try:
        return kind(
            weight.shape[1] * call["groups"],
            weight.shape[0],
            tuple(weight.shape[2:]),
            groups=call["groups"],
            bias=bias,
            device="meta",
            **sizes,
        )
    except (ValueError, RuntimeError, TypeError):  # numbers that no convolution has
        return None


def _each(size: Any, dimensions: int) -> Any:
    if isinstance(size, list):
        return tuple(size * dimensions if len(size) == 1 else size)
    return size


def _put(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    holder = model.get_submodule(parent) if parent else model
    holder._modules[name] = layer
