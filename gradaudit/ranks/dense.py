"""The rank from the singular values of Û itself, for layers small enough to form it."""

import torch

from gradaudit.ranks.bases import Gap
from gradaudit.ranks.operator import ReducedU

NULL = 1e-10
"""Singular values of Û below this share of ‖im2col‖₂ count as zero."""

MOST_ELEMENTS = 40_000_000
"""Elements of Û (320 MB) above which it is never formed."""


def elements(operator: ReducedU) -> int:
    """Elements of Û."""
    return operator.columns * operator.height


def flops(operator: ReducedU) -> float:
    """About the floating-point operations of the singular values of Û, its forming included."""
    low, high = sorted((operator.columns, operator.height))
    return 6.0 * high * low**2 + low * operator.flops


def singular_values(operator: ReducedU) -> Gap:
    """The numerical rank of Û by its singular values, over ‖im2col‖₂."""
    device = operator.geometry.sources.device
    if not elements(operator):
        return Gap.at(torch.zeros(0), NULL)
    if operator.columns <= operator.height:
        matrix = operator.apply(torch.eye(operator.columns, dtype=torch.float64, device=device))
    else:
        unit = torch.eye(operator.height, dtype=torch.float64, device=device)
        matrix = operator.apply_transposed(unit)
    return Gap.at(torch.linalg.svdvals(matrix) / operator.geometry.scale, NULL)
