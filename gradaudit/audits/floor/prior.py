"""The attacker's prior of a record: a Gaussian law, in its own principal directions.

A record is x = m + Σ_j √λ_j z_j u_j with independent standard normal z_j. Floors are computed in z.
The leading directions are asked about one by one. The many small ones of wide records are taken in
groups whose variances are about alike, each asked about by one random direction a record: with
random signs ε, v = Σ_{j∈g} ε_j √λ_j u_j / √|g| has as E‖Jv‖² the group's mean of ‖J √λ_j u_j‖².
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

DIRECTIONS = 256
"""Leading directions of the prior that are asked about one by one."""
_GROUPS = 16
_STILL = 1e-12
"""Share of the largest variance below which rounding hides whether there is any."""
_FITTED_ON = 1000
"""Records that a covariance is fitted on: what more of them would add, shrinking takes away."""


@dataclass(frozen=True)
class GaussianPrior:
    """A Gaussian law of records, N(m, Σ_j λ_j u_j u_jᵀ + τ (I − Σ_j u_j u_jᵀ)).

    Attributes:
        mean: m, (d,).
        axes: the u_j, orthonormal, (axes, d), by falling variance.
        variances: the λ_j, (axes,), none below τ.
        rest: τ, the variance in each of the d − axes other directions.
        leading: how many axes are asked about one by one.
        shrinkage: how much of the covariance is that of white noise, from 0 to 1.
    """

    mean: Tensor
    axes: Tensor
    variances: Tensor
    rest: float
    leading: int
    shrinkage: float = 0.0

    @classmethod
    def fitted(cls, inputs: Tensor, leading: int = DIRECTIONS) -> Self:
        """The law with the mean of these records (records, d) and their shrunk covariance.

        Shrunk towards white noise of the same variance as much as is best in mean squares: O.
        Ledoit and M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices"
        (2004), lemma 3.3. Of more than 1,000 records the first 1,000 are taken.
        """
        inputs = inputs[:_FITTED_ON].double()
        mean = inputs.mean(dim=0)
        centred = (inputs - mean) / len(inputs) ** 0.5
        left, scales, axes = _axes_of(centred)
        variances = scales.square()
        level = float(variances.sum()) / len(mean)
        share = _shrinkage(left, variances, level, len(mean))
        shrunk = (1 - share) * variances + share * level
        return cls(mean, axes, shrunk, share * level, min(leading, len(axes)), share)

    @classmethod
    def of_covariance(cls, mean: Tensor, covariance: Tensor, leading: int = DIRECTIONS) -> Self:
        """The law with this mean (d,) and covariance (d, d), which may be singular."""
        variances, axes = torch.linalg.eigh(covariance.double())
        kept = variances.flip(0).clamp(min=0)
        return cls(mean.double(), axes.mT.flip(0), kept, 0.0, min(leading, len(mean)))

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
        beyond = self.variances.new_full((self.size - len(self.axes),), self.rest)
        return torch.cat([self.variances, beyond])

    @property
    def grouped(self) -> bool:
        """Whether some directions are asked about in groups, at random for every record."""
        return self.leading < self.size

    @property
    def groups(self) -> tuple[slice, ...]:
        """The axes behind the leading ones, in groups."""
        behind = len(self.axes) - self.leading
        step = max(1, -(-behind // _GROUPS))
        starts = range(self.leading, len(self.axes), step)
        return tuple(slice(start, min(start + step, len(self.axes))) for start in starts)

    @property
    def counts(self) -> Tensor:
        """How many directions each probe stands for, (probes,): one for the leading."""
        behind = [group.stop - group.start for group in self.groups]
        beyond = [self.size - len(self.axes)] if self.size > len(self.axes) else []
        return torch.tensor([1] * self.leading + behind + beyond, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        """The variance that each probe stands for, (probes,); of a group its least, each."""
        least = [float(self.variances[group].min()) for group in self.groups]
        beyond = [self.rest] if self.size > len(self.axes) else []
        variances = [*self.variances[: self.leading].tolist(), *least, *beyond]
        return torch.tensor(variances, dtype=torch.float64) * self.counts

    @property
    def leaders(self) -> Tensor:
        """The leading √λ_j u_j, (leading, d)."""
        return self.variances[: self.leading, None].sqrt() * self.axes[: self.leading]

    def probes(self, generator: torch.Generator) -> Tensor:
        """Directions to move a record in, (probes, d): the leading √λ_j u_j, then random ones."""
        behind = [self._mixed(group, generator) for group in self.groups]
        beyond = [self._beyond(generator)] if self.size > len(self.axes) else []
        return torch.stack([*self.leaders, *behind, *beyond])

    def at(self, normal: Tensor) -> Tensor:
        """Records of this law, made of standard normal numbers, (records, d)."""
        least = self.rest**0.5
        along: Tensor = (normal @ self.axes.mT) * (self.variances.sqrt() - least)
        drawn: Tensor = self.mean + least * normal + along @ self.axes
        return drawn

    def draw(self, records: int, generator: torch.Generator) -> Tensor:
        """Records of this law, (records, d)."""
        normal = torch.randn(records, self.size, generator=generator, dtype=torch.float64)
        return self.at(normal)

    def kept(self, products: Tensor) -> Tensor:
        """Products (…, probes, probes) between leading directions, and of groups with themselves.

        Those with a group's direction are zero on average, as its signs are random.
        """
        leading = torch.arange(products.shape[-1], device=products.device) < self.leading
        return products * (leading[:, None] & leading).fill_diagonal_(True)

    def _mixed(self, group: slice, generator: torch.Generator) -> Tensor:
        scales = self.variances[group].sqrt() / (group.stop - group.start) ** 0.5
        mixed: Tensor = (_signs(len(scales), generator) * scales) @ self.axes[group]
        return mixed

    def _beyond(self, generator: torch.Generator) -> Tensor:
        signs = _signs(self.size, generator)
        outside: Tensor = signs - (self.axes @ signs) @ self.axes
        outside *= (self.rest / (self.size - len(self.axes))) ** 0.5
        return outside


def _signs(count: int, generator: torch.Generator) -> Tensor:
    bits = torch.randint(0, 2, (count,), generator=generator, dtype=torch.float64)
    return bits.mul_(2).sub_(1)


def _axes_of(centred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors (records, axes), scales (axes,) and axes (axes, d), by falling scale.

    Axes on which the records do not differ at all are left out where they are fewer than d.
    """
    left, scales, axes = torch.linalg.svd(centred, full_matrices=False)
    kept = scales > scales[0] * 1e-10
    return (
        (left, scales, axes)
        if len(scales) == len(axes[0])
        else (left[:, kept], scales[kept], axes[kept])
    )


def _shrinkage(left: Tensor, variances: Tensor, level: float, size: int) -> float:
    """The share of white noise, of records √n Σ_j left_j scale_j u_j, centred."""
    records = len(left)
    lengths = records * left.square() @ variances
    spread = float(variances.square().sum()) - size * level**2
    noise = (float(lengths.square().mean()) - float(variances.square().sum())) / records
    return min(1.0, noise / spread) if spread > 0 else 1.0
