"""What a predictive family is: it is fitted on labelled features and gives log-probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from gradaudit.errors import AuditError
from gradaudit.families.standard import Features, FloatArray, IntArray, Projection, Scale
from gradaudit.randomness import Seed

__all__ = ["Features", "FloatArray", "IntArray"]


class Fitted(ABC):
    """A member of a family, fitted.

    Attributes:
        prior: (classes,) class probabilities that it was trained under; what it says of a class is
            a posterior under this prior (see ``under_prior``).
    """

    prior: FloatArray

    @abstractmethod
    def log_probabilities(self, features: Features) -> FloatArray:
        """Log-probabilities of every class, (rows, classes), always finite, rows summing to one."""


@dataclass(frozen=True)
class FittedPrior(Fitted):
    """Says the prior of every row."""

    prior: FloatArray

    def log_probabilities(self, features: Features) -> FloatArray:
        """The prior's logs, (rows, classes)."""
        return np.tile(np.log(self.prior), (len(features), 1))


@dataclass(frozen=True)
class Training:
    """Rows to fit a member on.

    Attributes:
        features: (rows, features), finite.
        labels: (rows,), every class among them.
        prior: (classes,) to train under.
        weights: (rows,), of mean one, that give classes the shares of ``prior``.

    ``scale`` and ``projection`` are found once, for all families that are fitted on the same rows.
    """

    features: Features
    labels: IntArray
    prior: FloatArray
    weights: FloatArray

    @cached_property
    def scale(self) -> Scale:
        """What standardises the rows."""
        return Scale.of(self.features)

    @cached_property
    def projection(self) -> Projection:
        """The rows standardised, in a basis of their span."""
        return Projection.of(self.features, self.scale)

    @classmethod
    def of(
        cls, features: Features, labels: IntArray, classes: int, prior: FloatArray | None = None
    ) -> Self:
        """Under a prior, or under the rows' own frequencies.

        Raises:
            AuditError: there is no row, a class has none, or a feature is not finite.
        """
        counts = np.bincount(labels, minlength=classes)
        if not counts.all():
            raise AuditError(
                f"a classifier of {classes} classes got no row of class {int(counts.argmin())}; "
                "fit it on more batches"
            )
        if not np.isfinite(features).all():
            raise AuditError("some gradient is not finite, so no classifier can be fitted on it")
        frequencies = counts / len(labels)
        chosen = frequencies if prior is None else np.asarray(prior, dtype=np.float64)
        return cls(features, labels, chosen, (chosen / frequencies)[labels])


class Family(ABC):
    """A set of predictors of a class from features (Xu et al. 2020, Mo et al. 2021 eq. 7).

    The class docstring says which predictors, and how one of them is picked.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> Fitted:
        """Fit a member; the same seed fits the same one.

        Args:
            features: (rows, features), of any scale; rows are weighed (for trees: drawn) so
                that classes have the shares of ``prior``.
            labels: (rows,) in 0..classes-1.
            classes: how many there are.
            seed: of whatever is random.
            prior: (classes,) to train under; without it, the rows' own frequencies.

        Raises:
            AuditError: there is no row, a class has none, or a feature is not finite.
        """
        return self.fit_on(Training.of(features, labels, classes, prior), seed)

    def fit_on(self, training: Training, seed: Seed) -> Fitted:
        """The same, where other families are fitted on the same rows too."""
        if len(training.prior) == 1:
            return FittedPrior(training.prior)
        return self._fit(training, np.random.default_rng(seed))

    @abstractmethod
    def _fit(self, training: Training, generator: np.random.Generator) -> Fitted:
        """Fit a member to rows of two or more classes; the prior where no feature varies."""

    def seconds(self, rows: int, features: int) -> float:
        """About how long ``fit`` takes on a core of a usual machine, for ``--dry-run``."""
        return 0.0


def normalised(scores: FloatArray) -> FloatArray:
    """Scores (rows, classes) as log-probabilities: each row's log-sum-exp taken off."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def log_mean(log_probabilities: FloatArray) -> FloatArray:
    """The log of members' mean probabilities: (members, rows, classes) to (rows, classes)."""
    return np.asarray(
        np.logaddexp.reduce(log_probabilities, axis=0) - np.log(len(log_probabilities))
    )


def under_prior(
    log_probabilities: FloatArray, trained: FloatArray, wanted: FloatArray
) -> FloatArray:
    """Posteriors under another prior than the one that they were trained under.

    Args:
        log_probabilities: (rows, classes).
        trained: (classes,), the fitted member's ``prior``.
        wanted: (classes,), all positive.
    """
    return normalised(log_probabilities - np.log(trained) + np.log(wanted))


def log_loss(log_probabilities: FloatArray, labels: IntArray) -> float:
    """Mean of −log p of the true class, in nats."""
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


@dataclass(frozen=True)
class FittedScores(Fitted):
    """Scores of projected rows.

    Attributes:
        scores: projected rows (rows, directions) to scores (rows, classes); of two classes, the
            second's alone, (rows,) or (rows, 1), is enough.
    """

    prior: FloatArray
    projection: Projection
    scores: Callable[[FloatArray], FloatArray]

    def log_probabilities(self, features: Features) -> FloatArray:
        """Logs of the softmax, (rows, classes)."""
        found = np.asarray(self.scores(self.projection(features)))
        found = found.reshape(len(found), -1)
        return normalised(np.hstack([0 * found, found]) if found.shape[1] == 1 else found)
