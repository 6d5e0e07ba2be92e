"""Recorded operations without those that repeat, copy nothing or are constant."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

_aten = torch.ops.aten


class TensorLayout(NamedTuple):
    """How a tensor lies in its memory, by which every view of it is known."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorLayout | None":
        """None where it is not of plain numbers in one place."""
        if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_neg():
            return None
        offset = int(tensor.storage_offset())
        return cls(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype)


def shortened(graph: fx.Graph, constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """A graph as a module; it is shortened in place, unless it changes any tensor.

    Args:
        graph: whose nodes have the ``TensorLayout`` of their tensor as ``layout`` in ``meta``.
        constants: by the names of the nodes that get them.
    """
    known = dict(constants)
    if not any(map(_changes, graph.nodes)):
        _look_at_once(graph)
        _do_once(graph)
        _fold(graph, known)
        graph.eliminate_dead_code()
    return fx.GraphModule(known, graph)


def _changes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _look_at_once(graph: fx.Graph) -> None:
    """Make views of views, and copies that lie as what they copy, views of what was computed."""
    computed: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        seen = computed.get(node.args[0], node.args[0]) if _shows(node) else node
        layout, of_seen = node.meta.get("layout"), seen.meta.get("layout")
        if seen is node or seen.op == "get_attr" or None in (layout, of_seen):
            continue
        if layout == of_seen:
            node.replace_all_uses_with(seen)
            graph.erase_node(node)
        elif node.target is not _aten.clone.default and layout.dtype == of_seen.dtype:
            node.target, node.kwargs = _aten.as_strided.default, {}
            node.args = (seen, list(layout.shape), list(layout.stride), layout.offset)
            computed[node] = seen


def _shows(node: fx.Node) -> bool:
    """Whether it gives the numbers of its first argument, or copies them."""
    if node.target in (_aten.clone.default, _aten._unsafe_view.default):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _do_once(graph: fx.Graph) -> None:
    done: dict[tuple[Any, str, str], fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            first = done.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _fold(graph: fx.Graph, constants: dict[str, Tensor]) -> None:
    """Compute once what follows from constants alone."""
    known: dict[fx.Node, Any] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            known[node] = constants[node.target]
        elif node.op == "call_function" and all(one in known for one in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = result = node.target(*args, **kwargs)
            if isinstance(result, Tensor):
                constants[f"known_{node.name}"] = result
                with graph.inserting_before(node):
                    known[got := graph.get_attr(f"known_{node.name}")] = result
                node.replace_all_uses_with(got)
