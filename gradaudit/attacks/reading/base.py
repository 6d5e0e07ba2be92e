"""Base class of readings of an update, in units of work that can be done separately."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from pydantic import JsonValue
from torch import Tensor

from gradaudit.sharing.named import NamedUpdate


@dataclass(frozen=True)
class ReadingValue:
    """A number computed from an update, or the reason why there is none.

    Attributes:
        metric: what it says.
        layer: of which layer; None of the whole update.
        value: None where nothing can be said.
        reason: why not.
        details: what else there is to know.
    """

    metric: str
    layer: str | None
    value: float | None
    reason: str = ""
    details: Mapping[str, JsonValue] = field(default_factory=dict)


class ReadingUnit(NamedTuple):
    """A unit of work of a reading, which can be computed separately.

    Attributes:
        metrics: names of the metrics whose values it reads.
        layer: of which layer; None of the whole update.
        elements: how many it reads when nothing is cut.
        look: does it, with a share of the layer's rows: 1 is all.
        cut: whether less than all rows say something.
    """

    metrics: tuple[str, ...]
    layer: str | None
    elements: int
    look: Callable[[float], Iterator[ReadingValue]]
    cut: bool = False


def untold(metric: str, layer: str | None, why: str) -> ReadingUnit:
    """Make a unit whose only row gives the reason why the metric has no value."""
    return ReadingUnit(
        (metric,), layer, 0, lambda _: iter([ReadingValue(metric, layer, None, why)])
    )


class Reading(ABC):
    """A measurement of an update that needs neither model nor data."""

    name: ClassVar[str]
    summary: ClassVar[str]
    priority: ClassVar[int]
    """Its turn where time is short: the lowest first."""

    @abstractmethod
    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """The reading's units; each layer has one where the metric is measured by layer."""


@dataclass(frozen=True)
class LinearUpdate:
    """A fully connected layer of an update.

    Attributes:
        weight: the name of its weight.
        bias: of its bias.
        turned: whether the weight's second dimension counts outputs.
    """

    weight: str
    bias: str
    turned: bool

    def changes(self, update: NamedUpdate) -> tuple[Tensor, Tensor]:
        """The update of the weight, (outputs, inputs), and of the bias, (outputs,)."""
        weight = update.change(self.weight)
        return weight.T if self.turned else weight, update.change(self.bias)


def linear_of(update: NamedUpdate, names: tuple[str, ...]) -> LinearUpdate | None:
    """The fully connected layer that a layer's parameters make; None where they make none.

    A weight of two dimensions and a bias as long as one of them; of two equal ones the first
    counts the outputs, as in ``torch.nn.LinearUpdate``.
    """
    ends = {name.rpartition(".")[2]: name for name in names}
    if not {"weight", "bias"} <= ends.keys():
        return None
    weight, bias = update.after[ends["weight"]], update.after[ends["bias"]]
    if weight.dim() != 2 or bias.dim() != 1 or len(bias) not in weight.shape:
        return None
    return LinearUpdate(ends["weight"], ends["bias"], turned=len(bias) != weight.shape[0])


def head_of(update: NamedUpdate) -> tuple[str, LinearUpdate] | None:
    """The last fully connected layer, in the order in which arrays came."""
    linears = [(layer, linear_of(update, names)) for layer, names in update.layers().items()]
    return next(((layer, linear) for layer, linear in reversed(linears) if linear), None)


def size_of(update: NamedUpdate, names: tuple[str, ...]) -> int:
    """Count the elements of some parameters."""
    return sum(math.prod(update.after[name].shape) for name in names)
