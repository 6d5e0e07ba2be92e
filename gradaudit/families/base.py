"""Base class of predictive families: fitted on labelled features, they give log-probabilities.

Features are centred, of one scale, and no wider than the rows span.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.randomness import Seed
from gradaudit.errors import AuditError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Features = NDArray[np.floating]
_FLAT = 1e-6
"""Share of a column's largest entry below which its variation is rounding, and it is constant."""
_FARTHEST = 1e15
"""Number of deviations that a row is taken to be away at most: sums of squares stay finite."""
_IN_CACHE = 1 << 17
"""Number of double-precision values that are processed at a time."""
_MATRICES = 3
"""Number of matrices whose projections are kept: fitted on, chosen on, scored on."""
_EVEN = np.full(2, 0.5)


@dataclass(frozen=True)
class Scale:
    """Centre and deviation of columns, estimated on the rows that were fitted.

    Works for columns of any size, gradients of 1e-8 and 1e8 alike; constant columns are left out.

    Attributes:
        kept: (features,) which columns vary.
        centre: (kept,).
        deviation: (kept,).
    """

    kept: np.ndarray
    centre: FloatArray
    deviation: FloatArray

    @classmethod
    def of(cls, features: Features) -> Self:
        """Fit on rows (rows, features)."""
        width = features.shape[1]
        unit, centre, deviation = np.ones((3, width))
        for block in _blocks(width, len(features)):
            values = features[:, block].astype(np.float64)
            largest = np.maximum(values.max(axis=0), -values.min(axis=0))
            unit[block] = np.where(largest > 0, largest, 1)
            values /= unit[block]
            centre[block] = values.mean(axis=0)
            values -= centre[block]
            deviation[block] = np.sqrt(np.einsum("ij,ij->j", values, values) / len(values))
        kept = deviation > _FLAT
        return cls(kept, (centre * unit)[kept], (deviation * unit)[kept])

    def __call__(self, features: Features) -> Features:
        """Rows in units of deviations, (rows, kept), as precise as they are given.

        What rounding takes off the centre is taken off every row alike.
        """
        rows = features if self.kept.all() else features[:, self.kept]
        values = rows - self.centre.astype(rows.dtype)
        with np.errstate(over="ignore"):  # rows that were not fitted may be that far away
            values /= self.deviation.astype(rows.dtype)
        return np.clip(values, -_FARTHEST, _FARTHEST, out=values)


def _blocks(width: int, rows: int) -> Iterator[slice]:
    size = max(1, _IN_CACHE // max(rows, 1))
    return (slice(start, start + size) for start in range(0, width, size))


@dataclass(frozen=True)
class Projection:
    """Standardised rows in an orthonormal basis of the fitted rows' span, over √features.

    For a linear predictor whose weights are penalised by their L2 norm, nothing is lost: its
    weights lie in that span.

    Attributes:
        against: (kept, vectors) that span it: the fitted rows themselves, where there are fewer of
            them than columns.
        turn: (vectors, directions) to the basis, largest spread first.
    """

    scale: Scale
    against: Features
    turn: FloatArray
    _known: list[tuple[Features, FloatArray]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, features: Features, scale: Scale | None = None) -> Self:
        """Fit on rows (rows, features), whose scale may be known."""
        scale = scale or Scale.of(features)
        rows = scale(features)
        count, width = rows.shape
        if not width:
            return cls(scale, rows.T, np.zeros((count, 0)))
        wide = width > count
        products = rows @ rows.T if wide else rows.T @ rows
        energies, vectors = np.linalg.eigh(products.astype(np.float64))
        rounding = max(1e-10, 10 * float(np.finfo(rows.dtype).eps)) * energies[-1]
        kept = (energies > rounding).nonzero()[0][::-1]
        turn = vectors[:, kept] / np.sqrt(width)
        if not wide:
            return cls(scale, turn.astype(rows.dtype), np.eye(len(kept)))
        known = products @ turn / np.sqrt(energies[kept])
        return cls(scale, rows.T, turn / np.sqrt(energies[kept]), [(features, known)])

    def __call__(self, features: Features) -> FloatArray:
        """Projects rows, (rows, directions); the last results are kept for other families."""
        for asked, product in self._known:
            if asked is features:
                return product
        product = np.asarray(self.scale(features) @ self.against @ self.turn)
        self._known[:] = [*self._known[1 - _MATRICES :], (features, product)]
        return product


class Fitted(ABC):
    """A fitted member of a family.

    Attributes:
        prior: (classes,) class probabilities that it was trained under; what it says of a class is
            a posterior under this prior (see ``under_prior``).
    """

    prior: FloatArray

    @abstractmethod
    def log_probabilities(self, features: Features) -> FloatArray:
        """Return log-probabilities of every class.

        Args:
            features: (rows, features) as fitted, of any number of other rows, finite and perhaps
                far from those that were fitted. Not changed.

        Returns:
            (rows, classes), all finite, so no class has the probability 0; each row's
            exponentials sum to 1.
        """


@dataclass(frozen=True)
class FittedPrior(Fitted):
    """Predicts the prior for every row."""

    prior: FloatArray

    def log_probabilities(self, features: Features) -> FloatArray:
        """Returns the prior's logarithms, (rows, classes)."""
        return np.tile(np.log(self.prior), (len(features), 1))


@dataclass(frozen=True)
class Standardised:
    """Features (rows, features), finite; what standardises them is found once, for all families."""

    features: Features

    @cached_property
    def scale(self) -> Scale:
        """Scale that standardises the rows."""
        return Scale.of(self.features)

    @cached_property
    def projection(self) -> Projection:
        """The rows standardised, in a basis of their span."""
        return Projection.of(self.features, self.scale)

    @cached_property
    def varying(self) -> Features:
        """The columns that vary, unscaled, and contiguous in memory, (kept, rows)."""
        places = np.flatnonzero(self.scale.kept)
        columns = np.empty((len(places), len(self.features)), dtype=self.features.dtype)
        for block in _blocks(len(places), len(self.features)):
            columns[block] = self.features[:, places[block]].T
        return columns


@dataclass(frozen=True)
class Training:
    """Rows on which a member is fitted.

    Attributes:
        labels: (rows,), every class among them.
        prior: (classes,) to train under.
        weights: (rows,), of mean one, that give classes the shares of ``prior``.
    """

    rows: Standardised
    labels: IntArray
    prior: FloatArray
    weights: FloatArray

    def above(self, threshold: int) -> Self:
        """The rows in two classes that weigh alike: labels above a threshold, and others."""
        above = (self.labels > threshold).astype(np.int64)
        return replace(self, labels=above, prior=_EVEN, weights=class_weights(above, _EVEN))

    @classmethod
    def of(
        cls, features: Features, labels: IntArray, classes: int, prior: FloatArray | None = None
    ) -> Self:
        """The training rows under a prior, or under their own frequencies.

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
        chosen = counts / len(labels) if prior is None else np.asarray(prior, dtype=np.float64)
        return cls(Standardised(features), labels, chosen, class_weights(labels, chosen))


def class_weights(labels: IntArray, prior: FloatArray) -> FloatArray:
    """Compute the weights of rows, with mean one, that give classes the prior's shares, (rows,)."""
    return np.asarray((prior / (np.bincount(labels, minlength=len(prior)) / len(labels)))[labels])


Above = Callable[[Features], FloatArray]
"""P(value > i) of rows for ordered values, (rows, values − 1), under the training's prior."""


class Family(ABC):
    """A set of predictors of a class from features (Xu et al. 2020, Mo et al. 2021 eq. 7).

    The class docstring says which predictors, and how one of them is picked.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    size: ClassVar[str] = ""
    """Size of the family in a few words; ``LINEAR`` where its members are linear functions."""

    def reads(self, gradients: Features) -> Features:
        """Returns the features that the family is fitted on and predicts from, (rows, features).

        Every element of the gradients (rows, elements), unless a family says otherwise. Callers
        take them once and split the rows afterwards, so that no fold computes them again.
        """
        return gradients

    def fit(
        self,
        features: Features,
        labels: IntArray,
        classes: int,
        seed: Seed,
        *,
        prior: FloatArray | None = None,
    ) -> Fitted:
        """Fits a member; the same seed fits the same one.

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
        """Fits a member where other families are fitted on the same rows too."""
        if len(training.prior) == 1:
            return FittedPrior(training.prior)
        return self.train(training, np.random.default_rng(seed))

    def fit_ordered(self, training: Training, generator: np.random.Generator) -> Above:
        """Fit to values that have an order: a member for each threshold between two neighbours.

        Each is fitted on all rows, with both sides weighed alike.
        Source: E. Frank and M. Hall, "A simple approach to ordinal classification" (2001).
        """
        seeds = generator.integers(1 << 62, size=len(training.prior) - 1)
        members = [self.fit_on(training.above(i), int(seed)) for i, seed in enumerate(seeds)]
        shares = [(1 - more, more) for more in training.prior[::-1].cumsum()[-2::-1]]

        def above(features: Features) -> FloatArray:
            log_shares = [
                under_prior(member.log_probabilities(features), member.prior, np.array(wanted))
                for member, wanted in zip(members, shares, strict=True)
            ]
            return np.exp(np.stack(log_shares)[:, :, 1].T)

        return above

    @abstractmethod
    def train(self, training: Training, generator: np.random.Generator) -> Fitted:
        """Fit a member to rows of two or more classes; the prior where no feature varies.

        Args:
            training: ``training.rows.features`` (rows, features) are finite and as given, those
                of ``training.rows.projection`` standardised and no wider than the rows span;
                ``labels`` are (rows,) in 0..classes-1, with ``weights`` (rows,) of mean one that
                give classes the shares of ``prior`` (classes,). Not changed.
            generator: all randomness is drawn from it.

        Returns:
            A ``Fitted`` with the training's ``prior``.
        """


def normalised(scores: FloatArray) -> FloatArray:
    """Scores (rows, classes) as log-probabilities: each row's log-sum-exp taken off."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def of_both(scores: FloatArray) -> FloatArray:
    """Scores (rows, classes), where those of two classes may be the second's alone."""
    return np.hstack([0 * scores, scores]) if scores.shape[1] == 1 else scores


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
        scores = np.asarray(self.scores(self.projection(features)))
        return normalised(of_both(scores.reshape(len(scores), -1)))
