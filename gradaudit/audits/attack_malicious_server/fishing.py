"""A model that lets few records through: the last layer hears one class, or one feature of it."""

from torch import Tensor

NEGLIGIBLE = 0.01
"""Of the mean gain."""
LEAST = 1e-20
"""A residual's norm below which what is carried back may be lost to single precision's range."""


def starved(norms: Tensor, residuals: Tensor) -> float | None:
    """The share of records that the loss asks something of, and the layer hears nothing of.

    A record's gradient is its residual, the loss's gradient by the outputs, carried back to the
    layer. However well a model has learnt some records, what is carried back of one unit of the
    residual differs by small factors between them. Where the weights of all classes but one are
    taken away, only records of that class carry anything back, and in a batch with one of them the
    update is that record's.

    Source: Y. Wen et al., "Fishing for user data in large-batch federated learning via gradient
    magnification" (2022), sections 3.1 and 3.2.

    Args:
        norms: (records,) ‖g_i‖ of the layer.
        residuals: (records,) norms of the loss's gradient by the outputs.

    Returns:
        The share; None where the loss asks nothing of any record, or the layer has no gradient.
    """
    asked = residuals > LEAST
    gains = norms[asked] / residuals[asked]
    if not len(gains) or not gains.any():
        return None
    return float((gains < NEGLIGIBLE * gains.mean()).double().mean())


def concentration(weight: Tensor) -> float | None:
    """How far the squared norms of the last layer's rows lie in one of them: 0 where all are equal.

    (1 − n/C)/(1 − 1/C) with n = (Σ‖w_c‖²)²/Σ‖w_c‖⁴ rows in effect, of C: 1 where one class has all
    weights, as fishing for a class or for a feature of it has them.

    Args:
        weight: (classes, inputs).

    Returns:
        The share; None of a single row, or where all are zero.
    """
    squares = weight.double().square().sum(dim=1)
    if len(squares) < 2 or not squares.any():
        return None
    effective = squares.sum() ** 2 / squares.square().sum()
    return float((1 - effective / len(squares)) / (1 - 1 / len(squares)))
