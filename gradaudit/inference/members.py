"""What the members of a family say of batches that they were not fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradaudit.families import family
from gradaudit.families.base import Features, Fitted, FloatArray, IntArray, Training, log_mean
from gradaudit.families.calibration import calibration
from gradaudit.families.forest import FittedForest, PaperForest
from gradaudit.randomness import sequence


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
        independent: how many of all folds' batches tell something of their own, about; None where
            all do.
    """

    folds: tuple[Labelled, ...]
    score: Labelled
    independent: float | None = None

    @property
    def chosen_on(self) -> IntArray:
        """Values of the folds' batches, one fold after the other."""
        return np.concatenate([fold.labels for fold in self.folds])


@dataclass(frozen=True)
class Said:
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


@dataclass(frozen=True)
class Families:
    """Speaks for families.

    Attributes:
        sets: the batches; every value occurs in each set.
        prior: (values,) all positive.
        paper: take the softmax of a forest's votes for its probabilities, and calibrate nothing.
    """

    sets: Sets
    prior: FloatArray
    paper: bool = False

    def said(self, name: str, seed: np.random.SeedSequence) -> Said:
        """What a family says: in each turn, a member that was fitted on the other folds."""
        folds, score = [], []
        for turn, fold in enumerate(self.sets.folds):
            member = self._fitted(name, self._turns[turn], sequence(seed, "turn", turn))
            folds.append(member.log_probabilities(fold.features))
            score.append(member.log_probabilities(self.sets.score.features))
        return Said(tuple(folds), tuple(score))

    def said_by_one(self, name: str, seed: np.random.SeedSequence) -> Said:
        """What a member says that was fitted on the first fold alone; of the others, and once."""
        first, *others = self.sets.folds
        member = self._fitted(name, self._training([first]), sequence(seed, "first fold alone"))
        of_others = tuple(member.log_probabilities(fold.features) for fold in others)
        return Said(of_others, (member.log_probabilities(self.sets.score.features),))

    def believed(self, said: Said) -> Said:
        """What a family says, as far as it is to be believed."""
        if self.paper:
            return said
        labels = np.concatenate([fold.labels for fold in self.sets.folds[-len(said.folds) :]])
        believe = calibration(
            np.concatenate(said.folds),
            labels,
            self.prior,
            class_weights(labels, self.prior),
            self.sets.independent,
        )
        return Said(tuple(map(believe, said.folds)), tuple(map(believe, said.turns)))

    @cached_property
    def _turns(self) -> list[Training]:
        """What is fitted on in each turn: all folds but one."""
        folds = self.sets.folds
        return [self._training([*folds[:turn], *folds[turn + 1 :]]) for turn in range(len(folds))]

    def _training(self, folds: Sequence[Labelled]) -> Training:
        features = np.concatenate([fold.features for fold in folds])
        labels = np.concatenate([fold.labels for fold in folds])
        return Training.of(features, labels, len(self.prior), self.prior)

    def _fitted(self, name: str, training: Training, seed: np.random.SeedSequence) -> Fitted:
        member = family(name).fit_on(training, seed)
        if self.paper and isinstance(member, FittedForest):
            return PaperForest(member)
        return member


def class_weights(labels: IntArray, prior: FloatArray) -> FloatArray:
    """Weights of batches, of mean one, under which values have the prior's shares."""
    shares = np.bincount(labels, minlength=len(prior)) / len(labels)
    return np.asarray((prior / shares)[labels])
