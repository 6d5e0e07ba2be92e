"""How well somebody guesses a private value, with intervals clustered by record or user."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from gradaudit.inference.resampling import (
    Clusters,
    FloatArray,
    IntArray,
    cluster_weights,
    repeated,
    shared_weights,
    single_weights,
)
from gradaudit.inference.statistics import (
    auroc,
    log_odds,
    losses,
    success,
    true_positives_at,
    weighted_mean,
)

REPLICATES = 500
Statistic = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Score:
    """A number and its interval."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Game:
    """Trials of guessing a value.

    Attributes:
        log_probabilities: (trials, values) posterior of the adversary.
        labels: (trials,) the true value.
        clusters: (trials,) the record or user behind each trial, or (trials, k) all records or
            users of the batch behind it.
        seed: of the bootstrap.
        confidence: of the intervals.
        replicates: how many times records or users are drawn again.
    """

    log_probabilities: FloatArray
    labels: IntArray
    clusters: Clusters
    seed: int | np.random.SeedSequence = 0
    confidence: float = 0.95
    replicates: int = REPLICATES

    def asr(self) -> Score:
        """Attack success rate: how often the likeliest value is the true one (ties shared)."""
        values = success(self.log_probabilities, self.labels)
        return self._rate(lambda weights: weighted_mean(values, weights), len(self.labels))

    def advantage(self, baseline: float) -> Score:
        """max(p − p*, 0)/(1 − p*), p the success rate (Li et al. 2024, section 5.1.2).

        Args:
            baseline: p* < 1, the success of guessing without the gradient: the largest prior.
        """
        rate = self.asr()
        low, value, high = (
            max(at - baseline, 0) / (1 - baseline)
            for at in (rate.interval[0], rate.value, rate.interval[1])
        )
        return Score(value, (low, high))

    def auroc(self) -> Score:
        """Area under the ROC curve, of each value against the rest, averaged over values."""
        return self._rate(lambda weights: self._one_against_rest(auroc, weights), self._rarest())

    def tpr_at_1pct_fpr(self, positive: int | None = None) -> Score:
        """True positive rate where 1 % of the others are taken for positive.

        Args:
            positive: the value that counts as positive (1 for members); without it, the average
                over all of them.
        """
        return self._rate(
            lambda weights: self._one_against_rest(true_positives_at, weights, positive),
            self._rarest(),
        )

    def log_loss(self) -> Score:
        """Mean of −log p of the true value, in nats."""
        values = losses(self.log_probabilities, self.labels)
        value, low, high = self._interval(lambda weights: weighted_mean(values, weights))
        return Score(value, (low, high))

    def all(self, baseline: float, positive: int | None = None) -> dict[str, Score]:
        """Every score by its metric's name."""
        return {
            "asr": self.asr(),
            "auroc": self.auroc(),
            "advantage": self.advantage(baseline),
            "tpr_at_1pct_fpr": self.tpr_at_1pct_fpr(positive),
            "log_loss": self.log_loss(),
        }

    def _one_against_rest(
        self,
        statistic: Callable[..., FloatArray],
        weights: FloatArray,
        positive: int | None = None,
    ) -> FloatArray:
        present = np.unique(self.labels) if positive is None else [positive]
        each = [
            statistic(log_odds(self.log_probabilities, int(value)), self.labels == value, weights)
            for value in present
        ]
        return np.asarray(np.mean(each, axis=0))

    def _rarest(self) -> int:
        """Trials of the rarest value that was played."""
        return int(np.unique(self.labels, return_counts=True)[1].min())

    def _rate(self, statistic: Statistic, trials: int) -> Score:
        """A score in [0, 1], nowhere nearer to 0 or 1 than n independent trials can prove.

        Beyond that the interval is Clopper and Pearson's of n trials that all came out alike; one
        independent trial proves nothing whatever the score.
        """
        value, low, high = self._interval(statistic)
        low, high = max(low, 0.0), min(high, 1.0)
        slack = 1 - ((1 - self.confidence) / 2) ** (1 / self._independent(trials))
        if value > 1 - slack:
            low = min(low, 1 - slack)
        if value < slack:
            high = max(high, slack)
        return Score(value, (low, high))

    def _independent(self, trials: int) -> int:
        """How many trials have no record or user in common, at most."""
        share = trials / len(self.labels)
        there, each = len(np.unique(self.clusters)), _distinct(self.clusters)
        return max(1, min(trials, int(there * share / each)))

    def _interval(self, statistic: Statistic) -> tuple[float, float, float]:
        """The statistic of the trials, and its interval."""
        value = float(statistic(np.ones((1, len(self.labels))))[0])
        generator = np.random.default_rng(self.seed)
        tail = (1 - self.confidence) / 2
        if self.clusters.ndim == 1:
            drawn = statistic(cluster_weights(self.clusters, self.replicates, generator))
            low, high = np.nanquantile(drawn, [tail, 1 - tail])
        else:
            error = self._shared_error(statistic, value, generator)
            low, high = (value - float(ndtri(1 - tail)) * error * side for side in (1, -1))
        return value, min(float(low), value), max(float(high), value)

    def _shared_error(
        self, statistic: Statistic, value: float, generator: np.random.Generator
    ) -> float:
        """Standard error where batches share records.

        Variance over redrawn records counts a trial's own noise once for each of its records;
        all but one are taken off.
        """
        weights, scale = shared_weights(self.clusters, self.labels, self.replicates, generator)
        of_records = scale**2 * float(np.mean((statistic(weights) - value) ** 2))
        alone = single_weights(self.labels, self.replicates, generator)
        of_trials = float(np.mean((statistic(alone) - value) ** 2))
        surplus = (repeated(self.clusters) - 1) * of_trials
        return float(np.sqrt(max(of_records - surplus, of_trials)))


def _distinct(clusters: Clusters) -> float:
    """Mean number of different records or users behind a trial."""
    if clusters.ndim == 1:
        return 1.0
    return 1 + float((np.diff(np.sort(clusters, axis=1), axis=1) != 0).sum(axis=1).mean())
