"""Usable information: what a bounded adversary learns of a private value from features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradaudit.families import family
from gradaudit.families.base import Features, Fitted, FloatArray, IntArray, log_mean
from gradaudit.families.calibration import calibration
from gradaudit.families.forest import FittedForest
from gradaudit.families.paper import PaperForest
from gradaudit.inference.statistics import auroc, log_odds

IGNORANT = "prior"


@dataclass(frozen=True)
class Labelled:
    """Features of batches (batches, features) with the value of each (batches,)."""

    features: Features
    labels: IntArray


@dataclass(frozen=True)
class Sets:
    """Batches of disjoint records.

    Attributes:
        folds: the adversary's, two or more; each in turn is what calibrates and chooses among
            members that were fitted on the others.
        score: what the chosen are judged on.
        independent: how many of all folds' batches have no record (or user) in common, at most;
            None where all are independent.
    """

    folds: tuple[Labelled, ...]
    score: Labelled
    independent: float | None = None

    @property
    def chosen_on(self) -> IntArray:
        """Values of the folds' batches, one fold after the other."""
        return np.concatenate([fold.labels for fold in self.folds])


@dataclass(frozen=True)
class Usable:
    """One repetition's estimate.

    Attributes:
        information: in nats; below 0 where the chosen member fails on the score batches.
        entropy: H(π) in nats, the most it can be.
        auroc: of the family that ranks the batches to choose on best, on the score batches;
            averaged over values, each against the rest.
        family: the one chosen by log loss.
        ranker: the one chosen by AUROC.
    """

    information: float
    entropy: float
    auroc: float
    family: str
    ranker: str


def usable_information(
    sets: Sets,
    prior: FloatArray,
    members: Sequence[str],
    seed: np.random.SeedSequence,
    *,
    paper: bool = False,
) -> Usable:
    """V-information from features to a value, in nats (Xu et al. 2020; Mo et al. 2021, eq. 7).

    Σ_a π(a) E[log f[g](a) | a] + H(π): the prior's cross-entropy less the log loss of the best
    family on the score batches. In turns, every fold chooses: a member is fitted on the batches of
    the other folds, and speaks of this one's. What the members of all turns say calibrates the
    family and chooses among families; of a score batch, they say the mean of their probabilities.
    So every record of the adversary's both fits and chooses, but none what it was fitted to. The
    prior is always a family, so that what is chosen may ignore the features. Batches weigh so that
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
    said = {
        name: _said(name, sets, prior, child, paper)
        for name, child in zip(names, seed.spawn(len(names)), strict=True)
    }
    believed = (
        said if paper else {name: _calibrated(each, sets, prior) for name, each in said.items()}
    )
    losses = {
        name: _loss(np.concatenate(each.folds), sets.chosen_on, prior)
        for name, each in believed.items()
    }
    chosen = min(losses, key=lambda name: losses[name])
    ranks = {name: _ranks(each, sets) for name, each in said.items()}
    ranker = max(list(ranks)[1:] or [chosen], key=lambda name: ranks[name])
    return Usable(
        information=0.0 if chosen == IGNORANT else _gained(believed[chosen], sets.score, prior),
        entropy=entropy(prior),
        auroc=macro_auroc(said[ranker].score, sets.score.labels),
        family=chosen,
        ranker=ranker,
    )


def entropy(prior: FloatArray) -> float:
    """H(π) in nats, π all positive."""
    return float(-(prior * np.log(prior)).sum())


def class_weights(labels: IntArray, prior: FloatArray) -> FloatArray:
    """Weights of batches, of mean one, under which values have the prior's shares."""
    shares = np.bincount(labels, minlength=len(prior)) / len(labels)
    return np.asarray((prior / shares)[labels])


def macro_auroc(log_probabilities: FloatArray, labels: IntArray) -> float:
    """AUROC of every value against the rest, averaged."""
    alike: NDArray[np.float64] = np.ones((1, len(labels)))
    return float(
        np.mean(
            [
                auroc(log_odds(log_probabilities, value), labels == value, alike)[0]
                for value in range(log_probabilities.shape[1])
            ]
        )
    )


@dataclass(frozen=True)
class _Said:
    """Log-probabilities of batches that a family was not fitted on, (batches, values).

    Attributes:
        folds: of each fold, by the member of the turn in which it chooses.
        turns: of the score batches, by the members of all turns.
    """

    folds: tuple[FloatArray, ...]
    turns: tuple[FloatArray, ...]

    @property
    def score(self) -> FloatArray:
        """Of the score batches: the log of the members' mean probability."""
        return log_mean(np.stack(self.turns))


def _said(
    name: str, sets: Sets, prior: FloatArray, seed: np.random.SeedSequence, paper: bool
) -> _Said:
    """What a family says."""
    folds, score = [], []
    for turn, child in enumerate(seed.spawn(len(sets.folds))):
        others = [fold for place, fold in enumerate(sets.folds) if place != turn]
        features = np.concatenate([fold.features for fold in others])
        labels = np.concatenate([fold.labels for fold in others])
        member: Fitted = family(name).fit(features, labels, len(prior), child, prior=prior)
        if paper and isinstance(member, FittedForest):
            member = PaperForest(member)
        folds.append(member.log_probabilities(sets.folds[turn].features))
        score.append(member.log_probabilities(sets.score.features))
    return _Said(tuple(folds), tuple(score))


def _calibrated(said: _Said, sets: Sets, prior: FloatArray) -> _Said:
    """What a family says, as far as it is to be believed."""
    labels = sets.chosen_on
    weights = class_weights(labels, prior)
    believe = calibration(np.concatenate(said.folds), labels, prior, weights, sets.independent)
    return _Said(tuple(map(believe, said.folds)), tuple(map(believe, said.turns)))


def _gained(believed: _Said, batches: Labelled, prior: FloatArray) -> float:
    """Nats that a family gains over the prior."""
    return entropy(prior) - _loss(believed.score, batches.labels, prior)


def _ranks(said: _Said, sets: Sets) -> float:
    """How well a family ranks the batches to choose on: in every turn, as members differ."""
    pairs = zip(said.folds, sets.folds, strict=True)
    return float(np.mean([macro_auroc(each, fold.labels) for each, fold in pairs]))


def _loss(log_probabilities: FloatArray, labels: IntArray, prior: FloatArray) -> float:
    """Log loss in nats of batches that weigh as the prior says."""
    own = log_probabilities[np.arange(len(labels)), labels]
    return float(-(class_weights(labels, prior) * own).mean())
