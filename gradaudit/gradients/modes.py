"""Modes that see what torch is asked to do as long as they are entered, and may do it otherwise.

A function mode sees the functions that Python code calls, inside any ``torch.func`` transform. An
operator mode sees what is carried out below transforms and automatic differentiation, in backward
passes too. A subclass says in ``call`` alone what becomes of a call.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class FunctionMode(TorchFunctionMode):
    """Sees every call of a function of torch, but none that it makes itself."""

    @abstractmethod
    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Give the result of a call, whose keyword arguments are a dictionary."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Hand the call on."""
        return self.call(func, args, kwargs or {})


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator on tensors, but none that it carries out itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @abstractmethod
    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Give the result of an operator, whose keyword arguments are a dictionary."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Hand the operator on."""
        return self.call(func, args, kwargs or {})


def by_name(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the function's names of its parameters, which are in order."""
    return dict(zip(names, args, strict=False)) | kwargs
