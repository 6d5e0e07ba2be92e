"""Usable information about a private value in features, for a bounded adversary.

A worker process makes one estimate: no torch to load in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.core.randomness import Seed, rng, sequence
from gradaudit.core.statistics.laws import entropy
from gradaudit.executors.workers import one_thread
from gradaudit.families import family
from gradaudit.families.base import (
    Features,
    Fitted,
    FloatArray,
    IntArray,
    Training,
    class_weights,
    log_mean,
)
from gradaudit.families.calibration import calibration
from gradaudit.families.forest import FittedForest, PaperForest
from gradaudit.games.scores import auroc, log_odds, roc
from gradaudit.progress import Advance

IGNORANT = "prior"
_PARTS = 3
RATES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""False positive rates at which ROC curves are kept."""


@dataclass(frozen=True)
class LabelledFeatures:
    """The features of batches (batches, features), with each batch's value (batches,)."""

    features: Features
    labels: IntArray


@dataclass(frozen=True)
class BatchSets:
    """Batches of disjoint records.

    Attributes:
        folds: the adversary's, two or more; each in turn is what calibrates and chooses among
            members that were fitted on the others.
        score: what the chosen are judged on.
        independent: about how many of all folds' batches are worth an independent one; None where
            all do.
    """

    folds: tuple[LabelledFeatures, ...]
    score: LabelledFeatures
    independent: float | None = None


@dataclass(frozen=True)
class HeldOutScores:
    """Log-probabilities of batches that a family was not fitted on, (batches, values).

    Attributes:
        folds: of each fold, by the member of the turn in which it chooses.
        turns: of the score batches, by the members of all turns.
    """

    folds: tuple[FloatArray, ...]
    turns: tuple[FloatArray, ...]

    @property
    def score(self) -> FloatArray:
        """Average the members' probabilities of the score batches, and take logarithms."""
        return log_mean(np.stack(self.turns))


@dataclass(frozen=True)
class FittedFamilies:
    """The fitted predictive families of one repetition.

    Attributes:
        sets: the batches; every value occurs in each set.
        prior: (values,) all positive.
        paper: take the softmax of a forest's votes for its probabilities, and calibrate nothing.
    """

    sets: BatchSets
    prior: FloatArray
    paper: bool = False

    def held_out_scores(self, name: str, seed: np.random.SeedSequence) -> HeldOutScores:
        """A family's log-probabilities of every fold, by the member fitted on the other folds."""
        folds, score, read = [], [], self._read_by(name)
        for turn, fold in enumerate(read.sets.folds):
            member = self._fitted(name, read._turns[turn], sequence(seed, "turn", turn))
            folds.append(member.log_probabilities(fold.features))
            score.append(member.log_probabilities(read.sets.score.features))
        return HeldOutScores(tuple(folds), tuple(score))

    def calibrated(self, scores: HeldOutScores) -> HeldOutScores:
        """A family's log-probabilities after calibration."""
        if self.paper:
            return scores
        labels = np.concatenate([fold.labels for fold in self.sets.folds])
        weights, answers = class_weights(labels, self.prior), np.concatenate(scores.folds)
        calibrate = calibration(answers, labels, self.prior, weights, self.sets.independent)
        return HeldOutScores(
            tuple(map(calibrate, scores.folds)), tuple(map(calibrate, scores.turns))
        )

    def _read_by(self, name: str) -> Self:
        """Select the features that a family reads."""
        reads, score = family(name).reads, self.sets.score
        if (read := reads(score.features)) is score.features:
            return self
        folds = (replace(fold, features=reads(fold.features)) for fold in self.sets.folds)
        sets = replace(self.sets, folds=tuple(folds), score=replace(score, features=read))
        return replace(self, sets=sets)

    @cached_property
    def _turns(self) -> list[Training]:
        """Make the training set of each turn: all folds but one."""
        folds = self.sets.folds
        return [self._training([*folds[:turn], *folds[turn + 1 :]]) for turn in range(len(folds))]

    def _training(self, folds: Sequence[LabelledFeatures]) -> Training:
        features = np.concatenate([fold.features for fold in folds])
        labels = np.concatenate([fold.labels for fold in folds])
        return Training.of(features, labels, len(self.prior), self.prior)

    def _fitted(self, name: str, training: Training, seed: np.random.SeedSequence) -> Fitted:
        member = family(name).fit_on(training, seed)
        if self.paper and isinstance(member, FittedForest):
            return PaperForest(member)
        return member


class UsableInformation(NamedTuple):
    """The usable information that one repetition estimates.

    Attributes:
        information: in nats; below 0 where the chosen member fails on the score batches.
        entropy: H(π) in nats, the most it can be.
        auroc: of the family that ranks the batches to choose on best, on the score batches;
            averaged over values, each against the rest.
        family: the one chosen by log loss.
        ranker: the one chosen by AUROC.
        roc: true positive rates of ``ranker`` at ``RATES``, averaged as ``auroc`` is.
    """

    information: float
    entropy: float
    auroc: float
    family: str
    ranker: str
    roc: tuple[float, ...] = ()


def usable_information(
    sets: BatchSets,
    prior: FloatArray,
    members: Sequence[str],
    seed: Seed,
    *,
    paper: bool = False,
) -> UsableInformation:
    """Estimate V-information from sets of batches.

    In turns, every fold chooses: a member is fitted on the batches of
    the other folds, and speaks of this one's. What the members of all turns say calibrates the
    family and chooses among families; of a score batch, they say the mean of their probabilities.
    So each of the adversary's records fits some members and helps to choose among others, never
    among those that it fitted. The prior is always a family, so that the choice may ignore the
    features. Batches weigh so that
    values have the shares of the prior.

    Args:
        sets: the batches; every value occurs in each set.
        prior: (values,) π, all positive.
        members: names of families.
        seed: of the fits.
        paper: take the softmax of a forest's votes for its probabilities, and calibrate nothing
            (Mo et al. 2021, eq. 8).
    """
    names = dict.fromkeys((IGNORANT, *members))
    families = FittedFamilies(sets, prior, paper)
    held_out = {
        name: families.held_out_scores(name, sequence(seed, "family", name)) for name in names
    }
    calibrated = {name: families.calibrated(each) for name, each in held_out.items()}
    labels = np.concatenate([fold.labels for fold in sets.folds])
    losses = {
        name: _loss(np.concatenate(each.folds), labels, prior) for name, each in calibrated.items()
    }
    chosen = min(losses, key=lambda name: losses[name])
    ranks = {name: _ranks(each, sets) for name, each in held_out.items()}
    ranker = max(list(ranks)[1:] or [chosen], key=lambda name: ranks[name])
    gained = _gained(calibrated[chosen].score, sets.score, prior)
    return UsableInformation(
        information=0.0 if chosen == IGNORANT else gained,
        entropy=entropy(prior),
        auroc=macro_auroc(held_out[ranker].score, sets.score.labels),
        family=chosen,
        ranker=ranker,
        roc=macro_roc(held_out[ranker].score, sets.score.labels),
    )


def v_information(
    features: ArrayLike,
    values: ArrayLike,
    sizes: Sequence[int] | None = None,
    *,
    prior: ArrayLike | None = None,
    members: Sequence[str] = ("forest", "logistic"),
    seed: Seed = 0,
    paper: bool = False,
    independent: float | None = None,
) -> UsableInformation:
    """Estimate the V-information about a value in features, by cross-fitting.

    I_V = H(π) + Σ_a π(a) E[log f[g](a) | a], in nats: the prior's entropy less the log loss, on
    rows kept apart, of the best member f of a predictive family V (Xu et al. 2020; Mo et al. 2021,
    eq. 7; Mo et al. 2022, eq. 1). Below 0 where the chosen member fails on those rows.

    >>> values = np.arange(120) % 2
    >>> features = np.random.default_rng(0).normal(size=(120, 3)) + 4 * values[:, None]
    >>> found = v_information(features, values, members=["logistic"])
    >>> 0.6 < found.information < found.entropy < 0.7, found.family
    (True, 'logistic')

    Args:
        features: (rows, features); rows must share no record across folds.
        values: (rows,) codes from 0 on; every value occurs in each fold.
        sizes: rows of each fold, in order, the last of which scores; None draws three like parts.
        prior: (values,) π, all positive; None is uniform.
        members: names of predictive families: ``forest``, ``mlp``, ``logistic`` or a plug-in's.
        seed: of the fits, and of the folds where they are drawn.
        paper: take the softmax of a forest's votes, uncalibrated (Mo et al. 2021, eq. 8).
        independent: effective number of independent rows of all folds; None where all are.
    """
    features, values = np.asarray(features), np.asarray(values)
    if sizes is None:
        order = rng(seed, "folds").permutation(len(values))
        order = order[np.argsort(values[order], kind="stable")]
        parts = [order[number::_PARTS] for number in range(_PARTS)]
        order, sizes = np.concatenate(parts), [len(part) for part in parts]
        features, values = features[order], values[order]
    ends = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(features, ends), np.split(values, ends), strict=True)
    *folds, score = (LabelledFeatures(*pair) for pair in pairs)
    count = int(values.max()) + 1
    shares = np.full(count, 1 / count) if prior is None else np.asarray(prior, float)
    sets = BatchSets(tuple(folds), score, independent)
    return usable_information(sets, shares, members, seed, paper=paper)


def macro_auroc(log_probabilities: FloatArray, labels: IntArray) -> float:
    """Average the AUROC of every value against the rest."""
    values = range(log_probabilities.shape[1])
    areas = [auroc(log_odds(log_probabilities, v), labels == v).value for v in values]
    return float(np.mean(areas))


def macro_roc(log_probabilities: FloatArray, labels: IntArray) -> tuple[float, ...]:
    """Average the true positive rates at ``RATES`` of every value against the rest."""
    values = range(log_probabilities.shape[1])
    curves = [roc(log_odds(log_probabilities, v), labels == v, np.array(RATES)) for v in values]
    return tuple(map(float, np.mean(curves, axis=0)))


def _gained(log_probabilities: FloatArray, batches: LabelledFeatures, prior: FloatArray) -> float:
    return entropy(prior) - _loss(log_probabilities, batches.labels, prior)


def _ranks(scores: HeldOutScores, sets: BatchSets) -> float:
    """Compute how well a family ranks the held-out batches in each turn."""
    pairs = zip(scores.folds, sets.folds, strict=True)
    return float(np.mean([macro_auroc(each, fold.labels) for each, fold in pairs]))


def _loss(log_probabilities: FloatArray, labels: IntArray, prior: FloatArray) -> float:
    """Compute the log loss in nats of batches weighted by the prior."""
    of_labels = log_probabilities[np.arange(len(labels)), labels]
    return float(-(class_weights(labels, prior) * of_labels).mean())


FeatureRows = NDArray[np.float32]


@dataclass(frozen=True)
class Estimator:
    """The estimator of V-information: its predictive families and its prior.

    Attributes:
        prior: ``uniform``, or ``empirical`` for the frequencies among the adversary's records.
        paper: the softmax of a forest's votes, uncalibrated (Mo et al. 2021, eq. 8).
    """

    members: tuple[str, ...]
    prior: str = "uniform"
    paper: bool = False

    def of(self, repetition: Repetition) -> NDArray[np.float64]:
        """Return the prior in a repetition, (values,)."""
        count = len(repetition.frequencies)
        return repetition.frequencies if self.prior == "empirical" else np.full(count, 1 / count)


def estimate(
    rows: FeatureRows,
    repetition: Repetition,
    adversary: Estimator,
    seed: np.random.SeedSequence,
    advance: Advance,
) -> UsableInformation:
    """Estimate once, on one thread; an estimate is one unit of work."""
    with one_thread():
        usable = v_information(
            rows,
            np.concatenate([batches.labels for batches in repetition.batches]),
            [len(batches.labels) for batches in repetition.batches],
            prior=adversary.of(repetition),
            members=adversary.members,
            seed=seed,
            paper=adversary.paper,
            independent=repetition.independent,
        )
    advance(1)
    return usable
