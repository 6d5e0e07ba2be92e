"""What a gradient-release mechanism is, and what may be known of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.dp.theory import Relation, epsilon_gaussian, epsilon_laplace, mu_of_mechanism
from gradaudit.noise import Noise, NoisePlace

Noiseless = Callable[[Tensor, Tensor], Tensor]
"""The release without noise: of variants of a record (…, elements) and its companions (others,
elements) to (…, elements)."""


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

    Attributes:
        description: as the user named it.
        noise: the law of the noise in each element, known or declared; None where it is neither.
        deterministic: whether it is known to draw no random numbers.
        foreign: whether its releases are made by code that is not known here: they may depend on
            each other, and a pilot of them is a better guide to a threshold than any law.
    """

    description: str
    noise: Noise | None = None
    deterministic: ClassVar[bool] = False
    foreign: ClassVar[bool] = True

    @property
    def noise_multiplier(self) -> float | None:
        """σ/Δ of Gaussian noise on the sum of clipped gradients, which composes; else None."""
        return None

    def law(self, records: int) -> ReleaseLaw | None:
        """The law of a release of a batch of so many records; None where it is not known."""
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


class AdditiveMechanism(Mechanism):
    """A mechanism whose release is a known function of the gradients plus noise of a known law.

    Attributes:
        clip: L2 norm Δ that a gradient is clipped to.
        sigma: deviation of Gaussian noise, or scale b of Laplace noise, per element, at the place
            where the mechanism adds it.
        per: where the noise is added.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    foreign: ClassVar[bool] = False
    noise: Noise
    clip: float
    sigma: float
    per: NoisePlace

    @property
    def noise_multiplier(self) -> float | None:
        """σ/Δ of Gaussian noise on the sum of clipped gradients, which composes; else None."""
        return self.sigma / self.clip if (self.noise, self.per) == ("gaussian", "sum") else None

    @abstractmethod
    def noiseless(self, record: Tensor, companions: Tensor) -> Tensor:
        """The release without noise of one record beside its companions.

        Differentiable in ``record``.

        Args:
            record: (…, elements) gradients of the record, one a variant of it.
            companions: (others, elements) gradients of the rest of the batch.

        Returns:
            (…, elements).
        """

    @abstractmethod
    def law(self, records: int) -> ReleaseLaw:
        """The law of a release of a batch of so many records.

        Raises:
            UsageError: it has no simple law.
        """

    def promise(self, relation: Relation, records: int, elements: int, delta: float) -> Promise:
        """The worst case: at δ for Gaussian noise, at 0 for Laplace noise.

        For that an L2 sensitivity of S allows an L1 sensitivity of S√elements.
        """
        mu = mu_of_mechanism(
            self.clip, self.sigma, noise=self.per, records=records, relation=relation
        )
        if self.noise == "laplace":
            return Promise(mu, epsilon_laplace(mu * math.sqrt(elements), 1.0), 0.0)
        return Promise(mu, epsilon_gaussian(mu, delta), delta)

    @abstractmethod
    def resized(self, clip: float | None = None, sigma: float | None = None) -> AdditiveMechanism:
        """The same law and place of the noise with another clip or sigma."""

    def mean(self, per_sample_gradients: Tensor) -> Tensor:
        """The release without noise, (records, elements) to (elements,)."""
        return self.noiseless(per_sample_gradients[0], per_sample_gradients[1:])
