"""Bootstrap over the records or users behind the trials, not over the trials themselves."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Clusters = NDArray[np.generic]


def cluster_weights(
    clusters: Clusters, replicates: int, generator: np.random.Generator
) -> FloatArray:
    """How often each trial occurs when whole clusters are drawn again, (replicates, trials).

    Args:
        clusters: (trials,) record or user behind each trial.
        replicates: how many draws.
        generator: of the draws.
    """
    names = np.unique(clusters, return_inverse=True)[1]
    count = int(names.max()) + 1
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=replicates)
    return drawn.astype(np.float64)[:, names]


def shared_weights(
    members: Clusters, labels: IntArray, replicates: int, generator: np.random.Generator
) -> tuple[FloatArray, float]:
    """Weights of trials on batches that share records, to first order in the records' weights.

    The mean over batches of k records is a U-statistic, whose error is that of its projection on
    single records: a batch moves by the sum of its records' draws. Weights are centred within
    each value, whose number of trials is by design.

    Args:
        members: (trials, k) records or users in each trial's batch.
        labels: (trials,) the value played.
        replicates: how many draws.
        generator: of the draws.

    Returns:
        Weights (replicates, trials), and how many times too large the deviation of the records'
        draws is left in them, to be multiplied to what they show.
    """
    names = np.unique(members, return_inverse=True)[1].reshape(members.shape)
    count = int(names.max()) + 1
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=replicates) - 1.0
    moved: FloatArray = np.zeros((replicates, len(members)))
    for column in names.T:
        moved += drawn[:, column]
    scale = float(np.sqrt(members.shape[1]))
    return 1 + _centred(moved, labels) / scale, scale


def single_weights(labels: IntArray, replicates: int, generator: np.random.Generator) -> FloatArray:
    """Weights (replicates, trials) as if every trial stood alone, centred within each value."""
    trials = len(labels)
    drawn = generator.multinomial(trials, np.full(trials, 1 / trials), size=replicates)
    return 1 + _centred(drawn.astype(np.float64) - 1, labels)


def repeated(members: Clusters) -> float:
    """Mean over trials of Σ_r n_r², n_r being how often record r is in the trial's batch."""
    ordered = np.sort(members, axis=1)
    same = ordered[:, :, None] == ordered[:, None, :]
    return float(same.sum(axis=(1, 2)).mean())


def _centred(weights: FloatArray, labels: IntArray) -> FloatArray:
    """Weights less their mean over the trials of the same label."""
    members = labels[:, None] == np.unique(labels)
    means = weights @ members / members.sum(axis=0)
    return np.asarray(weights - means @ members.T)
