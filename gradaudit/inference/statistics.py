"""Scores of guesses as functions of the trials' weights, so that a bootstrap is one array.

Every function takes weights (replicates, trials) and gives (replicates,); NaN where a replicate
has no trial to compare.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FALSE_POSITIVES = 0.01


def success(log_probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """Whether the likeliest value is the true one, (trials,); values that tie share it."""
    likeliest = log_probabilities == log_probabilities.max(axis=1, keepdims=True)
    return np.asarray(likeliest[np.arange(len(labels)), labels] / likeliest.sum(axis=1))


def losses(log_probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """−log p of the true value, (trials,) in nats."""
    return np.asarray(-log_probabilities[np.arange(len(labels)), labels])


def weighted_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Mean of the trials' values."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights @ values / weights.sum(axis=1))


def log_odds(log_probabilities: FloatArray, value: int) -> FloatArray:
    """Log-odds of a value against all others, (trials,), exact also where p is almost 1."""
    others = np.delete(log_probabilities, value, axis=1)
    highest = others.max(axis=1)
    rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(log_probabilities[:, value] - rest)


def auroc(scores: FloatArray, positive: NDArray[np.bool_], weights: FloatArray) -> FloatArray:
    """Probability that a positive trial scores higher than a negative one, ties counting half."""
    positives, negatives = _by_score(scores, positive, weights)
    below = np.cumsum(negatives, axis=1) - negatives / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        return np.asarray((positives * below).sum(axis=1) / pairs)


def true_positives_at(
    scores: FloatArray,
    positive: NDArray[np.bool_],
    weights: FloatArray,
    limit: float = FALSE_POSITIVES,
) -> FloatArray:
    """Largest share of positives above a threshold that at most ``limit`` of negatives pass."""
    positives, negatives = _by_score(-scores, positive, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        false = np.cumsum(negatives, axis=1) / negatives.sum(axis=1, keepdims=True)
        true = np.cumsum(positives, axis=1) / positives.sum(axis=1, keepdims=True)
    allowed = np.maximum.accumulate(false, axis=1) <= limit + 1e-12
    reached = np.where(allowed, true, 0).max(axis=1)
    return np.where(np.isnan(false[:, -1] + true[:, -1]), np.nan, reached)


def _by_score(
    scores: FloatArray, positive: NDArray[np.bool_], weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Weight of positives and negatives at every distinct score, lowest first."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    ordered = weights[:, order]
    held = positive[order]
    return (
        np.add.reduceat(ordered * held, starts, axis=1),
        np.add.reduceat(ordered * ~held, starts, axis=1),
    )
