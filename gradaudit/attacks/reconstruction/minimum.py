"""What is minimised, by rows of points, and where minimisations ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (rows, n) to values (rows,) and gradients (rows, n)."""


@dataclass(frozen=True)
class Minimum:
    """Where each problem ended.

    Attributes:
        points: (rows, n).
        values: (rows,); NaN where a problem could not be evaluated at its start.
        diverged: (rows,) problems that left the finite numbers.
        iterations: (rows,) steps taken.
        evaluations: (rows,) evaluations spent.
    """

    points: Tensor
    values: Tensor
    diverged: Tensor
    iterations: Tensor
    evaluations: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Minimum]) -> Minimum:
        """The problems of several blocks, in order."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
