"""Gradients that are left in factors.

A row is the gradient G = Σ_t δ_t a_tᵀ of one record. As factors it takes T(out + in) numbers
instead of out · in, and inner products, norms, single elements and means over batches of records
can be had without forming it: ⟨G, H⟩ = Σ_{t,s} ⟨δ_t, ε_s⟩⟨a_t, b_s⟩.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.sharing.rows import QUICK_BYTES, Rows

_PAIRS = 1 << 22
"""Inner products of factors that are held at a time."""


@dataclass(frozen=True)
class Factors(Rows):
    """Gradients Δ Aᵀ, not formed.

    Attributes:
        left: Δ (rows, out, positions).
        right: A (rows, in, positions).
    """

    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.left)

    @property
    def device(self) -> torch.device:
        """Of the factors."""
        return self.left.device

    @property
    def width(self) -> int:
        """T(out + in)."""
        return self.left[0].numel() + self.right[0].numel()

    @property
    def elements(self) -> int:
        """As many as out times in."""
        return self.left.shape[1] * self.right.shape[1]

    def dense(self) -> Tensor:
        """(rows, out · in)."""
        if self.left.shape[2] == 1:
            return (self.left * self.right.mT).flatten(1)
        return (self.left @ self.right.mT).flatten(1)

    def columns(self, elements: Tensor) -> Tensor:
        """(rows, chosen), without the others."""
        inputs = self.right.shape[1]
        out, into = elements // inputs, elements % inputs
        return (self.left[:, out] * self.right[:, into]).sum(dim=2)

    def squares(self) -> Tensor:
        """(rows,) float64, of T × T inner products."""
        left, right = self.left.double(), self.right.double()
        return ((left.mT @ left) * (right.mT @ right)).sum(dim=(1, 2))

    def scaled(self, factors: Tensor) -> "Factors":
        """Each row times its factor."""
        return Factors(self.left * factors[:, None, None].to(self.left), self.right)

    def gram(self, other: "Factors") -> Tensor:
        """Inner products with other gradients, (rows, others) float64."""
        pairs = self.left.shape[2] * len(other) * other.left.shape[2]
        step = max(1, _PAIRS // pairs)
        parts = [
            _products(self.left[i : i + step], other.left, self.right[i : i + step], other.right)
            for i in range(0, len(self), step)
        ]
        return torch.cat(parts)

    def mix(self, rows: Tensor, weights: Tensor, into: Tensor) -> None:
        """As products of the stacked factors."""
        rows, weights = rows.to(self.device), weights.to(self.left)
        each = (self.elements + rows.shape[1] * self.width) * self.left.element_size()
        step = max(1, QUICK_BYTES // each)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            left = _stacked(self.left[rows[part]] * weights[part, :, None, None])
            right = _stacked(self.right[rows[part]]).mT
            if into.device == self.device:
                torch.bmm(left, right, out=into[part].view(-1, left.shape[1], right.shape[2]))
            else:
                into[part] = (left @ right).flatten(1)

    @classmethod
    def joined(cls, parts: "list[Factors]") -> "Factors":
        """One after the other."""
        return cls(
            torch.cat([part.left for part in parts]), torch.cat([part.right for part in parts])
        )


def _stacked(factors: Tensor) -> Tensor:
    """(sums, terms, width, positions) to (sums, width, terms · positions)."""
    if factors.shape[3] == 1:
        return factors[..., 0].mT
    return factors.transpose(1, 2).flatten(2)


def _products(left: Tensor, others: Tensor, right: Tensor, beside: Tensor) -> Tensor:
    found = _all_pairs(left.double(), others.double())
    found *= _all_pairs(right.double(), beside.double())
    if found.shape[1] == found.shape[3] == 1:
        return found[:, 0, :, 0]
    return found.sum(dim=(1, 3))


def _all_pairs(one: Tensor, other: Tensor) -> Tensor:
    """(n, width, T) and (m, width, S) to inner products (n, T, m, S)."""
    flat, beside = one.mT.flatten(0, 1), other.mT.flatten(0, 1)
    return (flat @ beside.T).view(len(one), one.shape[2], len(other), other.shape[2])
