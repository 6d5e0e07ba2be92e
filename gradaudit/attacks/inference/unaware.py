"""Principal components of an adversary who does not know that updates are defended.

He finds them on updates of his own, which nothing was done to, and projects on them what he sees.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.models.target import Layer
from gradaudit.sharing.interceptor import Interceptor

Indices = NDArray[np.int64]
Intercept = Callable[[Layer], Interceptor]
_MOST = 1000
"""Updates that the components are found on."""


class Looked(NamedTuple):
    """Batches whose updates are looked at.

    Attributes:
        batches: (batches, k).
        seed: of what is random in them.
        others: records of the other clients.
        values: (batches,) what their clients protect.
    """

    batches: Indices
    seed: int
    others: Indices
    values: Indices

    def part(self, rows: slice | Indices) -> "Looked":
        """Some of the batches."""
        return self._replace(batches=self.batches[rows], values=self.values[rows])


def unaware_features(
    layer: Layer,
    elements: int,
    components: int,
    observe_own: Intercept,
    own: Looked,
    observe_released: Intercept,
    released: Looked,
    fit: int,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """Features of a layer's own and released updates, both in the adversary's components.

    Args:
        layer: whose updates.
        elements: how many of its elements are seen.
        components: how many.
        observe_own: computes the adversary's updates.
        own: his batches.
        observe_released: computes the clients' updates.
        released: their batches.
        fit: how many of the own batches are shadow batches, which the components are found on.
        memory: bytes that updates may take.

    Returns:
        (own batches, features) and (released batches, features).
    """
    rows = max(memory // (16 * elements), components + 1)
    shadow = np.linspace(0, fit - 1, min(fit, _MOST, rows)).astype(np.int64)
    sample = torch.cat(list(_pieces(layer, observe_own, own.part(shadow), rows)))
    centre = sample.mean(dim=0)
    axes = torch.linalg.svd(sample - centre, full_matrices=False).Vh[:components].T
    mine, theirs = (
        torch.cat([(piece - centre) @ axes for piece in _pieces(layer, observe, looked, rows)])
        for observe, looked in ((observe_own, own), (observe_released, released))
    )
    return mine, theirs


def _pieces(layer: Layer, observe: Intercept, looked: Looked, rows: int) -> Iterator[Tensor]:
    """Unreduced updates, so many at a time."""
    interceptor = observe(layer)
    for place, start in enumerate(range(0, len(looked.batches), rows)):
        some = looked.part(slice(start, start + rows))
        ((_, updates),) = interceptor.features(
            some.batches, seed=some.seed + place, others=some.others, values=some.values
        )
        yield updates


def most_elements(components: int, memory: int) -> int:
    """How many elements of a layer can be looked at, so that enough updates fit in the memory."""
    return max(memory // (64 * (components + 1)), 1)
