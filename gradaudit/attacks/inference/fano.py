"""An upper bound on any adversary's advantage from the information that the gradient carries.

Fano's inequality: whoever guesses one of m values errs with a probability e that satisfies
H₂(e) + e ln(m − 1) ≥ H(a) − I(a; g̃). The smallest such e bounds the advantage by
1 − e / (1 − p*), p* being the success of the best guess without the gradient.

It holds for an upper bound on I only. One is known where Gaussian noise was added: I(a; g̃) is at
most I(g; g̃), and that at most ½ ln det(I + Cov(g)/σ²). An information estimated from a classifier
is a lower bound; what follows from it is an estimate and no bound.

Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
(2024), equations 5 and 7, with H₂(e) kept instead of ln 2; C. Guo et al., "Analyzing privacy
leakage in machine learning via multiple hypothesis testing: a lesson from Fano" (2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

_DIRECTIONS = 16
"""Directions of the gradient's covariance that are taken one by one; the rest by their trace."""


def entropy(prior: ArrayLike) -> float:
    """H(a) in nats of a prior (values,)."""
    probabilities = np.asarray(prior, dtype=np.float64)
    held = probabilities[probabilities > 0] / probabilities.sum()
    return float(-(held * np.log(held)).sum())


def least_error(information: float, prior: ArrayLike) -> float:
    """The smallest error e with H₂(e) + e ln(m − 1) ≥ H(a) − I.

    The left side grows up to e = 1 − 1/m, where it is ln m, so the smallest e lies there.

    Args:
        information: I(a; g̃) or an upper bound on it, in nats; infinity gives no error.
        prior: of the m values, at least two.
    """
    values = len(np.asarray(prior))
    missing = entropy(prior) - information
    if missing <= 0:
        return 0.0
    highest = 1 - 1 / values
    if missing >= _uncertainty(highest, values):
        return highest
    return float(brentq(lambda error: _uncertainty(error, values) - missing, 0.0, highest))


def advantage_bound(information: float, prior: ArrayLike) -> float:
    """The largest advantage that so much information allows: max(0, 1 − e / (1 − p*)).

    Args:
        information: an upper bound on I(a; g̃) in nats.
        prior: of the values, at least two of them possible.
    """
    probabilities = np.asarray(prior, dtype=np.float64)
    best_guess = probabilities.max() / probabilities.sum()
    return max(0.0, 1 - least_error(information, prior) / (1 - float(best_guess)))


@dataclass(frozen=True)
class Channel:
    """What Gaussian noise leaves of a gradient, as far as some samples of it tell.

    The determinant of a sample covariance is too small wherever there are more elements than
    samples. So half of the samples choose a few directions Q, and the other half give the
    covariance along those and the trace of all the rest, which are estimated without such a bias;
    by Fischer's inequality and the concavity of the logarithm,

        ln det(I + C/σ²) ≤ ln det(I + QᵀCQ/σ²) + (d − q) ln(1 + (tr C − tr QᵀCQ) / ((d − q) σ²)).

    Attributes:
        along: (samples, q) gradients before the noise along Q, in units of σ.
        squares: (samples,) their squared distance from their mean, in units of σ².
        elements: d, of the gradient.
    """

    along: NDArray[np.float64]
    squares: NDArray[np.float64]
    elements: int

    @classmethod
    def of(
        cls, gram: NDArray[np.float64], elements: int, strata: NDArray[np.int64] | None = None
    ) -> Channel:
        """From the inner products of samples.

        Args:
            gram: (samples, samples) of the gradients before the noise, in units of σ; at least 8,
                in random order.
            elements: d.
            strata: (samples,) the value behind each: both halves have as many of every value, or
                a gap between values would count for more in one than in the other.
        """
        strata = np.zeros(len(gram), dtype=np.int64) if strata is None else strata
        order = np.argsort(strata, kind="stable")
        choose, measure = order[::2], order[1::2]
        values, vectors = np.linalg.eigh(_centred(gram[np.ix_(choose, choose)]))
        wanted = min(_DIRECTIONS, elements, len(choose) // 2)
        values, vectors = values[-wanted:], vectors[:, -wanted:]
        kept = values > max(values[-1], 0) * 1e-10
        basis = vectors[:, kept] / np.sqrt(values[kept])
        along = gram[np.ix_(measure, choose)] @ (basis - basis.mean(axis=0))
        return cls(along, np.diag(_centred(gram[np.ix_(measure, measure)])).copy(), elements)

    def information(self, samples: NDArray[np.int64] | None = None) -> float:
        """An upper bound on I(g; g̃) in nats, from all samples or from these."""
        along = self.along if samples is None else self.along[samples]
        squares = self.squares if samples is None else self.squares[samples]
        directions = along.shape[1]
        spread = np.atleast_2d(np.cov(along, rowvar=False)) if directions else np.zeros((0, 0))
        rest = max(float(squares.sum() / (len(squares) - 1) - np.trace(spread)), 0.0)
        others = self.elements - directions
        _, log_det = np.linalg.slogdet(np.eye(directions) + spread)
        return 0.5 * (float(log_det) + (others * math.log1p(rest / others) if others else 0.0))


def _centred(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products about the samples' own mean."""
    rows = gram.mean(axis=0, keepdims=True)
    return np.asarray(gram - rows - rows.T + gram.mean())


def _uncertainty(error: float, values: int) -> float:
    """H₂(e) + e ln(m − 1) in nats."""
    parts = [p * math.log(p) for p in (error, 1 - error) if p > 0]
    return -sum(parts) + error * math.log(values - 1)
