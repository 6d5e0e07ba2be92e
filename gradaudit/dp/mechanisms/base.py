"""What a gradient-release mechanism is, and what may be known of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.dp.theory import Relation, epsilon_gaussian, epsilon_laplace
from gradaudit.noise import Noise

Noiseless = Callable[[Tensor, Tensor], Tensor]
"""The release without noise, differentiable in the record: of its variants' gradients (…, elements)
and those of its companions (others, elements) to (…, elements)."""


@dataclass(frozen=True)
class ReleaseLaw:
    """A release that is a known function of the gradients plus noise of a known law.

    Attributes:
        noise: law of the noise in each element.
        scale: its deviation (Gaussian) or scale (Laplace) in a release.
        noiseless: the release without it.
    """

    noise: Noise
    scale: float
    noiseless: Noiseless

    def epsilon(self, shifts: Tensor, delta: float) -> float:
        """Exact epsilon of releases that noiseless lie so far apart, the largest of several.

        At δ for Gaussian noise, and at 0 for Laplace noise, whose ‖g1 − g0‖₁/b is little more.

        Args:
            shifts: (pairs, elements).
            delta: 0 < δ < 1.
        """
        if self.noise == "laplace":
            return epsilon_laplace(float(shifts.abs().sum(dim=1).max()), self.scale)
        largest = float(torch.linalg.vector_norm(shifts, dim=1).max())
        if self.scale == 0:
            return math.inf if largest else 0.0
        return epsilon_gaussian(largest / self.scale, delta)


@dataclass(frozen=True)
class Promise:
    """What a mechanism promises, whatever the records are.

    Attributes:
        mu: L2 sensitivity over the noise's scale.
        epsilon: of the worst pair of gradients, exact.
        delta: that epsilon goes with; 0 for Laplace noise, of which one at δ says nothing.
    """

    mu: float
    epsilon: float
    delta: float


class Mechanism(ABC):
    """A random map from the per-sample gradients of a step to the gradient that is released.

    One that has a ``name`` and a ``summary`` is found, and made from ``name:clip=C,sigma=S``.

    Attributes:
        description: as the user named it.
        noise: the law of the noise in each element, known or declared; None where it is neither.
        deterministic: whether it is known to draw no random numbers.
        foreign: whether its releases are made by code that is not known here: they may depend on
            each other, and a pilot of them is a better guide to a threshold than any law.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: str
    noise: Noise | None = None
    deterministic: ClassVar[bool] = False
    foreign: ClassVar[bool] = True

    @property
    def noise_multiplier(self) -> float | None:
        """σ/Δ of Gaussian noise on the sum of clipped gradients, which composes; else None."""
        return None

    def law(self, records: int) -> ReleaseLaw | None:
        """The law of a release of a batch of so many records; None where it is not known.

        Raises:
            UsageError: it is known, but has no simple form.
        """
        return None

    def promise(
        self, relation: Relation, records: int, elements: int, delta: float
    ) -> Promise | None:
        """What it promises for a batch of so many records; None where nothing is known.

        Args:
            relation: neighbouring data sets replace one record, or remove one.
            records: size of the batch.
            elements: length of a gradient.
            delta: 0 < δ < 1.
        """
        return None

    def resized(self, clip: float | None = None, sigma: float | None = None) -> Mechanism | None:
        """The same mechanism with another clip or sigma; None where it has none to change."""
        return None

    def laid_out(self, sizes: Mapping[str, int]) -> Mechanism:
        """The mechanism for gradients that are made of these parameters, in order.

        Args:
            sizes: elements of each parameter.
        """
        return self

    @abstractmethod
    def release(self, per_sample_gradients: Tensor, generator: torch.Generator) -> Tensor:
        """Release once: (records, elements) to (elements,)."""

    def releases(
        self, per_sample_gradients: Tensor, count: int, generator: torch.Generator
    ) -> Tensor:
        """Release ``count`` times from the same gradients, (count, elements)."""
        return torch.stack([self.release(per_sample_gradients, generator) for _ in range(count)])

    def elements_drawn(self, records: int, elements: int) -> int:
        """How many numbers one release holds in memory at a time."""
        return (records + 1) * elements
