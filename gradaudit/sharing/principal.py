"""Principal components of gradients, by scikit-learn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer
from gradaudit.sharing.context import Stream
from gradaudit.sharing.gradient_rows import together
from gradaudit.sharing.protocol import Visibility

_SMALLEST = 1e-12
"""Components of less than this share of the largest one's variance are rounding."""
_COPIES = 4
"""Copies of the fitted rows that a decomposition takes."""


@dataclass(frozen=True)
class PrincipalProjection:
    """Projection of rows onto principal components.

    Attributes:
        visibility: what is seen.
        axes: V (elements, components).
        offset: ḡ V (components,).
    """

    visibility: Visibility
    axes: Tensor
    offset: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Project rows onto the components, (rows, components)."""
        return self.visibility.seen(rows) @ self.axes - self.offset


def principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute the first principal axes, (elements, components), and the rows' mean on them.

    As many as have any variance, at least one.
    """
    from sklearn.decomposition import PCA  # a second that other reductions need not wait for

    if bool((rows == rows[0]).all()):
        return rows.new_zeros(rows.shape[1], 1), rows.new_zeros(1)
    fitted = PCA(min(count, *rows.shape), svd_solver="full").fit(rows.cpu().numpy())
    kept = fitted.explained_variance_ > _SMALLEST * fitted.explained_variance_[0]
    axes = torch.from_numpy(fitted.components_[kept].T.copy()).to(rows)
    return axes, torch.from_numpy(fitted.mean_).to(rows) @ axes


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
    _known: dict[str, PrincipalProjection] = field(default_factory=dict)

    def of(
        self, layers: Sequence[Layer], fitted: bytes, stream: Callable[[], Stream]
    ) -> dict[str, PrincipalProjection]:
        """Fit projections of the layers that are reduced to principal components, where unknown.

        ``fitted`` names the stream that they are fitted on.
        """
        if fitted != self._fitted:
            self._fitted, self._known = fitted, {}
        kinds = {name: seen.reduction.kind for name, seen in self.visibilities.items()}
        turned = [layer for layer in layers if kinds[layer.name] == "pca"]
        every = self._known
        if missing := [layer for layer in turned if layer.name not in every]:
            fit = fit_components(stream(), missing, self.visibilities, self.memory // 2)
            every = every | dict(fit)
        if sum(projection.axes.nbytes for projection in every.values()) <= self.memory // 4:
            self._known = every
        return {layer.name: every[layer.name] for layer in turned}


def fit_components(
    stream: Stream, layers: Sequence[Layer], visibilities: Mapping[str, Visibility], memory: int
) -> Iterator[tuple[str, PrincipalProjection]]:
    """Yield the projections of these layers onto the principal components of a stream's rows.

    Layers whose rows fit in ``memory`` bytes together take one pass through the stream.

    Raises:
        NotApplicable: the rows of one layer do not fit.
    """

    def size(layer: Layer) -> int:
        return _COPIES * stream.itemsize * len(stream) * visibilities[layer.name].elements

    for group in together(layers, size, memory):
        if size(group[0]) > memory:
            raise NotApplicable(
                f"{group[0].name}: principal components of {len(stream)} gradients of "
                f"{visibilities[group[0].name].elements:,} elements take {size(group[0]):.1e} "
                f"bytes of {memory:.1e}; use --reduce subset:10000"
            )
        held: dict[str, Tensor] = {}
        for where, layer, rows in stream.pieces(group):
            seen = visibilities[layer.name].seen(rows)
            if layer.name not in held:
                held[layer.name] = seen.new_empty(len(stream), seen.shape[1])
            held[layer.name][where] = seen
        for layer in group:
            visibility = visibilities[layer.name]
            found = principal_components(held.pop(layer.name), visibility.reduction.size)
            yield layer.name, PrincipalProjection(visibility, *found)
