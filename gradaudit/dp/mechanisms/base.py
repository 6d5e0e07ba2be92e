"""What a gradient-release mechanism is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gradaudit.noise import Noise, NoisePlace


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

    def laid_out(self, sizes: Mapping[str, int]) -> "Mechanism":
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
        each = [self.release(per_sample_gradients, generator) for _ in range(count)]
        return torch.stack(each)

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

    @abstractmethod
    def mean_of(self, record: Tensor, companions: Tensor) -> Tensor:
        """The release without noise of one record beside its companions.

        Differentiable in ``record``.

        Args:
            record: (…, elements) gradients of the record, one a variant of it.
            companions: (others, elements) gradients of the rest of the batch.

        Returns:
            (…, elements).
        """

    @abstractmethod
    def scale(self, records: int) -> float:
        """Deviation (Gaussian) or scale (Laplace) of an element's noise in a release."""

    @abstractmethod
    def resized(self, clip: float, sigma: float) -> "AdditiveMechanism":
        """The same mechanism with another clip and sigma."""

    def mean(self, per_sample_gradients: Tensor) -> Tensor:
        """The release without noise, (records, elements) to (elements,)."""
        return self.mean_of(per_sample_gradients[0], per_sample_gradients[1:])
