"""How well a game was played, with intervals clustered by the records or users behind the trials.

Every adversary, round and layer is scored on the same trials, so the bootstrap's weights are drawn
once for all of them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradaudit.attacks.inference.deal import Deal, FloatArray
from gradaudit.attacks.inference.rounds import Temperature
from gradaudit.inference.resampling import repeated, shared_weights, single_weights
from gradaudit.inference.scores import Game, Score, Statistic

METRICS = ("asr", "auroc", "advantage", "tpr_at_1pct_fpr")


@dataclass(frozen=True)
class _Weights:
    """Weights of trials whose batches share records; see ``Game._shared_error``."""

    of_records: FloatArray
    scale: float
    alone: FloatArray
    surplus: float


@dataclass(frozen=True, kw_only=True)
class _Played(Game):
    """A game scored with weights that were drawn before."""

    weights: _Weights | None = None

    def _shared_error(
        self, statistic: Statistic, value: float, generator: np.random.Generator
    ) -> float:
        if self.weights is None:
            return super()._shared_error(statistic, value, generator)
        found = self.weights
        drawn = statistic(found.of_records)
        of_records = found.scale**2 * float(np.mean((drawn - value) ** 2))
        of_trials = float(np.mean((statistic(found.alone) - value) ** 2))
        return float(np.sqrt(max(of_records - found.surplus * of_trials, of_trials)))

    def _rarest(self) -> int:
        """Trials that an average over values rests on: of more than two, each adds its own."""
        counts = np.unique(self.labels, return_counts=True)[1]
        return int(counts.min()) * (len(counts) if len(counts) > 2 else 1)


@dataclass(frozen=True)
class Scorer:
    """Scores posteriors of the trials of one deal.

    Attributes:
        deal: whose trials.
        seed: of the bootstrap.
        replicates: how many times records or users are drawn again.
        confidence: of the intervals.
    """

    deal: Deal
    seed: int = 0
    replicates: int = 400
    confidence: float = 0.95

    def scores(self, posterior: FloatArray) -> dict[str, Score]:
        """``METRICS`` of normalised log-posteriors (trials, values)."""
        game = self._game(posterior)
        asr, baseline = game.asr(), float(self.deal.prior.max())
        gains = [max(rate - baseline, 0.0) / (1 - baseline) for rate in (asr.value, *asr.interval)]
        return {
            "asr": asr,
            "auroc": game.auroc(),
            "advantage": Score(gains[0], (gains[1], gains[2])),
            "tpr_at_1pct_fpr": game.tpr_at_1pct_fpr(),
        }

    def log_loss(self, posterior: FloatArray, temperature: Temperature) -> Score:
        """Log loss in nats, after recalibration: posteriors of several rounds are too sure."""
        found = self._game(temperature.applied(posterior)).log_loss()
        return Score(found.value, (max(found.interval[0], 0.0), found.interval[1]))

    def _game(self, posterior: FloatArray) -> Game:
        return _Played(
            log_probabilities=posterior,
            labels=self.deal.observed.labels,
            clusters=self.deal.clusters,
            seed=self.seed,
            confidence=self.confidence,
            replicates=self.replicates,
            weights=self._weights,
        )

    @cached_property
    def _weights(self) -> _Weights | None:
        clusters, labels = self.deal.clusters, self.deal.observed.labels
        if clusters.ndim == 1:
            return None
        generator = np.random.default_rng(self.seed)
        of_records, scale = shared_weights(clusters, labels, self.replicates, generator)
        alone = single_weights(labels, self.replicates, generator)
        return _Weights(of_records, scale, alone, repeated(clusters) - 1)
