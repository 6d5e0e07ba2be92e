"""Where ``jacobian`` looks for piecewise linear networks, which are in ``fast``."""

from gradaudit.gradients.fast.piecewise import PiecewiseLinear

__all__ = ["PiecewiseLinear"]
