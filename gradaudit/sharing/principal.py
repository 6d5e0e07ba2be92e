"""Principal components of rows that need not fit in memory.

The Gram matrix K = G Gᵀ of the n fitted rows is summed in float64 over blocks of elements; with
K centred = U Λ Uᵀ the components are V = Gᵀ W for W = U Λ^{-1/2}, and a row g projects to
(g − ḡ) V. Where rows are factors, g V = ⟨g, G⟩ W needs no V.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import scipy.linalg
import torch
from torch import Tensor

from gradaudit.models.target import Layer
from gradaudit.sharing.context import Stream
from gradaudit.sharing.gradient_rows import FactoredRows, GradientRows, joined, together
from gradaudit.sharing.protocol import Visibility

_BLOCK = 8192
_NARROWEST = 256
"""Elements of a block whose rows are held, at least."""
_SMALLEST = 1e-12
"""Components of less than this share of the largest one's variance are rounding,"""
_ROUNDING = 1e-14
"""and so are those of less than this share of a row's squared norm, times the number of rows."""


def components_of(gram: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first principal components, of largest variance first, in terms of the fitted rows.

    As many as have any variance, at least one. A component's sign is such that the first
    fitted row that weighs more than half of the heaviest is on its positive side.

    Args:
        gram: (fitted, fitted) float64 inner products.
        count: at most how many.

    Returns:
        The weights W (fitted, components) and the offset ḡ V (components,), float64.
    """
    centred = gram - gram.mean(dim=0)
    centred = centred - centred.mean(dim=1, keepdim=True)
    values, vectors = _leading((centred + centred.T) / 2, min(count, len(gram)))
    rounding = _ROUNDING * len(gram) * gram.diagonal().max()
    kept = int((values > torch.maximum(_SMALLEST * values[0], rounding)).sum())
    if kept == 0:  # all rows are alike
        weights = torch.zeros_like(vectors[:, :1])
    else:
        vectors = vectors[:, :kept]
        weights = vectors * _signs(vectors) / values[:kept].sqrt()
    return weights, gram.mean(dim=0) @ weights


def _signs(coordinates: Tensor) -> Tensor:
    """Signs of each column's first number that is over half of the heaviest, (1, columns)."""
    sizes = coordinates.abs()
    first = (sizes > sizes.amax(dim=0) / 2).int().argmax(dim=0, keepdim=True)
    return coordinates.gather(0, first).sign()


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix, descending, and their vectors."""
    last = len(matrix) - 1
    values, vectors = scipy.linalg.eigh(
        matrix.cpu().numpy(), subset_by_index=[last + 1 - count, last], check_finite=False
    )
    return torch.from_numpy(values).flip(0).to(matrix), torch.from_numpy(vectors).flip(1).to(matrix)


def gram_of(rows: Tensor) -> Tensor:
    """Inner products of rows (n, elements), (n, n) float64, block by block of elements."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], _BLOCK):
        block = rows[:, start : start + _BLOCK].double()
        total.addmm_(block, block.T)
    return total


@dataclass(frozen=True)
class FormedProjection:
    """Projection of rows onto components that are formed.

    Attributes:
        visibility: what is seen.
        axes: V (elements, components).
        offset: ḡ V (components,) float64.
    """

    visibility: Visibility
    axes: Tensor
    offset: Tensor

    @property
    def bytes(self) -> int:
        """Bytes of memory that the projection takes."""
        return self.axes.nbytes

    def __call__(self, rows: GradientRows) -> Tensor:
        """Project rows onto the components, (rows, components)."""
        return self.visibility.seen(rows) @ self.axes - self.offset.to(self.axes)


@dataclass(frozen=True)
class KernelProjection:
    """Rows onto components that are left in terms of the fitted rows.

    Attributes:
        fitted: the fitted rows.
        weights: W (fitted, components) float64.
        offset: ḡ V (components,) float64.
    """

    fitted: FactoredRows
    weights: Tensor
    offset: Tensor

    @property
    def bytes(self) -> int:
        """Bytes of memory that the projection takes."""
        return len(self.fitted) * self.fitted.width * self.fitted.left.element_size()

    def __call__(self, rows: GradientRows) -> Tensor:
        """Project rows onto the components, (rows, components)."""
        assert isinstance(rows, FactoredRows)
        return (rows.gram(self.fitted) @ self.weights - self.offset).to(rows.left.dtype)


Projection = FormedProjection | KernelProjection


@dataclass
class KnownProjections:
    """Projections that were fitted once and may be used again.

    Attributes:
        visibilities: by layer.
        memory: bytes of which a quarter may be kept, and half may be held while they are fitted.
    """

    visibilities: Mapping[str, Visibility]
    memory: int
    _fitted: bytes = b""
    _known: dict[str, Projection] = field(default_factory=dict)

    def of(
        self, layers: Sequence[Layer], fitted: bytes, stream: Callable[[], Stream]
    ) -> dict[str, Projection]:
        """Projections of the layers that are reduced to principal components, fitted where unknown.

        ``fitted`` names the stream that they are fitted on.
        """
        if fitted != self._fitted:
            self._fitted, self._known = fitted, {}
        kinds = {name: seen.reduction.kind for name, seen in self.visibilities.items()}
        turned = [layer for layer in layers if kinds[layer.name] == "pca"]
        every = self._known
        if missing := [layer for layer in turned if layer.name not in every]:
            memory = self.memory // 2
            every = every | fit_components(stream(), missing, self.visibilities, memory)
        if sum(projection.bytes for projection in every.values()) <= self.memory // 4:
            self._known = every
        return {layer.name: every[layer.name] for layer in turned}


@dataclass
class _Block:
    """Some of one layer's elements, whose rows are held to be multiplied with each other."""

    layer: Layer
    visibility: Visibility
    elements: slice
    bytes: int
    factors: list[FactoredRows] = field(default_factory=list)
    held: Tensor | None = None

    def put(self, where: slice, rows: GradientRows, count: int) -> None:
        if isinstance(rows, FactoredRows) and _whole_and_wide(self.visibility, count):
            self.factors.append(rows)
            return
        seen = self.visibility.seen(rows)[:, self.elements]
        if self.held is None:
            self.held = seen.new_empty(count, seen.shape[1])
        self.held[where] = seen

    def gram(self) -> Tensor:
        """Inner products of all rows that were put, (rows, rows)."""
        if self.held is not None:
            return gram_of(self.held)
        factors = joined(self.factors)
        assert isinstance(factors, FactoredRows)
        self.factors = [factors]
        return factors.gram(factors)

    def projection(self) -> Projection:
        """The projection of the layer, all of whose elements are here."""
        count = self.visibility.reduction.size
        weights, offset = components_of(self.gram(), count)
        if self.held is None:
            return KernelProjection(self.factors[0], weights, offset)
        return FormedProjection(self.visibility, self.held.T @ weights.to(self.held), offset)


def fit_components(
    stream: Stream, layers: Sequence[Layer], visibilities: Mapping[str, Visibility], memory: int
) -> dict[str, Projection]:
    """Projections of rows of each of these layers onto the principal components of a stream.

    Layers whose rows fit in ``memory`` together take one pass through the stream; a layer that
    does not fit alone takes one for every block of its elements, and one more. ``memory`` is in
    bytes of rows; there are at least two.
    """
    grams: dict[str, Tensor] = {}
    projections: dict[str, Projection] = {}
    every = _blocks(stream, layers, visibilities, memory)
    for blocks in together(every, lambda block: block.bytes, memory):
        for where, layer, rows in stream.pieces(dict.fromkeys(block.layer for block in blocks)):
            for block in blocks:
                if block.layer is layer:
                    block.put(where, rows, len(stream))
        for block in blocks:
            name = block.layer.name
            if block.elements == slice(0, block.visibility.elements):
                projections[name] = block.projection()
            else:
                grams[name] = grams[name] + block.gram() if name in grams else block.gram()
            block.held = None
    split = [layer for layer in layers if layer.name in grams]
    return {**projections, **_by_another_pass(stream, split, visibilities, grams)}


def _blocks(
    stream: Stream, layers: Sequence[Layer], visibilities: Mapping[str, Visibility], memory: int
) -> Iterator[_Block]:
    element = stream.itemsize * len(stream)
    for layer in layers:
        visibility = visibilities[layer.name]
        if stream.factored(layer) and _whole_and_wide(visibility, len(stream)):
            size = stream.bytes_of(layer) * len(stream)
            yield _Block(layer, visibility, slice(0, visibility.elements), size)
            continue
        width = min(visibility.elements, max(_NARROWEST, memory // element))
        for start in range(0, visibility.elements, width):
            elements = slice(start, min(start + width, visibility.elements))
            yield _Block(layer, visibility, elements, element * width)


def _whole_and_wide(visibility: Visibility, rows: int) -> bool:
    """Whether all elements are seen, no fewer of them than there are rows."""
    return visibility.columns is None and visibility.elements >= rows


def _by_another_pass(
    stream: Stream,
    layers: Sequence[Layer],
    visibilities: Mapping[str, Visibility],
    grams: Mapping[str, Tensor],
) -> dict[str, Projection]:
    """The axes V = Σ_i g_i w_iᵀ, summed up as the rows come."""
    fitted = {
        layer.name: components_of(grams[layer.name], visibilities[layer.name].reduction.size)
        for layer in layers
    }
    axes: dict[str, Tensor] = {}
    for where, layer, rows in stream.pieces(layers) if layers else ():
        seen, (weights, _) = visibilities[layer.name].seen(rows), fitted[layer.name]
        more = seen.T @ weights[where].to(seen)
        axes[layer.name] = axes[layer.name].add_(more) if layer.name in axes else more
    return {
        name: FormedProjection(visibilities[name], axes[name], offset)
        for name, (_, offset) in fitted.items()
    }
