"""Variance of a score of trials on batches that share records: incomplete U-statistics.

A mean over batches of k records, drawn at random from N, is an incomplete U-statistic. To first
order its error is that of its Hájek projection on single records (Hoeffding, "A class of
statistics with asymptotically normal distribution", 1948): with g a trial's score, x_i = E[g|i∈b]
and p = k/N the chance of a record to be in a batch b, the mean is off by Σ_i p (x_i − E x).

Let u_t be what trial t adds to the score's error: (g_t − ḡ)/T, centred within a stratum, in which
the number of trials is by design. Then S_i = Σ_{t∋i} u_t has expectation p (1 − p)(x_i − x̄), since
a record that is in crowds out another, so ψ_i = S_i/(1 − p) is the record's projection. Its square
holds the noise of the trials, too. What is left without the pairs t = t,

    V_shared = Σ_i ψ_i² − Σ_t u_t² Σ_i (a_it − ā_i)²,   a_it = 1[i∈b_t]/(1 − p_i),

with ā_i the mean over the stratum, is without bias for a score that is additive in records, and too
large rather than too small for others: Cov(g_b, g_b') is convex in |b∩b'|. V_own = Σ_t u_t² is what
the draw of finitely many batches adds. Records of one user fall together: ψ is summed over each
cluster before it is squared.

Repetitions on other splits of the same records add Cov = Σ_i ψ_i^r ψ_i^s over records in both.
That holds the adversaries fixed, which are fitted on records that another repetition scores: where
nothing is to be learned the score is bilinear in both, every pair comes in both orders, and the
covariance is twice as large; where much is to be learned, twice is conservative.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_FEWEST_OUT = 0.25
"""A record that is in more than three quarters of the batches says nothing by being in one."""


@dataclass(frozen=True)
class Draws:
    """Records, and their users, behind the trials of one game.

    Attributes:
        incidence: (clusters, trials), Σ of 1/(1 − p_i) over a trial's records in a cluster.
        spread: (trials,) Σ over clusters of the squared incidence about its stratum's mean.
        strata: (trials,) of each trial.
        inclusion: (strata, clusters) share of a stratum's trials that a cluster is in.
        sizes: (strata,) mean number of different clusters in a trial.
    """

    incidence: sparse.csr_array
    spread: FloatArray
    strata: IntArray
    inclusion: FloatArray
    sizes: FloatArray

    @classmethod
    def of(
        cls, members: IntArray, strata: IntArray, clusters: IntArray, names: int | None = None
    ) -> "Draws":
        """The design of the batches as they were drawn.

        Args:
            members: (trials, k) records of each trial's batch.
            strata: (trials,) in 0..V-1, all of which occur: numbers of trials are by design.
            clusters: (trials, k) whose each record is, in 0..names-1; the records themselves
                where each stands alone.
            names: how many clusters there are; without it, as many as ``clusters`` has.
        """
        trials, size = members.shape
        total = int(clusters.max()) + 1 if names is None else names
        played = np.bincount(strata).astype(np.float64)
        inside = _counts(members, strata, len(played)) / played[:, None]
        weights = 1 / np.maximum(1 - inside[strata[:, None], members], _FEWEST_OUT)
        places = (clusters.ravel(), np.repeat(np.arange(trials), size))
        incidence = sparse.csr_array((weights.ravel(), places), shape=(total, trials))
        share = (strata[:, None] == np.arange(len(played))) / played
        there = sparse.csr_array((incidence > 0).astype(np.float64))
        inclusion = np.asarray(there @ share).T
        return cls(
            incidence, _spread(incidence, share, strata), strata, inclusion, inclusion.sum(axis=1)
        )


@dataclass(frozen=True)
class ProjectedScores:
    """Scores of one game, and what their errors are made of.

    Attributes:
        values: (scores,).
        influence: (clusters, scores) ψ.
        shared: (scores,) V_shared.
        own: (scores,) V_own.
    """

    values: FloatArray
    influence: FloatArray
    shared: FloatArray
    own: FloatArray


def project(values: FloatArray, errors: FloatArray, draws: Draws) -> ProjectedScores:
    """Scores of one game, projected on its clusters.

    Args:
        values: (scores,).
        errors: (trials, scores) u, what each trial adds to each score's error; centred here.
        draws: of the trials.
    """
    member = draws.strata[:, None] == np.arange(len(draws.sizes))
    centred = errors - member @ ((member.T @ errors) / member.sum(axis=0)[:, None])
    influence = np.asarray(draws.incidence @ centred)
    clusters = int((draws.inclusion.sum(axis=0) > 0).sum())
    lost = clusters / max(clusters - len(draws.sizes), 1)
    squares = centred**2
    shared = lost * (influence**2).sum(axis=0) - draws.spread @ squares
    return ProjectedScores(values, influence, np.maximum(shared, 0.0), squares.sum(axis=0))


def pooled(repetitions: Sequence[ProjectedScores]) -> tuple[FloatArray, FloatArray]:
    """Mean of the scores over repetitions on the same records, and its variance, (scores,) each."""
    count = len(repetitions)
    values = np.stack([repetition.values for repetition in repetitions])
    alone = np.sum([repetition.shared + repetition.own for repetition in repetitions], axis=0)
    influence = np.stack([repetition.influence for repetition in repetitions])
    squares = (influence.sum(axis=0) ** 2).sum(axis=0) - (influence**2).sum(axis=(0, 1))
    across = np.maximum(squares, 0.0)
    variance = (alone + 2 * across) / count**2
    if count > 1:  # an adversary that is another one after every fit
        variance = np.maximum(variance, values.var(axis=0, ddof=1) / count)
    return values.mean(axis=0), np.asarray(variance)


def disjoint(repetitions: Sequence[Draws]) -> FloatArray:
    """Count the batches without a common cluster that are possible, (strata,).

    m/Σ_c p_c² with m clusters in a batch and p_c the share of batches that cluster c is in, over
    all repetitions: N/k for batches of k of N records.
    """
    sizes = np.mean([repetition.sizes for repetition in repetitions], axis=0)
    inclusion = np.mean([repetition.inclusion for repetition in repetitions], axis=0)
    trials = np.sum([np.bincount(repetition.strata) for repetition in repetitions], axis=0)
    squares = (inclusion**2).sum(axis=1)
    chance = np.maximum(sizes - squares, 0.0) / trials  # of the sample's shares about p
    return np.asarray(sizes / np.maximum(squares - chance, squares / len(inclusion.T)))


def _counts(members: IntArray, strata: IntArray, played: int) -> FloatArray:
    """Count how often each record is in a stratum's batches, (strata, records)."""
    records = int(members.max()) + 1
    places = strata[:, None] * records + members
    counts = np.bincount(places.ravel(), minlength=played * records)
    return counts.reshape(played, records).astype(np.float64)


def _spread(incidence: sparse.csr_array, share: FloatArray, strata: IntArray) -> FloatArray:
    """Compute Σ_c (a_ct − ā_c)² of every trial, with ā the mean of its stratum's trials."""
    means = np.asarray(incidence @ share)
    crossed = np.asarray(incidence.T @ means)[np.arange(len(strata)), strata]
    squares = np.asarray(incidence.multiply(incidence).sum(axis=0)).ravel()
    return np.asarray(squares - 2 * crossed + (means**2).sum(axis=0)[strata])
