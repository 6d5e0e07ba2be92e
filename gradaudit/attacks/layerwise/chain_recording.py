"""Finds the chain of layers in the operations that a model performs on a record.

The model is traced as ATen operations, so that it does not matter whether an activation is a
module, a function or a method; whatever does not fit a chain is named in the refusal.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from gradaudit.attacks.layerwise import layer_chain
from gradaudit.attacks.layerwise.layer_chain import Activation, LayerChain, Stage
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.ranks.observe import Convolution

_Make: TypeAlias = Callable[..., Activation]
_KEEPS_ORDER = {
    "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "clone", "alias", "detach",
    "_to_copy", "contiguous", "lift_fresh_copy",
}  # fmt: skip
_ACTIVATIONS: dict[str, _Make] = {
    "tanh": layer_chain.tanh,
    "sigmoid": layer_chain.sigmoid,
    "leaky_relu": lambda negative=0.01: layer_chain.leaky_relu(_rising(negative)),
    "elu": lambda alpha=1.0, *scales: (
        layer_chain.elu(_rising(alpha)) if set(scales) <= {1} else _refused("elu")
    ),
    "softplus": lambda beta=1.0, threshold=20.0: layer_chain.softplus(beta),
}
_REASONS = {
    "relu": "a ReLU has no inverse where it gives zero",
    "hardtanh": "a hard tanh has no inverse where it is cut off",
    "gelu": "a GELU is not monotone and so has no inverse",
    "silu": "a SiLU is not monotone and so has no inverse",
    "add": "it has a skip connection or adds something to what passes",
    "cat": "it has a skip connection",
    "mean": "it has pooling",
}
_FAMILIES = {"pool": "it has pooling", "norm": "it has a normalisation", "drop": "it has dropout"}


def chain_of(model: FunctionalModel, input_shape: tuple[int, ...], attack: str) -> LayerChain:
    """Express a model as a chain of layers.

    Raises:
        NotApplicable: the model is no chain of convolutions and fully connected layers with
            invertible activations.
    """
    try:
        return _read(model, input_shape)
    except _NoChain as reason:
        raise NotApplicable(
            f"{attack} needs a chain of convolutions and fully connected layers with invertible "
            f"activations: {reason}"
        ) from None


class _NoChain(Exception):  # noqa: N818 - a reason, turned into NotApplicable
    """Raised where the model is not a chain of layers; the message says why."""


def _refused(operation: str) -> Activation:
    raise _NoChain(_reason(operation))


def _reason(operation: str) -> str:
    by_family = (text for part, text in _FAMILIES.items() if part in operation)
    return _REASONS.get(operation) or next(by_family, f"it uses {operation}")


@dataclass
class _Reader:
    """Collects the operations on the way from the record to the output."""

    names: Mapping[fx.Node, str]
    parameters: Mapping[str, Tensor]
    passed: list[Activation] = field(default_factory=list)
    entrance: list[Activation] = field(default_factory=list)
    layers: list[tuple[dict[str, Any], list[Activation]]] = field(default_factory=list)

    def meet(self, node: fx.Node, before: fx.Node) -> None:
        operation = _operation(node)
        here = self.layers[-1][1] if self.layers else self.entrance
        if operation in _KEEPS_ORDER:
            return
        if operation in _ACTIVATIONS:
            here.append(_ACTIVATIONS[operation](*node.args[1:]))
        elif operation in ("convolution", "addmm", "mm"):
            convolving = operation == "convolution"
            fields = (self._convolution if convolving else self._fully_connected)(node, before)
            shapes = {"input_shape": _shape(before), "output_shape": _shape(node)}
            self.layers.append((fields | shapes, []))
        else:
            raise _NoChain(_reason(operation))

    def _convolution(self, node: fx.Node, before: fx.Node) -> dict[str, Any]:
        data, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        if data is not before or transposed:
            raise _NoChain("it has a transposed convolution")
        parameters = self._parameters(weight, bias)
        module = _described(parameters["weight"], stride, padding, dilation, groups)
        return {**parameters, "convolution": module}

    def _fully_connected(self, node: fx.Node, before: fx.Node) -> dict[str, Any]:
        bias, data, weight = node.args if len(node.args) == 3 else (None, *node.args)
        if data is not before or node.kwargs:
            raise _NoChain("it multiplies by something else than a weight")
        if not (isinstance(weight, fx.Node) and _operation(weight) == "t"):
            raise _NoChain("a weight is stored transposed")
        if len(_full_shape(before)) != 2 or _full_shape(before)[0] != 1:
            raise _NoChain("a fully connected layer is used at several positions of a record")
        return self._parameters(weight.args[0], bias)

    def _parameters(self, weight: Any, bias: Any) -> dict[str, Any]:
        if weight not in self.names or (bias is not None and bias not in self.names):
            raise _NoChain("a weight is frozen or computed from other parameters")
        name = self.names[weight]
        bias_name = None if bias is None else self.names[bias]
        return {
            "layer": name.rpartition(".")[0] or "(model)",
            "weight_name": name,
            "weight": self.parameters[name],
            "bias_name": bias_name,
            "bias": None if bias_name is None else self.parameters[bias_name],
        }


def _read(model: FunctionalModel, input_shape: tuple[int, ...]) -> LayerChain:
    record = torch.zeros(1, *input_shape, dtype=model.dtype, device=model.device)
    with torch.no_grad():
        traced = make_fx(partial(model.outputs, model.parameters))(record)
    traced.graph.eliminate_dead_code()
    parameters = {id(tensor): name for name, tensor in model.parameters.items()}
    held = {n: id(getattr(traced, str(n.target))) for n in traced.graph.find_nodes(op="get_attr")}
    names = {node: parameters[tensor] for node, tensor in held.items() if tensor in parameters}
    (start,) = traced.graph.find_nodes(op="placeholder")
    before = start
    reader = _Reader(names, model.parameters)
    for node in _path(start):
        reader.meet(node, before)
        before = node
    stages = tuple(
        Stage(**fields, activation=layer_chain.composed(passed)) for fields, passed in reader.layers
    )
    _check(stages)
    return LayerChain(layer_chain.composed(reader.entrance), stages, input_shape)


def _path(start: fx.Node) -> Iterator[fx.Node]:
    """Find the operations from record to output, each the only reader of the one before."""
    node = start
    while True:
        users = list(node.users)
        if len(users) != 1:
            raise _NoChain(
                "something is read twice, by a skip connection or by padding that repeats its input"
                if users
                else "the output does not depend on the record"
            )
        (node,) = users
        if node.op == "output":
            return
        yield node


def _check(stages: tuple[Stage, ...]) -> None:
    if not stages or stages[-1].convolution is not None:
        raise _NoChain("it does not end with a fully connected layer")
    spatial = [stage.convolution is not None for stage in stages]
    if spatial != sorted(spatial, reverse=True):
        raise _NoChain("a fully connected layer comes before a convolution")
    names = [stage.weight_name for stage in stages]
    if len(set(names)) < len(names):
        raise _NoChain("two layers share a weight, so that their gradients add up")


def _rising(slope: float) -> float:
    """Return the slope of an activation where its input is negative."""
    if slope <= 0:
        raise _NoChain("an activation is flat or falls where its input is negative")
    return slope


def _operation(node: fx.Node) -> str:
    """Return an operation's plain name: ``tanh`` of ``aten::tanh``."""
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else str(schema.name).split("::")[1]


def _full_shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _shape(node: fx.Node) -> tuple[int, ...]:
    return _full_shape(node)[1:]


def _described(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Convolution:
    """Make a convolution module of these settings, on the meta device without weights."""
    outputs, inputs, *kernel = weight.shape
    kinds: tuple[Callable[..., Convolution], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    sizes = (tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups)
    kind = kinds[len(kernel) - 1]
    return kind(inputs * groups, outputs, *sizes, bias=False, device="meta")
