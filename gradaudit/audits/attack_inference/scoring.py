"""How well a game was played over its repetitions, with intervals clustered by record or user."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradaudit.audits.attack_inference.rounds import Temperature
from gradaudit.audits.attack_inference.split import FloatArray, GameSplit
from gradaudit.games.scores import Score, Scores, Trials, gain
from gradaudit.statistics import CONFIDENCE
from gradaudit.statistics.u_statistic import Draws

METRICS = ("asr", "auroc", "advantage", "tpr_at_1pct_fpr")
GAINS = ("auroc_gain", "advantage_gain")


@dataclass(frozen=True)
class Scorer:
    """Scores posteriors of the trials of a game's repetitions."""

    splits: Sequence[GameSplit]
    confidence = CONFIDENCE

    def scores(self, posteriors: Sequence[FloatArray]) -> dict[str, Score]:
        """``METRICS`` of normalised log-posteriors (trials, values) of each repetition."""
        rates = self._scores.rates(posteriors)
        return {**rates, "advantage": self._advantage(rates["asr"])}

    def gains(self, scores: dict[str, Score], floor: dict[str, Score]) -> dict[str, Score]:
        """``GAINS``: how far scores are above those for the secret shuffled among the records.

        The gain in advantage is that in success over 1 − p*, which no truncation at zero bends.
        """
        return {
            "auroc_gain": gain(scores["auroc"], floor["auroc"]),
            "advantage_gain": gain(scores["asr"], floor["asr"], 1 - self.blind),
        }

    def log_loss(
        self, posteriors: Sequence[FloatArray], temperatures: Sequence[Temperature]
    ) -> Score:
        """Log loss in nats, after recalibration: posteriors of several rounds are too sure."""
        pairs = zip(posteriors, temperatures, strict=True)
        return self._scores.log_loss([heat.applied(posterior) for posterior, heat in pairs])

    @property
    def trials(self) -> int:
        """Number of trials of all repetitions."""
        return sum(len(split.observed.labels) for split in self.splits)

    @property
    def blind(self) -> float:
        """p*, the success of the best guess without the gradient."""
        return float(self.splits[0].prior.max())

    def _advantage(self, rate: Score) -> Score:
        """max(p − p*, 0)/(1 − p*), p the success rate (Li et al. 2024, section 5.1.2)."""
        low, value, high = (
            max(at - self.blind, 0.0) / (1 - self.blind)
            for at in (rate.interval[0], rate.value, rate.interval[1])
        )
        return Score(value, (low, high))

    @cached_property
    def _scores(self) -> Scores:
        names = max(int(split.clusters.max()) for split in self.splits) + 1
        trials = []
        for split in self.splits:
            labels, members = split.observed.labels, split.observed.indices
            strata = np.unique(labels, return_inverse=True)[1].astype(np.int64)
            if split.candidates is not None:  # they are dealt anew to every trial: one stratum
                strata, members = np.zeros_like(labels), split.clusters
            trials.append(Trials(labels, Draws.of(members, strata, split.clusters, names)))
        return Scores(trials)
