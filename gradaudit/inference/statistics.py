"""Scores of guesses, and what each trial adds to their errors."""

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


def log_odds(log_probabilities: FloatArray, value: int) -> FloatArray:
    """Log-odds of a value against all others, (trials,), exact also where p is almost 1."""
    others = np.delete(log_probabilities, value, axis=1)
    highest = others.max(axis=1)
    rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(log_probabilities[:, value] - rest)


def auroc(scores: FloatArray, positive: NDArray[np.bool_], weights: FloatArray) -> FloatArray:
    """Probability that a positive trial scores higher than a negative one, ties counting half.

    Args:
        scores: (trials,).
        positive: (trials,).
        weights: (replicates, trials) of the trials.

    Returns:
        (replicates,); NaN where a replicate has no pair to compare.
    """
    positives, negatives = _by_score(scores, positive, weights)
    below = np.cumsum(negatives, axis=1) - negatives / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        return np.asarray((positives * below).sum(axis=1) / pairs)


def placements(scores: FloatArray, positive: NDArray[np.bool_]) -> FloatArray:
    """Share of the other side that each trial is on the right side of, (trials,), ties half.

    The mean over positives, and that over negatives, is the AUROC; less that mean it is what a
    trial adds to the AUROC's error (DeLong, DeLong and Clarke-Pearson 1988).
    """
    found = np.empty(len(scores))
    for side in (True, False):
        others = np.sort(scores[positive != side])
        own = scores[positive == side]
        below = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right")
        share = below / (2 * len(others))
        found[positive == side] = share if side else 1 - share
    return found


def above(scores: FloatArray, positive: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Which positive trials are above a threshold that at most ``share`` of negatives pass."""
    negatives = np.sort(scores[~positive])[::-1]
    allowed = int(share * len(negatives) + 1e-9)
    least = negatives[allowed] if allowed < len(negatives) else -np.inf
    return np.asarray(scores[positive] > least)


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
