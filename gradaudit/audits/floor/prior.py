"""The attacker's prior of a record: a Gaussian law, in its own principal directions.

A record is x = m + Σ_j √λ_j z_j u_j with independent standard normal z_j; floors are computed in z.
The leading directions are asked about one by one. All others, of variance τ, are one group, asked
about by one random direction a record: with random signs ε, v = √(τ/q) Σ_j ε_j u_j over these q
directions has as E‖Jv‖² the mean of their ‖J √τ u_j‖².
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

DIRECTIONS = 256
"""Leading directions of the prior that are asked about one by one."""
_FITTED_ON = 1000
"""Records that a covariance is fitted on: what more of them would add, shrinking takes away."""


@dataclass(frozen=True)
class GaussianPrior:
    """A Gaussian law of records, N(m, Σ_j λ_j u_j u_jᵀ + τ (I − Σ_j u_j u_jᵀ)).

    Attributes:
        mean: m, (d,).
        axes: the u_j, orthonormal, (axes, d), by falling variance.
        variances: the λ_j, (axes,).
        rest: τ, the variance in each of the d − axes other directions.
        shrinkage: how much of the covariance is that of white noise, from 0 to 1.
    """

    mean: Tensor
    axes: Tensor
    variances: Tensor
    rest: float = 0.0
    shrinkage: float = 0.0

    @classmethod
    def fitted(cls, inputs: Tensor, leading: int = DIRECTIONS) -> Self:
        """Fit mean and shrunk covariance of records (records, d).

        Shrunk towards white noise of the same variance as much as is best in mean squares: O.
        Ledoit and M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices"
        (2004), lemma 3.3. Directions behind the leading ones have their mean variance: M. Tipping
        and C. Bishop, "Probabilistic principal component analysis" (1999), eq. 8. Of more than
        1,000 records the first 1,000 are taken.
        """
        inputs = inputs[:_FITTED_ON].double()
        mean = inputs.mean(dim=0)
        left, scales, axes = torch.linalg.svd(
            (inputs - mean) / len(inputs) ** 0.5, full_matrices=False
        )
        if len(scales) < len(mean):
            some = scales > scales[0] * 1e-10
            left, scales, axes = left[:, some], scales[some], axes[some]
        variances, size = scales.square(), len(mean)
        level = float(variances.sum()) / size
        share = _shrinkage(left, variances, level, size)
        shrunk = (1 - share) * variances + share * level
        behind = float(shrunk[leading:].sum()) + (size - len(axes)) * share * level
        rest = behind / (size - leading) if size > leading < len(axes) else share * level
        return cls(mean, axes[:leading], shrunk[:leading], rest, share)

    @property
    def size(self) -> int:
        """Elements of a record, d."""
        return len(self.mean)

    @property
    def variance(self) -> float:
        """The expected squared distance of a record from the mean, tr Σ."""
        return float(self.variances.sum()) + (self.size - len(self.axes)) * self.rest

    @property
    def spectrum(self) -> Tensor:
        """The variances in all directions, (d,)."""
        return torch.cat([self.variances, self.variances.new_full((self.grouped,), self.rest)])

    @property
    def grouped(self) -> int:
        """Number of directions that are asked about together, at random for every record."""
        return self.size - len(self.axes)

    @property
    def counts(self) -> Tensor:
        """How many directions each probe stands for, (probes,): one for the leading."""
        beyond = [self.grouped] if self.grouped else []
        return torch.tensor([1] * len(self.axes) + beyond, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        """The variance that each probe stands for, (probes,)."""
        beyond = [self.grouped * self.rest] if self.grouped else []
        return torch.tensor([*self.variances.tolist(), *beyond], dtype=torch.float64)

    @property
    def leaders(self) -> Tensor:
        """The leading √λ_j u_j, (axes, d)."""
        return self.variances[:, None].sqrt() * self.axes

    def probes(self, generator: torch.Generator) -> Tensor:
        """Directions to move a record in, (probes, d): the leading √λ_j u_j, then a random one."""
        if not self.grouped:
            return self.leaders
        bits = torch.randint(0, 2, (self.size,), generator=generator, dtype=torch.float64)
        signs = 2 * bits - 1
        outside = (signs - (self.axes @ signs) @ self.axes) * (self.rest / self.grouped) ** 0.5
        return torch.cat([self.leaders, outside[None]])

    def draw(self, records: int, generator: torch.Generator) -> Tensor:
        """Draw records of this law, (records, d)."""
        normal = torch.randn(records, self.size, generator=generator, dtype=torch.float64)
        least = self.rest**0.5
        along: Tensor = (normal @ self.axes.mT) * (self.variances.sqrt() - least)
        drawn: Tensor = self.mean + least * normal + along @ self.axes
        return drawn

    def kept(self, products: Tensor) -> Tensor:
        """Products (…, probes, probes) without those of a leading direction with the group.

        They are zero on average, as the group's signs are random.
        """
        leading = torch.arange(products.shape[-1], device=products.device) < len(self.axes)
        return products * (leading[:, None] & leading).fill_diagonal_(True)


def _shrinkage(left: Tensor, variances: Tensor, level: float, size: int) -> float:
    """The share of white noise, of records √n Σ_j left_j scale_j u_j, centred."""
    records = len(left)
    lengths = records * left.square() @ variances
    spread = float(variances.square().sum()) - size * level**2
    noise = (float(lengths.square().mean()) - float(variances.square().sum())) / records
    return min(1.0, noise / spread) if spread > 0 else 1.0
