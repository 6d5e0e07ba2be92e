"""Principal components of many layers' gradients, fitted within a memory budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gradaudit.models.target import Layer
from gradaudit.sharing.principal import (
    Components,
    KernelProjection,
    Projection,
    gram_of,
    narrow_projection,
)
from gradaudit.sharing.rows import Factors, GradientRows
from gradaudit.sharing.stream import Stream, together
from gradaudit.sharing.visibility import Visibility

_NARROWEST = 256
"""Elements of a block, at least."""


class Project(Protocol):
    """Projects rows."""

    @property
    def bytes(self) -> int:
        """That it takes."""

    def __call__(self, rows: GradientRows) -> Tensor:
        """(rows, components) of some rows."""


@dataclass
class Fitted:
    """Projections that were fitted once and may be used again.

    Attributes:
        memory: bytes that may be kept.
    """

    memory: int
    _key: bytes = b""
    _known: dict[str, Project] = field(default_factory=dict)

    def of(
        self,
        layers: Sequence[Layer],
        key: bytes,
        fit: Callable[[Sequence[Layer]], dict[str, Project]],
    ) -> dict[str, Project]:
        """The projections of these layers; those that are not known for this key are fitted."""
        if key != self._key:
            self._key, self._known = key, {}
        missing = [layer for layer in layers if layer.name not in self._known]
        found = self._known | (fit(missing) if missing else {})
        if sum(projection.bytes for projection in found.values()) <= self.memory:
            self._known = found
        return {layer.name: found[layer.name] for layer in layers}


@dataclass
class _Part:
    """A block of one layer's elements, whose rows are held to be multiplied with each other."""

    layer: Layer
    visibility: Visibility
    block: slice
    bytes: int
    factors: list[Factors] = field(default_factory=list)
    held: Tensor | None = None

    @property
    def whole(self) -> bool:
        return self.block == slice(0, self.visibility.elements)

    def put(self, where: slice, rows: GradientRows, count: int) -> None:
        if isinstance(rows, Factors) and _whole_and_wide(self.visibility, count):
            self.factors.append(rows)
            return
        seen = self.visibility.seen(rows)[:, self.block]
        if self.held is None:
            self.held = seen.new_empty(count, seen.shape[1])
        self.held[where] = seen

    def gram(self) -> Tensor:
        """Inner products of all rows that were put, (rows, rows)."""
        if self.held is not None:
            return gram_of(self.held)
        joined = Factors.joined(self.factors)
        self.factors = [joined]
        return joined.gram(joined)


def fit_components(
    stream: Stream, layers: Sequence[Layer], visibilities: Mapping[str, Visibility], memory: int
) -> dict[str, Project]:
    """What projects rows of each of these layers onto the principal components of a stream.

    Layers whose rows fit in ``memory`` together take one pass through the stream; a layer that
    does not fit alone takes one for every block of its elements, and one more.

    Args:
        stream: the rows to fit; at least two.
        layers: with the reduction ``pca``.
        visibilities: by layer.
        memory: bytes of rows that may be held.
    """
    grams: dict[str, Tensor] = {}
    projections: dict[str, Project] = {}
    every = _parts(stream, layers, visibilities, memory)
    for parts in together(every, lambda part: part.bytes, memory):
        distinct = dict.fromkeys(part.layer for part in parts)
        for where, layer, rows in stream.pieces(distinct):
            for part in parts:
                if part.layer is layer:
                    part.put(where, rows, len(stream))
        for part in parts:
            name = part.layer.name
            if part.whole:
                projections[name] = _projection(part)
            else:
                grams[name] = grams[name] + part.gram() if name in grams else part.gram()
            part.held = None
    split = [layer for layer in layers if layer.name in grams]
    return {**projections, **_by_another_pass(stream, split, visibilities, grams)}


def _projection(part: _Part) -> Project:
    count = part.visibility.reduction.size
    if part.held is not None and part.visibility.elements < len(part.held):
        return _Seen(part.visibility, narrow_projection(part.held, count))
    components = Components.of(part.gram(), count)
    if part.held is None:
        return KernelProjection(part.factors[0], components)
    axes = part.held.T @ components.weights.to(part.held)
    return _Seen(part.visibility, Projection(axes, components.offset))


def _by_another_pass(
    stream: Stream,
    layers: Sequence[Layer],
    visibilities: Mapping[str, Visibility],
    grams: Mapping[str, Tensor],
) -> dict[str, Project]:
    """The axes V = Σ_i g_i w_iᵀ, summed up as the rows come."""
    found = {
        layer.name: Components.of(grams[layer.name], visibilities[layer.name].reduction.size)
        for layer in layers
    }
    axes: dict[str, Tensor] = {}
    for where, layer, rows in stream.pieces(layers) if layers else ():
        seen = visibilities[layer.name].seen(rows)
        more = seen.T @ found[layer.name].weights[where].to(seen)
        axes[layer.name] = axes[layer.name].add_(more) if layer.name in axes else more
    return {
        name: _Seen(visibilities[name], Projection(axes[name], components.offset))
        for name, components in found.items()
    }


@dataclass(frozen=True)
class _Seen:
    """A projection of what is seen of the rows."""

    visibility: Visibility
    projection: Projection

    @property
    def bytes(self) -> int:
        return self.projection.bytes

    def __call__(self, rows: GradientRows) -> Tensor:
        return self.projection(self.visibility.seen(rows))


def _parts(
    stream: Stream, layers: Sequence[Layer], visibilities: Mapping[str, Visibility], memory: int
) -> Iterator[_Part]:
    for layer in layers:
        visibility, each = visibilities[layer.name], stream.bytes_of(layer) * len(stream)
        if stream.factored(layer) and _whole_and_wide(visibility, len(stream)):
            yield _Part(layer, visibility, slice(0, visibility.elements), each)
            continue
        element = stream.itemsize * len(stream)
        width = min(visibility.elements, max(_NARROWEST, memory // element))
        for start in range(0, visibility.elements, width):
            block = slice(start, min(start + width, visibility.elements))
            yield _Part(layer, visibility, block, element * width)


def _whole_and_wide(visibility: Visibility, rows: int) -> bool:
    """Whether all elements are seen, no fewer of them than there are rows."""
    return visibility.columns is None and visibility.elements >= rows
