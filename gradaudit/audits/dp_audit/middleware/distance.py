"""Estimates how far apart two releases lie without their noise."""

from dataclasses import dataclass
from math import hypot, sqrt

import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise

_DEVIATIONS = 8
"""Standard errors of a difference that is shown; noise on few elements has a heavy tail."""
_UPPER = 1.96


@dataclass(frozen=True)
class Distance:
    """The L2 distance of two mean releases.

    Attributes:
        squared: its square, estimated without bias, so that it may be negative.
        error: standard error of that; 0 where the distance is exact.
    """

    squared: float
    error: float = 0.0

    @classmethod
    def from_draws(cls, differences: Tensor) -> "Distance":
        """Estimate the norm of a mean from independent draws, or from one without noise.

        Args:
            differences: (draws, elements) of two releases.

        With n draws ‖ΣD‖² − Σ‖D‖² over n(n−1) has the mean ‖E D‖², and with variances v of normal
        elements the variance 2Σv²/n(n−1) + 4 Σv(E D)²/n.
        """
        draws = differences.double()
        n = len(draws)
        if n == 1:
            return cls(float(draws.square().sum()))
        squared = float(draws.sum(dim=0).square().sum() - draws.square().sum()) / (n * (n - 1))
        variance = draws.var(dim=0)
        fourth = float(variance.square().sum()) * (n - 1) / (n + 1)  # E s⁴ = σ⁴ (n+1)/(n−1)
        spread = fourth / float(variance.sum()) if fourth else 0.0
        return cls(squared, sqrt(2 * fourth / (n * (n - 1)) + 4 * max(squared, 0.0) * spread / n))

    @property
    def value(self) -> float:
        """The distance."""
        return sqrt(max(self.squared, 0.0))

    @property
    def interval(self) -> tuple[float, float]:
        """The distance's ends at 95 %."""
        margin = _UPPER * self.error
        return sqrt(max(self.squared - margin, 0.0)), sqrt(max(self.squared + margin, 0.0))

    def exceeds(self, other: "Distance", factor: float = 1.0) -> bool:
        """Whether this distance is shown to be larger than another one times a factor."""
        gap = self.squared - factor**2 * other.squared
        return gap > _DEVIATIONS * hypot(self.error, factor**2 * other.error)


def draw_differences(common: CommonNoise, first: Tensor, second: Tensor, draws: int) -> Tensor:
    """Draw differences (draws, elements) of what leaves of two updates (elements,).

    Args:
        common: the mechanism with fixed randomness.
        first: an update.
        second: another one.
        draws: pairs of releases; one is enough where the randomness is held fast.
    """
    pairs = [common(torch.stack([first, second]), first[None][:0]) for _ in range(draws)]
    return torch.stack([here - there for here, there in pairs])
