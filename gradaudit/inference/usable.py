"""Usable information: what a bounded adversary learns of a private value from features."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradaudit.families import family
from gradaudit.families.base import Features, Fitted, FloatArray, IntArray
from gradaudit.families.forest import FittedForest
from gradaudit.families.paper import PaperForest
from gradaudit.families.temper import temper
from gradaudit.inference.statistics import auroc, log_odds

IGNORANT = "prior"


@dataclass(frozen=True)
class Labelled:
    """Features of batches (batches, features) with the value of each (batches,).

    ``independent`` is how many of the batches have no record (or user) in common, at most; None
    where all are independent.
    """

    features: Features
    labels: IntArray
    independent: float | None = None


@dataclass(frozen=True)
class Sets:
    """Batches of disjoint records: to fit members on, to choose among them, to score the chosen."""

    fit: Labelled
    choose: Labelled
    score: Labelled


@dataclass(frozen=True)
class Usable:
    """One repetition's estimate.

    Attributes:
        information: in nats; below 0 where the chosen member fails on the score batches.
        entropy: H(π) in nats, the most it can be.
        auroc: of the member that ranks the choose batches best, on the score batches; averaged
            over values, each against the rest.
        family: the member chosen by log loss.
        ranker: the member chosen by AUROC.
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
    member, which is fitted on the fit batches, calibrated and chosen on the choose batches, and
    judged on the score batches. The prior is always a member, so that what is chosen may ignore
    the features. Batches weigh so that values have the shares of the prior.

    Args:
        sets: the batches; every value occurs in each set.
        prior: (values,) π, all positive.
        members: names of families.
        seed: of the fits.
        paper: take the softmax of a forest's votes for its probabilities, and calibrate nothing
            (Mo et al. 2021, eq. 8).
    """
    fitted = _fitted(sets, prior, members, seed)
    calibrated = {name: _calibrated(each, sets.choose, paper) for name, each in fitted.items()}
    losses = {
        name: _loss(each.log_probabilities(sets.choose.features), sets.choose.labels, prior)
        for name, each in calibrated.items()
    }
    chosen = min(losses, key=lambda name: losses[name])
    ranks = {name: _ranks(each, sets.choose) for name, each in fitted.items()}
    ranker = max(list(ranks)[1:] or [chosen], key=lambda name: ranks[name])
    return Usable(
        information=0.0 if chosen == IGNORANT else _gained(calibrated[chosen], sets.score, prior),
        entropy=entropy(prior),
        auroc=_ranks(fitted[ranker], sets.score),
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


def _fitted(
    sets: Sets, prior: FloatArray, members: Sequence[str], seed: np.random.SeedSequence
) -> "dict[str, _Remembering]":
    """The members by name: the prior first, so that it is chosen where none is better."""
    names = dict.fromkeys((IGNORANT, *members))
    return {
        name: _Remembering(
            family(name).fit(sets.fit.features, sets.fit.labels, len(prior), child, prior=prior)
        )
        for name, child in zip(names, seed.spawn(len(names)), strict=True)
    }


@dataclass(frozen=True)
class _Remembering(Fitted):
    """A member that is asked about the same batches several times, and looks at them once."""

    inner: Fitted
    said: dict[int, tuple[Features, FloatArray]] = field(default_factory=dict)

    @property
    def prior(self) -> FloatArray:  # type: ignore[override]
        """The inner member's."""
        return self.inner.prior

    def log_probabilities(self, features: Features) -> FloatArray:
        """The inner member's, (rows, classes)."""
        if id(features) not in self.said:
            self.said[id(features)] = features, self.inner.log_probabilities(features)
        return self.said[id(features)][1]


def _calibrated(fitted: _Remembering, choose: Labelled, paper: bool) -> Fitted:
    """A member as it is judged."""
    if paper:
        forest = fitted.inner
        return PaperForest(forest) if isinstance(forest, FittedForest) else fitted
    weights = class_weights(choose.labels, fitted.prior)
    return temper(fitted, choose.features, choose.labels, weights, choose.independent)


def _gained(member: Fitted, batches: Labelled, prior: FloatArray) -> float:
    """Nats that a member gains over the prior."""
    found = member.log_probabilities(batches.features)
    return entropy(prior) - _loss(found, batches.labels, prior)


def _ranks(fitted: Fitted, batches: Labelled) -> float:
    return macro_auroc(fitted.log_probabilities(batches.features), batches.labels)


def _loss(log_probabilities: FloatArray, labels: IntArray, prior: FloatArray) -> float:
    """Log loss in nats of batches that weigh as the prior says."""
    own = log_probabilities[np.arange(len(labels)), labels]
    return float(-(class_weights(labels, prior) * own).mean())
