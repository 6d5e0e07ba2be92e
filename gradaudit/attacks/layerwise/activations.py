"""Elementwise activations that can be inverted: value, inverse and derivative.

Chen & Campbell 2021, eq. 2, needs the inverse and eq. 3 the derivative. What is given to an inverse
is a solution of a linear system and may lie outside of the activation's range: it is then moved
``MARGIN`` inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

MARGIN = 1e-12
"""Least distance from the ends of a range at which an inverse is taken."""


@dataclass(frozen=True)
class Activation(ABC):
    """A strictly increasing, piecewise differentiable function of each element."""

    @property
    def range(self) -> tuple[float, float]:
        """The open interval of its values."""
        return -inf, inf

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """a(z)."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""

    def inverse(self, a: Tensor, margin: float = MARGIN) -> Tensor:
        """The z with a(z) = a, of values moved so far into the range."""
        low, high = self.range
        return self._inverse(a.clamp(low + margin, high - margin))

    @abstractmethod
    def _inverse(self, a: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Tanh(Activation):
    """tanh z."""

    @property
    def range(self) -> tuple[float, float]:
        """(−1, 1)."""
        return -1.0, 1.0

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return z.tanh()

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return 1 / z.cosh().square()

    def _inverse(self, a: Tensor) -> Tensor:
        return a.atanh()


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + e⁻ᶻ)."""

    @property
    def range(self) -> tuple[float, float]:
        """(0, 1)."""
        return 0.0, 1.0

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return z.sigmoid()

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return z.sigmoid() * (-z).sigmoid()

    def _inverse(self, a: Tensor) -> Tensor:
        return a.logit()


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """z, times ``negative`` > 0 where z is negative."""

    negative: float

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.leaky_relu(z, self.negative)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return torch.where(z > 0, torch.ones_like(z), self.negative)

    def _inverse(self, a: Tensor) -> Tensor:
        return torch.where(a > 0, a, a / self.negative)


@dataclass(frozen=True)
class ELU(Activation):
    """z, and ``alpha`` (eᶻ − 1) where z is negative."""

    alpha: float

    @property
    def range(self) -> tuple[float, float]:
        """(−alpha, ∞)."""
        return -self.alpha, inf

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.elu(z, self.alpha)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return torch.where(z > 0, torch.ones_like(z), self.alpha * z.clamp_max(0).exp())

    def _inverse(self, a: Tensor) -> Tensor:
        return torch.where(a > 0, a, (a.clamp_max(0) / self.alpha).log1p())


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + e^(beta z)) / beta."""

    beta: float

    @property
    def range(self) -> tuple[float, float]:
        """(0, ∞)."""
        return 0.0, inf

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        return F.softplus(z, self.beta, threshold=40)

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        return (self.beta * z).sigmoid()

    def _inverse(self, a: Tensor) -> Tensor:
        scaled = self.beta * a
        return (scaled + (-(-scaled).expm1()).log()) / self.beta


@dataclass(frozen=True)
class Composed(Activation):
    """Several activations, the first applied first; none of them is the identity."""

    parts: tuple[Activation, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """Of the last one's values for what the one before it gives."""
        low, high = -inf, inf
        for part in self.parts:
            ends = torch.tensor([low, high], dtype=torch.float64)
            low, high = part.value(ends).tolist()
        return low, high

    def value(self, z: Tensor) -> Tensor:
        """a(z)."""
        for part in self.parts:
            z = part.value(z)
        return z

    def slope(self, z: Tensor) -> Tensor:
        """a′(z)."""
        slope = torch.ones_like(z)
        for part in self.parts:
            slope, z = slope * part.slope(z), part.value(z)
        return slope

    def _inverse(self, a: Tensor) -> Tensor:
        for part in reversed(self.parts):
            a = part.inverse(a)
        return a


def inside(activation: Activation, a: Tensor) -> Tensor:
    """Which elements lie in the activation's range, and so need not be moved."""
    low, high = activation.range
    return (a > low) & (a < high)


def composed(parts: Sequence[Activation]) -> Activation:
    """One activation for several in a row."""
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))
