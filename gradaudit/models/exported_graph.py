"""Rewrites an exported graph to plain operations in the run's mode, precision and device.

Convolutions and fully connected layers become modules of ``torch.nn``: the graph calls them as
functions of a weight. Where the weight and bias are those of one module of the original's name and
type, and nothing else uses them, the module is made again, so that engines which look for
``nn.Conv2d`` find it, with stride and padding, and can watch it run.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._ops import OpOverload
from torch.fx import Graph, Node

from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError

_CHECKS = re.compile(r"aten::(_assert_\w+|sym_constrain_range\w*)")
_MODE_IS_BAKED_IN = re.compile(
    r"aten::(_?native_batch_norm|cudnn_batch_norm|_?batch_norm_(no|with)_update).*"
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    f"aten::{name}": getattr(F, name)
    for name in (
        *("linear", "conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("batch_norm", "instance_norm", "group_norm", "layer_norm"),
        "scaled_dot_product_attention",
    )
}
"""Operators called through ``torch.nn.functional`` with the same parameters, as engines expect."""
_LAYERS: Mapping[str, type[nn.Module]] = {
    "aten::linear": nn.Linear,
    "aten::conv1d": nn.Conv1d,
    "aten::conv2d": nn.Conv2d,
    "aten::conv3d": nn.Conv3d,
}
_NO_PARAMETERS_THERE = ("cudnn_enable", "cudnn_enabled")


def operator_name(node: Node) -> str:
    """Returns ``aten::NAME`` of an operator; empty for anything else."""
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def named_arguments(node: Node) -> dict[str, Any]:
    """Returns the arguments of an operator's call by the names of its schema."""
    return dict(zip(_names(node), node.args, strict=False)) | node.kwargs


def keep_plain(graph: Graph) -> None:
    """Remove the export's checks of sizes and types, and counters of batches.

    Raises:
        CheckpointError: the graph branches, calls what is no operator, or is decomposed, so that
            it no longer knows training from eval mode.
    """
    for node in list(graph.nodes):
        name = operator_name(node)
        if _MODE_IS_BAKED_IN.fullmatch(name):
            raise CheckpointError(
                f"its graph is decomposed ({printable(name)}) and no longer knows training from "
                "eval mode; save the export before run_decompositions()"
            )
        on_sizes = getattr(node.target, "__module__", "") in ("_operator", "math")
        plain = isinstance(node.target, OpOverload) or on_sizes
        if node.op == "call_module" or (node.op == "call_function" and not plain):
            raise CheckpointError(
                f"its graph runs {printable(str(node.target))}, which is no plain operator; "
                "give the model as path/to/file.py:factory"
            )
        if _CHECKS.fullmatch(name) or _counts(node):
            graph.erase_node(node)


def follow_the_run(graph: Graph, precision: torch.dtype) -> None:
    """Take mode, precision and device from the model when it runs, not from the export.

    Args:
        graph: of a module with the attributes ``training``, ``precision`` and ``place``.
        precision: of the exported weights.
    """
    for node in list(graph.nodes):
        if not operator_name(node):
            continue
        with graph.inserting_before(node):
            names = _names(node)
            node.args = tuple(
                _of_the_run(graph, name, value, precision)
                for name, value in zip(names, node.args, strict=False)
            )
            named = node.kwargs.items()
            node.kwargs = {key: _of_the_run(graph, key, value, precision) for key, value in named}
        if function := _FUNCTIONS.get(operator_name(node)):
            given = named_arguments(node).items()
            node.args = ()
            node.kwargs = {name: value for name, value in given if name not in _NO_PARAMETERS_THERE}
            node.target = function


def _of_the_run(graph: Graph, name: str, value: Any, precision: torch.dtype) -> Any:
    if name in ("training", "train") and isinstance(value, bool):
        return graph.create_node("get_attr", "training")
    if name == "dropout_p":
        training = graph.create_node("get_attr", "training")
        return graph.call_function(operator.mul, (training, value))
    if isinstance(value, torch.dtype) and value == precision:
        return graph.create_node("get_attr", "precision")
    if isinstance(value, torch.device):
        return graph.create_node("get_attr", "place")
    return value


def _names(node: Node) -> Iterator[str]:
    assert isinstance(node.target, OpOverload)
    return (argument.name for argument in node.target._schema.arguments)


def _counts(node: Node) -> bool:
    """Whether a node updates a batch norm's counter, a buffer that changes no output."""
    counter = node.args[0] if node.args else None
    return (
        operator_name(node) == "aten::add_"
        and isinstance(counter, Node)
        and str(counter.target).endswith("num_batches_tracked")
    )


def as_layers(model: nn.Module, graph: Graph) -> None:
    """Replace operators by calls of the layers that they came from.

    What is not exactly such a layer stays as it is: a weight with several uses, a module of another
    type's name, and a convolution behind a padding that is an operation of its own, whose input is
    not the layer's. Modules of the model are replaced, with the same parameters.
    """
    uses = Counter[int]()
    for node in graph.nodes:
        if node.op == "get_attr":
            uses[id(attrgetter(node.target)(model))] += len(node.users)
    for node in list(graph.nodes):
        kind = _LAYERS.get(operator_name(node))
        path = _path(model, node, uses) if kind else ""
        layer = _layer(model.get_submodule(path), kind, named_arguments(node)) if path else None
        if layer is None:
            continue
        model.set_submodule(path, layer)
        with graph.inserting_before(node):
            called = graph.call_module(path, (named_arguments(node)["input"],))
        node.replace_all_uses_with(called)
        graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op != "get_attr")


def _path(model: nn.Module, node: Node, uses: Mapping[int, int]) -> str:
    """Returns the module whose weight and bias only this node uses; empty where there is none."""
    call = named_arguments(node)
    path, _, name = str(call["weight"].target).rpartition(".")
    names = [name] if call.get("bias") is None else [name, str(call["bias"].target)]
    padded = "pad" in operator_name(call["input"])
    if padded or names not in (["weight"], ["weight", f"{path}.bias"]):
        return ""
    held = list(model.get_submodule(path).parameters())
    return path if len(held) == len(names) and all(uses[id(p)] == 1 for p in held) else ""


def _layer(part: nn.Module, kind: Any, call: Mapping[str, Any]) -> nn.Module | None:
    """Returns a layer of the original type with the held parameters; None where it does not fit."""
    if type(part).__name__ != kind.__name__ or list(part.children()) or list(part.buffers()):
        return None
    weight, bias = part.get_parameter("weight"), call.get("bias") is not None
    if kind is nn.Linear:
        layer: nn.Module = nn.Linear(weight.shape[1], weight.shape[0], bias, device="meta")
    else:
        kernel, groups = tuple(weight.shape[2:]), call.get("groups", 1)
        sizes = {name: call[name] for name in ("stride", "padding", "dilation") if name in call}
        options = {name: _each(size, len(kernel)) for name, size in sizes.items()}
        channels = weight.shape[1] * groups, weight.shape[0]
        layer = kind(*channels, kernel, groups=groups, bias=bias, device="meta", **options)
    for name, parameter in part.named_parameters():
        layer.register_parameter(name, parameter)
    return layer.train(part.training)


def _each(size: Any, dimensions: int) -> Any:
    """Returns a size for every dimension, as modules store it; padding may be text."""
    if isinstance(size, str | int):
        return size
    return tuple(size) * dimensions if len(size) == 1 else tuple(size)
