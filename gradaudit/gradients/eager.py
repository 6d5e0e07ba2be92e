"""Keeps torch's compiler unloaded where nothing is compiled: loading it takes as long as torch.

Torch 2.13 loads ``torch._dynamo`` (with sympy and the inductor) in three places that need none of
it: each backward pass of ``torch.func`` switches compiled autograd off for its time; functions that
are kept out of the compiler ask it to pass them by (zero tangents in forward mode get their shapes
from such); and so does a mode, unless it says that it need not be. What is not loaded compiles
nothing, so all of them do as they would. As soon as anything loads the compiler, torch is as it
was; where another release of torch does otherwise, it does so as ever.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import getclosurevars
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

P = ParamSpec("P")
R = TypeVar("R")
_COMPILER = "torch._dynamo"
_FORMULAS = "torch._decomp.decompositions_for_jvp"
_PASSING_BY = "__dynamo_disable"
"""Attribute under which torch keeps a function that the compiler passes by."""
_SWITCHED_OFF = SimpleNamespace(_disable=nullcontext)


class _Unloaded(ModuleType):
    """Stands for the compiler until it is loaded, which any use of it does but one."""

    def __getattr__(self, name: str) -> Any:
        if name == "compiled_autograd" and _COMPILER not in sys.modules:
            return _SWITCHED_OFF
        return getattr(importlib.import_module(_COMPILER), name)


def postpone_compiler() -> None:
    """Let nothing but its use load the compiler; importing it puts it in its place."""
    if _COMPILER in sys.modules:
        return
    vars(torch).setdefault("_dynamo", _Unloaded(_COMPILER))
    for asking, function in _kept_out():
        vars(function).setdefault(_PASSING_BY, _unasked(asking, function))


def _kept_out() -> Iterator[tuple[Callable[..., Any], FunctionType]]:
    """Functions that ask the compiler to pass by another, and that other."""
    example: Any = torch._compile._disable_dynamo(postpone_compiler)
    for asking in gc.get_referrers(example.__code__):
        if isinstance(asking, FunctionType):
            function = getclosurevars(asking).nonlocals.get("fn")
            if isinstance(function, FunctionType):
                yield asking, function


def _unasked(asking: Callable[..., Any], function: FunctionType) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*args, **kwargs)
        vars(function).pop(_PASSING_BY, None)
        return asking(*args, **kwargs)

    return call


def forward_mode(transformed: Callable[P, R]) -> Callable[P, R]:
    """A function that differentiates in forward mode, with formulas of rare operations left out.

    Torch compiles them before the first tangent. Here they are where an operation has no other.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _formulas_taken_as_there():
                return transformed(*args, **kwargs)
        except NotImplementedError:
            if _FORMULAS in sys.modules:
                raise
            importlib.import_module(_FORMULAS)
            return transformed(*args, **kwargs)

    return call


jvp: Callable[..., Any] = forward_mode(torch.func.jvp)


@contextmanager
def _formulas_taken_as_there() -> Iterator[None]:
    package, _, name = _FORMULAS.rpartition(".")
    there = vars(sys.modules[package])
    stand_in = there.setdefault(name, object())
    try:
        yield
    finally:
        if _FORMULAS not in sys.modules and there.get(name) is stand_in:
            del there[name]


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is never compiled, and need not be passed by."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
