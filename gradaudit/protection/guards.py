"""Guards of a layer's update before it is shared, and protections of a whole model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

Kind = Literal["open", "hide", "noise", "prune"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, order=True)
class Guard:
    """A guard of one layer's update: share, hide, blur or prune.

    Attributes:
        kind: ``open`` leaves it as it is, and ``hide`` never shares it.
        amount: deviation of ``noise``, share of the elements that ``prune`` removes; else 0.
    """

    kind: Kind = "open"
    amount: float = 0.0

    def covers(self, other: "Guard") -> bool:
        """Whether it gives away no more than another one, whatever the layer.

        Noise and pruning are not compared with each other.
        """
        if self.kind == "hide" or other.kind == "open":
            return True
        return self.kind == other.kind and self.amount >= other.amount


OPEN, HIDE = Guard(), Guard("hide")


@dataclass(frozen=True)
class Protection:
    """A guard for each layer, in the layers' order."""

    layers: tuple[str, ...]
    guards: tuple[Guard, ...]

    @classmethod
    def uniform(cls, layers: Sequence[str], guard: Guard = OPEN) -> Self:
        """The same for all."""
        return cls(tuple(layers), (guard,) * len(layers))

    def __iter__(self) -> Iterator[tuple[str, Guard]]:
        return zip(self.layers, self.guards, strict=True)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The layers that are never shared."""
        return tuple(layer for layer, guard in self if guard == HIDE)

    @property
    def shared(self) -> tuple[str, ...]:
        """The layers that are, however blurred."""
        return tuple(layer for layer, guard in self if guard != HIDE)

    def hiding(self, layers: Iterable[str]) -> Self:
        """The same with these layers hidden too."""
        more = set(layers)
        guards = (HIDE if layer in more else guard for layer, guard in self)
        return replace(self, guards=tuple(guards))

    def with_guard(self, layer: str, guard: Guard) -> Self:
        """The same with another guard of one layer."""
        guards = (guard if name == layer else old for name, old in self)
        return replace(self, guards=tuple(guards))

    def covers(self, other: Self) -> bool:
        """Whether every layer gives away no more than in another protection."""
        return all(a.covers(b) for a, b in zip(self.guards, other.guards, strict=True))
