"""Seeing what comes in at linear maps while a model runs, and stopping it once that is seen."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.gradients.capture import FunctionMode, attention_in_parts, by_name


class LastMapReached(Exception):  # noqa: N818 - it is no error
    """The last map that was waited for is reached."""


class TableLookups(FunctionMode):
    """Keeps the tables that a model reads and the rows that it reads them at.

    Attributes:
        tables: each that is read, and at which rows, read by read.
    """

    def __init__(self) -> None:
        """Start with no table read."""
        super().__init__()
        self.tables: list[tuple[Tensor, Tensor]] = []

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Let every call through, and look at what reads a table."""
        if function is F.embedding:
            call = by_name(_ARGUMENTS[function], args, kwargs)
            self.tables.append((call["weight"], call["input"]))
        return function(*args, **kwargs)


class InputCapture(FunctionMode):
    """Keeps what comes in at linear maps, whose weights it knows by their identity.

    Attributes:
        seen: by the weight's name, (…, width), in the order of the first use.
        axes: which dimension of the weight faces what comes in.
        looked_up: what tables are read at, by their names.
    """

    def __init__(self, weights: Mapping[str, Tensor], last: str | None = None) -> None:
        """Watch these weights.

        Args:
            weights: by name.
            last: the one at which the model is stopped, by :class:`LastMapReached`.
        """
        super().__init__()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self._last = last
        self.seen: dict[str, Tensor] = {}
        self.axes: dict[str, int] = {}
        self.looked_up: dict[str, Tensor] = {}

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Let every call through, and look at those that apply a watched weight."""
        if function is F.multi_head_attention_forward:
            with self:
                return attention_in_parts(*args, **kwargs)
        if function in _ARGUMENTS:
            call = by_name(_ARGUMENTS[function], args, kwargs)
            name = self._names.get(id(call.get("weight")))
            if name is not None and function is F.embedding:
                self.looked_up.setdefault(name, call["input"])
            elif name is not None:
                self.seen.setdefault(name, call["input"])
                self.axes.setdefault(name, 1 if function is F.linear else 0)
                if name == self._last:
                    raise LastMapReached
        return function(*args, **kwargs)


_ARGUMENTS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    torch.matmul: ("input", "weight"),
    F.embedding: ("input", "weight"),
}
