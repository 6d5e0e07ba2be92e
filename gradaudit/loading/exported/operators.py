"""Which operators of an exported graph may run, and how."""

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from gradaudit.errors import CheckpointError
from gradaudit.text import printable

_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")

_ARITHMETIC = {
    *("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow"),
    *("eq", "ne", "lt", "le", "gt", "ge", "getitem"),
}
"""Of Python's ``operator``, on sizes."""

_MODES = {
    *("approximate", "equation", "indexing", "mode", "norm", "pad_mode", "padding"),
    *("reduce", "rounding_mode"),
}
"""Parameters for which an operator may take text; others are file names and the like."""

_CHECKS = {"_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range"}
_INTERNAL_BUT_FINE = {"_weight_norm", "_unsafe_view"}
_MODE_IS_BAKED_IN = re.compile(r"_?(native_batch_norm|cudnn_batch_norm|batch_norm_no_update).*")

_FUNCTIONAL = {
    **{f"{name}.default": name for name in ("linear", "conv1d", "conv2d", "conv3d")},
    **{f"{name}.padding": name for name in ("conv1d", "conv2d", "conv3d")},
    "conv_transpose1d.default": "conv_transpose1d",
    "conv_transpose2d.input": "conv_transpose2d",
    "conv_transpose3d.input": "conv_transpose3d",
}
"""Operators called through ``torch.nn.functional`` (same parameters), where engines look for
layers."""


def is_check(target: str) -> bool:
    """Whether the operator only asserts something about sizes or types."""
    aten = _ATEN.fullmatch(target)
    return aten is not None and aten[1] in _CHECKS


def is_in_place(target: str) -> bool:
    """Whether the operator changes its first argument."""
    aten = _ATEN.fullmatch(target)
    return aten is not None and _overload(aten)._schema.is_mutable


@cache
def resolve(target: str) -> Callable[..., Any]:
    """What runs the operator.

    Raises:
        CheckpointError: it is not one that may run, or it ties the graph to one mode.
    """
    aten = _ATEN.fullmatch(target)
    if aten is None:
        module, _, name = target.rpartition(".")
        if module == "_operator" and name in _ARITHMETIC:
            return getattr(operator, name)  # type: ignore[no-any-return]
        raise CheckpointError(
            f"its graph runs {printable(target)}, which is no plain ATen operator; "
            "give the model as path/to/file.py:factory"
        )
    if _MODE_IS_BAKED_IN.fullmatch(aten[1]):
        raise CheckpointError(
            f"its graph is decomposed ({aten[1]}) and no longer knows training from eval mode; "
            "save the export before run_decompositions()"
        )
    return _call(aten, _overload(aten))


def _overload(aten: re.Match[str]) -> OpOverload:
    packet = getattr(torch.ops.aten, aten[1], None)
    overload = getattr(packet, aten[2], None)
    if not isinstance(overload, OpOverload) or not _may_run(aten[1], overload):
        raise CheckpointError(
            f"its graph runs the operator {aten[0]}, which is unknown or not allowed; "
            "give the model as path/to/file.py:factory"
        )
    return overload


def _may_run(name: str, overload: OpOverload) -> bool:
    internal = name.startswith("_") and torch.Tag.core not in overload.tags
    texts = {a.name for a in overload._schema.arguments if "str" in str(a.type)}
    return texts <= _MODES and (not internal or name in _INTERNAL_BUT_FINE)


def _call(aten: re.Match[str], overload: OpOverload) -> Callable[..., Any]:
    name = f"{aten[1]}.{aten[2]}"
    if name == "batch_norm.default":
        return _batch_norm
    if name in _FUNCTIONAL:
        function = _FUNCTIONAL[name]
        return lambda *args, **kwargs: getattr(F, function)(*args, **kwargs)
    return overload


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
