"""Convolutions and fully connected layers of an exported graph as modules of ``torch.nn``.

The graph calls them as functions of a weight. Where the weight and bias are those of one module of
the original's name and type, and nothing else uses them, the module is made again, so that engines
which look for ``nn.Conv2d`` find it, with stride and padding, and can watch it run.
"""

from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from gradaudit.models.exported.graph import named_arguments, operator_name

_LAYERS: Mapping[str, type[nn.Module]] = {
    "aten::linear": nn.Linear,
    "aten::conv1d": nn.Conv1d,
    "aten::conv2d": nn.Conv2d,
    "aten::conv3d": nn.Conv3d,
}


def as_layers(model: nn.Module, graph: Graph) -> None:
    """Call a layer wherever one was made in the model.

    What is not exactly such a layer stays as it is: a weight with several uses, a module of another
    type's name, and a convolution behind a padding that is an operation of its own, whose input is
    not the layer's.

    Args:
        model: whose modules hold the parameters; some are replaced, with the same parameters.
        graph: that uses them.
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
    """The module whose weight and bias are used, and here alone; else nothing."""
    call = named_arguments(node)
    path, _, name = str(call["weight"].target).rpartition(".")
    names = [name] if call.get("bias") is None else [name, str(call["bias"].target)]
    if names not in (["weight"], ["weight", f"{path}.bias"]) or _is_padding(call["input"]):
        return ""
    own = dict(model.get_submodule(path).named_parameters())
    return path if len(own) == len(names) and all(uses[id(p)] == 1 for p in own.values()) else ""


def _is_padding(node: Node) -> bool:
    return "pad" in operator_name(node)


def _layer(part: nn.Module, kind: Any, call: Mapping[str, Any]) -> nn.Module | None:
    """A layer of the original's type with the held parameters, or None where it does not fit."""
    if type(part).__name__ != kind.__name__ or list(part.children()) or list(part.buffers()):
        return None
    weight, bias = part.get_parameter("weight"), call.get("bias") is not None
    if kind is nn.Linear:
        layer: nn.Module = nn.Linear(weight.shape[1], weight.shape[0], bias, device="meta")
    else:
        sizes = {name: call[name] for name in ("stride", "padding", "dilation") if name in call}
        groups = call.get("groups", 1)
        layer = kind(
            weight.shape[1] * groups,
            weight.shape[0],
            tuple(weight.shape[2:]),
            groups=groups,
            bias=bias,
            device="meta",
            **{name: _each(size, weight.dim() - 2) for name, size in sizes.items()},
        )
    for name, parameter in part.named_parameters():
        layer.register_parameter(name, parameter)
    return layer.train(part.training)


def _each(size: Any, dimensions: int) -> Any:
    """A size for every dimension, as a module holds it; padding may be text."""
    if isinstance(size, str | int):
        return size
    return tuple(size) * dimensions if len(size) == 1 else tuple(size)
