"""Principal components of an adversary who does not know that updates are defended.

He finds them on updates of his own, which nothing was done to, and projects on them what he sees.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.target import Layer
from gradaudit.updates.observer import Observer

Indices = NDArray[np.int64]
Observe = Callable[[Layer], Observer]
_MOST = 1000
"""Updates that the components are found on."""


class Looked(NamedTuple):
    """Some unreduced updates of a layer.

    Attributes:
        observe: what computes them.
        batches: whose, (batches, k).
        seed: of what is random in them.
        others: records of the other clients.
    """

    observe: Observe
    batches: Indices
    seed: int
    others: Indices


def unaware_features(
    layer: Layer,
    elements: int,
    components: int,
    own: Looked,
    released: Looked,
    fit: int,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """Features of a layer's own and released updates, both in the adversary's components.

    Args:
        layer: whose updates.
        elements: how many of its elements are seen.
        components: how many.
        own: the adversary's updates.
        released: the clients'.
        fit: how many of the own batches are shadow batches, which the components are found on.
        memory: bytes that updates may take.

    Returns:
        (own batches, features) and (released batches, features).
    """
    rows = max(memory // (16 * elements), components + 1)
    shadow = np.linspace(0, fit - 1, min(fit, _MOST, rows)).astype(np.int64)
    sample = torch.cat(list(_pieces(layer, own._replace(batches=own.batches[shadow]), rows)))
    centre = sample.mean(dim=0)
    axes = torch.linalg.svd(sample - centre, full_matrices=False).Vh[:components].T
    mine, theirs = (
        torch.cat([(piece - centre) @ axes for piece in _pieces(layer, looked, rows)])
        for looked in (own, released)
    )
    return mine, theirs


def _pieces(layer: Layer, looked: Looked, rows: int) -> Iterator[Tensor]:
    """Unreduced updates, so many at a time."""
    observer = looked.observe(layer)
    for place, start in enumerate(range(0, len(looked.batches), rows)):
        ((_, updates),) = observer.features(
            looked.batches[start : start + rows], seed=looked.seed + place, others=looked.others
        )
        yield updates


def most_elements(components: int, memory: int) -> int:
    """How many elements of a layer can be looked at, so that enough updates fit in the memory."""
    return max(memory // (64 * (components + 1)), 1)
