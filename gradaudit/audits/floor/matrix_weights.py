"""Floors from weights that each record has in each direction, by what its own update says there.

The van Trees inequality inverts the average information. A trained network is sure of most records:
their gradients hold next to nothing, the average is that of the few others, and the floor lies far
below the error of the best attacker. With a matrix H(z) of weights, of a record z ~ N(0, I) in the
prior's directions and an attacker's guess ẑ, by parts and by Cauchy and Schwarz for each direction
i (B. Bobrovsky, E. Mayer-Wolf and M. Zakai, "Some classes of global Cramér-Rao bounds", 1987,
section 3, with a vector of weights hᵢ = H eᵢ; from E[(ẑᵢ − zᵢ) div(hᵢ p)/p] = −E hᵢᵢ):

    E (ẑᵢ − zᵢ)² ≥ 2α E Hᵢᵢ − α² (E[H Ã H]ᵢᵢ + E (div hᵢ − hᵢᵀz)²)    for every number α.

It holds for every H with derivatives almost everywhere and no jumps, that do not grow too fast. The
last square is E |hᵢ|² + E tr(∇hᵢ ∇hᵢ) (D. Nualart, "The Malliavin calculus and related topics",
2006, proposition 1.3.1), in which no z is left to chance. Constant H is van Trees. Here H = (I +
a B(z) + b E[B])⁻¹: what is left of each record by its own information B, so that the bound is near
E[H], the average of what is left, as far as H varies little. B is the information Ã but for what a
clip takes from it along the gradient, which begins with a jump.

The trace is told by differences of B along two independent vectors of signs ε and ε′ (M.
Hutchinson, "A stochastic estimator of the trace", 1990): it is the mean of (εᵀ ∂_ε′ hᵢ) (ε′ᵀ ∂_ε
hᵢ), with ∂_ε hᵢ = −a H (∂_ε B) H eᵢ.

Each value is linear in averages over records, for a, b, α and E[B] that other records say: it is
the bound's on average, and no number of records is too few for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.floor.jacobians import JacobianProducts, jacobian_products
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, clipped, shrunk
from gradaudit.gradients.differentiation import Batch, Differentiation
from gradaudit.models.target import Layer

LOCAL = 64
"""Leading directions in which records have weights of their own."""
_MENU = (0.1, 0.0), (0.5, 0.0), (0.5, 0.3)
"""The a and b of H: about the best of .3 to 10 and 0 to 1 on ``benchmarks/coverage/floors.py``."""
_SHARED = 8
"""Units that the α of all directions together count for, beside a direction's own."""
_MOST_SCALE = 2.0
_STEP = 1e-6
"""Of differences: their error is about as large a share of them, and rounding is less."""


@dataclass(frozen=True)
class LocalInformation:
    """The information of an update on single records, and how it changes around them.

    Attributes:
        exact: Ã, (records, k, k), in the prior's k leading directions.
        smooth: B, (records, k, k).
        slopes: ∂_ε B for both ε, (records, 2, k, k).
        signs: ε, (records, 2, k).
        units: which unit each record is of, (records,).
    """

    exact: Tensor
    smooth: Tensor
    slopes: Tensor
    signs: Tensor
    units: Tensor

    def __add__(self, other: Self) -> Self:
        """The information of two layers on the same records."""
        return self._with([x + y for x, y in zip(self._moving, other._moving, strict=True)])

    def __mul__(self, factor: float) -> Self:
        """The information under noise of this much less variance."""
        return self._with([part * factor for part in self._moving])

    @property
    def _moving(self) -> tuple[Tensor, ...]:
        return self.exact, self.smooth, self.slopes

    def _with(self, moving: Sequence[Tensor]) -> Self:
        exact, smooth, slopes = moving
        return replace(self, exact=exact, smooth=smooth, slopes=slopes)

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """The records of several parts."""
        names = ("exact", "smooth", "slopes", "signs", "units")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def terms(self, held: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
        """The m and q of m α 2 − q α² for held-out units, (units, k) each, averages over records.

        Args:
            held: mask of units, (units,); E[B] is that of the records of the others.
            a: what a record's own information counts in H.
            b: what the others' average counts in H.
        """
        of = held[self.units]
        exact, smooth, slopes, signs = (
            part[of] for part in (self.exact, self.smooth, self.slopes, self.signs)
        )
        unit = torch.eye(smooth.shape[1], dtype=smooth.dtype)
        weights = torch.linalg.inv(unit + a * smooth + b * self.smooth[~of].mean(dim=0))
        turned = signs.flip(1) @ weights
        moved = -a * (turned.unsqueeze(2) @ slopes @ weights.unsqueeze(1)).squeeze(2)
        told = (weights @ (exact + unit) @ weights).diagonal(dim1=1, dim2=2)
        numbers = weights.diagonal(dim1=1, dim2=2), told + moved.prod(dim=1)
        at, count = torch.cumsum(held, 0)[self.units[of]] - 1, int(held.sum())
        return _averages(numbers[0], at, count), _averages(numbers[1], at, count)

    def floors(self, folds: Tensor, plain: Tensor, prior: GaussianPrior) -> Tensor:
        """Each unit's floor as a share of the prior's variance, for each H, (menu, units).

        Args:
            folds: which fold each unit is in, (units,); the others say its α and E[B].
            plain: each unit's floor without weights by directions, (units, probes), which those
                beyond the k leading ones keep.
            prior: of the records.
        """
        k = self.exact.shape[1]
        shares = prior.weights / prior.variance
        beyond = plain[:, k:] @ shares[k:]
        return torch.stack([self._floors(folds, shares[:k], *one) + beyond for one in _MENU])

    def _floors(self, folds: Tensor, shares: Tensor, a: float, b: float) -> Tensor:
        means, squares = torch.empty(2, len(folds), len(shares), dtype=shares.dtype)
        for fold in range(int(folds.max()) + 1):
            means[folds == fold], squares[folds == fold] = self.terms(folds == fold, a, b)
        found = torch.empty(len(folds), dtype=shares.dtype)
        for fold in range(int(folds.max()) + 1):
            held = folds == fold
            scale = _scale(means[~held], squares[~held], shares)
            found[held] = (2 * scale * means[held] - scale**2 * squares[held]) @ shares
        return found


def _averages(numbers: Tensor, units: Tensor, count: int) -> Tensor:
    sums = numbers.new_zeros(count, numbers.shape[1]).index_add_(0, units, numbers)
    return sums / torch.bincount(units, minlength=count)[:, None]


def _scale(means: Tensor, squares: Tensor, shares: Tensor) -> Tensor:
    """The α of each direction, best for these units, (k,): its own, drawn to that of all."""
    mean, square = means.mean(dim=0), squares.mean(dim=0)
    drawn = _SHARED / len(means)
    above = mean + drawn * (mean @ shares)
    below = square.clamp(min=0) + drawn * (square @ shares).clamp(min=0)
    scale: Tensor = (above / below.clamp(min=1e-300)).clamp(0, _MOST_SCALE)
    return scale


def local_information(
    batch: Batch,
    units: Tensor,
    way: Differentiation,
    layers: Sequence[Layer],
    prior: GaussianPrior,
    clips: Sequence[Release],
    generator: torch.Generator,
) -> dict[str, LocalInformation]:
    """The local information of every layer's gradient, for noise of variance one.

    Args:
        batch: the records.
        units: which unit each is of, (records,).
        way: how gradients are moved.
        layers: those asked about.
        prior: of the records.
        clips: what is clipped together before the noise; nothing without.
        generator: draws the signs.
    """
    k = min(prior.leading, LOCAL)
    leaders, points = prior.leaders[:k].to(batch.points), batch.points
    shape = len(points), 2, k
    signs = torch.randint(0, 2, shape, generator=generator).to(points) * 2 - 1

    def products(at: Batch) -> Mapping[str, JacobianProducts]:
        asked = leaders.reshape(-1, *points.shape[1:])
        return jacobian_products(at, way, asked, layers, k)

    here = products(batch)
    steps = [(_STEP * signs[:, p] @ leaders).reshape(points.shape) for p in range(2)]
    there = [products(batch.moved("point", step)) for step in steps]
    smooth, *around = (shrunk(each, layers, clips) for each in (here, *there))
    found: dict[str, LocalInformation] = {}
    for name, exact in clipped(here, layers, clips).items():
        slopes = torch.stack([(at[name] - smooth[name]) / _STEP for at in around], dim=1)
        parts = (part.cpu() for part in (exact, smooth[name], slopes, signs, units))
        found[name] = LocalInformation(*parts)
    return found
