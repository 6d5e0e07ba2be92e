"""Passes over an exported graph: what runs is plain, in the run's mode, precision and device."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload
from torch.fx import Graph, Node

from gradaudit.errors import CheckpointError
from gradaudit.text import printable

_CHECKS = re.compile(r"aten::(_assert_\w+|sym_constrain_range\w*)")
_MODE_IS_BAKED_IN = re.compile(
    r"aten::(_?native_batch_norm|cudnn_batch_norm|_?batch_norm_(no|with)_update).*"
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "aten::linear": F.linear,
    "aten::conv1d": F.conv1d,
    "aten::conv2d": F.conv2d,
    "aten::conv3d": F.conv3d,
    "aten::conv_transpose1d": F.conv_transpose1d,
    "aten::conv_transpose2d": F.conv_transpose2d,
    "aten::conv_transpose3d": F.conv_transpose3d,
    "aten::batch_norm": F.batch_norm,
    "aten::instance_norm": F.instance_norm,
    "aten::group_norm": F.group_norm,
    "aten::layer_norm": F.layer_norm,
    "aten::scaled_dot_product_attention": F.scaled_dot_product_attention,
}
"""Operators called through ``torch.nn.functional`` (same parameters), where engines look."""
_NO_PARAMETERS_THERE = ("cudnn_enable", "cudnn_enabled")


def operator_name(node: Node) -> str:
    """``aten::NAME`` of an operator, else nothing."""
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def named_arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operator's call by the names of its schema."""
    return dict(zip(_names(node), node.args, strict=False)) | node.kwargs


def keep_plain(graph: Graph) -> None:
    """Leave out checks of sizes and types, which are the export's, and counters of batches.

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
        if node.op == "call_module" or (node.op == "call_function" and not _is_plain(node)):
            raise CheckpointError(
                f"its graph runs {printable(str(node.target))}, which is no plain operator; "
                "give the model as path/to/file.py:factory"
            )
        if _CHECKS.fullmatch(name) or _counts(node):
            graph.erase_node(node)


def follow_the_run(graph: Graph, precision: torch.dtype) -> None:
    """Let mode, precision and device be those of the model when it runs, not of the export.

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
            node.kwargs = {
                name: _of_the_run(graph, name, value, precision)
                for name, value in node.kwargs.items()
            }
        _call_function(node)


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


def _call_function(node: Node) -> None:
    function = _FUNCTIONS.get(operator_name(node))
    if function is not None:
        given = named_arguments(node)
        node.args = ()
        node.kwargs = {
            key: value for key, value in given.items() if key not in _NO_PARAMETERS_THERE
        }
        node.target = function


def _names(node: Node) -> Iterator[str]:
    assert isinstance(node.target, OpOverload)
    return (argument.name for argument in node.target._schema.arguments)


def _is_plain(node: Node) -> bool:
    """Whether it is an operator, or arithmetic on sizes."""
    module = getattr(node.target, "__module__", "")
    return isinstance(node.target, OpOverload) or module in ("_operator", "math")


def _counts(node: Node) -> bool:
    """Whether it adds to a batch norm's counter, which is a buffer and changes no output."""
    counter = node.args[0] if node.args else None
    return (
        operator_name(node) == "aten::add_"
        and isinstance(counter, Node)
        and str(counter.target).endswith("num_batches_tracked")
    )
