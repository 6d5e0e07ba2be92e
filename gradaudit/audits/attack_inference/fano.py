"""An upper bound on any adversary's advantage from the information that the gradient carries.

Fano's inequality: whoever guesses one of m values errs with a probability e that satisfies
H₂(e) + e ln(m − 1) ≥ H(a) − I(a; g̃). The smallest such e bounds the advantage by
1 − e / (1 − p*), p* being the success of the best guess without the gradient.

It holds for an upper bound on I only. One is known where Gaussian noise was added: I(a; g̃) is at
most I(g; g̃), and that at most ½ ln det(I + Cov(g)/σ²). An information estimated from a classifier
is a lower bound; what follows from it is an estimate and no bound.

Source: Li et al. 2024, equations 5 and 7, with H₂(e) kept instead of ln 2; C. Guo et al.,
"Analyzing privacy leakage in machine learning via multiple hypothesis testing: a lesson from Fano"
(2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from gradaudit.audits.attack_inference.observation import RoundObservation
from gradaudit.audits.attack_inference.split import GameSplit
from gradaudit.core.noise_laws import noise_scale
from gradaudit.core.randomness import rng, sequence
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.laws import entropy
from gradaudit.defenses.dp import DpNoise
from gradaudit.models.target import Layer
from gradaudit.sharing.protocol import SharingProtocol

NO_NOISE = "no Gaussian noise is added, so the gradient may tell everything"
_FEWEST, _MOST = 16, 1024
"""Trials whose gradients the covariance is taken of."""
_REPLICATES = 200
_DIRECTIONS = 16
"""Directions of the gradient's covariance that are taken one by one; the rest by their trace."""


@dataclass(frozen=True)
class Leak:
    """An upper bound on the information in a layer's updates, in nats, with its interval.

    ``information`` is None where there is none, and ``reason`` says why.
    """

    information: float | None
    interval: tuple[float, float] = (0.0, 0.0)
    reason: str = ""


def information_bounds(
    observations: Sequence[RoundObservation], split: GameSplit, seed: np.random.SeedSequence
) -> dict[str | None, list[Leak]]:
    """Bounds on the information of each round, by layer and for the whole update (None)."""
    by_scope: dict[str | None, list[Leak]] = {}
    for number, observation in enumerate(observations):
        for scope, leak in _of_round(observation, split, sequence(seed, "round", number)).items():
            by_scope.setdefault(scope, []).append(leak)
    return by_scope


def sum_of_rounds(rounds: Sequence[Leak]) -> Leak:
    """The channel of all rounds: noises are independent, so that informations add up at most."""
    for leak in rounds:
        if leak.information is None:
            return leak
    lows, highs = zip(*(leak.interval for leak in rounds), strict=True)
    total = sum(leak.information or 0.0 for leak in rounds)
    return Leak(total, (float(sum(lows)), float(sum(highs))))


def noisy_defense(sharing: SharingProtocol, layer: Layer) -> tuple[int, DpNoise] | None:
    """The first defense that adds Gaussian noise to every parameter of the layer, if any.

    What comes behind it cannot bring back what it has drowned.
    """
    for index, defense in enumerate(sharing.chain.acting):
        if (
            isinstance(defense, DpNoise)
            and defense.options.noise == "gaussian"
            and defense.options.sigma > 0
            and all(map(defense.defends, layer.parameter_names))
        ):
            return index, defense
    return None


def _of_round(
    observation: RoundObservation, split: GameSplit, seed: np.random.SeedSequence
) -> dict[str | None, Leak]:
    layers = observation.layers
    noisy = {layer.name: noisy_defense(observation.sharing, layer) for layer in layers}
    scopes: list[str | None] = [*noisy, None]
    if not any(noisy.values()):
        return {scope: Leak(None, reason=NO_NOISE) for scope in scopes}
    samples: dict[str | None, _Samples] = {
        layer.name: _before_noise(observation, split, layer, *place)
        for layer in layers
        if (place := noisy[layer.name]) is not None
    }
    if len(samples) == len(layers) and len({len(s.labels) for s in samples.values()}) == 1:
        samples[None] = _Samples(
            np.sum([s.gram for s in samples.values()], axis=0),
            sum(s.elements for s in samples.values()),
            next(iter(samples.values())).labels,
        )
    return {
        scope: _leak(samples[scope], split, seed)
        if scope in samples
        else Leak(None, reason=NO_NOISE if scope else "some layers' gradients carry no noise")
        for scope in scopes
    }


class _Samples(NamedTuple):
    """Inner products of some trials' noiseless gradients, in units of the noise; true values."""

    gram: NDArray[np.float64]
    """(samples, samples) inner products about the mean."""
    elements: int
    labels: NDArray[np.int64]


def _before_noise(
    observation: RoundObservation, split: GameSplit, layer: Layer, index: int, dp: DpNoise
) -> _Samples:
    """Collect the gradients to which a defense adds noise, of as many trials as fit into memory."""
    silent = type(dp)(dp.options.model_copy(update={"sigma": 0.0}))
    sharing = replace(
        observation.sharing,
        defenses=(*observation.sharing.chain.acting[:index], silent),
        others=0,
        fraction=None,
        elements=None,
    )
    most = min(max(observation.memory // (8 * layer.parameters), _FEWEST), _MOST)
    trials = len(split.observed.labels)
    order = rng(observation.seed, "trials").permutation(trials)[:most]
    labels = split.observed.labels[order]
    interceptor = replace(observation, sharing=sharing, reduce="none").interceptor((layer,))
    batches, shadow = split.observed.indices[order], split.parts.shadow
    looked = interceptor.features(batches, fit=shadow, seed=observation.seed, values=labels)
    ((_, gradients),) = looked
    sigma = noise_scale(dp.options.per, dp.options.sigma, split.size)
    scaled = gradients.cpu() / sigma
    centred = scaled - scaled.mean(dim=0)
    gram = np.asarray((centred @ centred.T).double().numpy())
    return _Samples(gram, scaled.shape[1], labels)


def _leak(samples: _Samples, split: GameSplit, seed: np.random.SeedSequence) -> Leak:
    if len(samples.gram) < _FEWEST:
        return Leak(None, reason=f"the covariance takes at least {_FEWEST} trials")
    channel = Channel.of(*samples)
    count = len(channel.squares)
    independent = max(len(split.parts.private) // split.size // 2, 2)
    drawn = rng(seed, "bootstrap").integers(0, count, (_REPLICATES, min(count, independent)))
    again = [channel.information(rows) for rows in drawn]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(again, [tail, 1 - tail])
    value = channel.information()
    return Leak(value, (min(float(low), value), max(float(high), value)))


def fano_error(information: float, prior: ArrayLike) -> float:
    """The smallest error e with H₂(e) + e ln(m − 1) ≥ H(a) − I.

    The left side grows up to e = 1 − 1/m, where it is ln m, so the smallest e lies there.

    Args:
        information: I(a; g̃) or an upper bound on it, in nats; infinity gives no error.
        prior: of the m values, at least two.
    """
    values = len(np.asarray(prior))
    missing = entropy(prior) - information
    if missing <= 0:
        return 0.0
    highest = 1 - 1 / values
    if missing >= _uncertainty(highest, values):
        return highest
    return float(brentq(lambda error: _uncertainty(error, values) - missing, 0.0, highest))


def fano_bound(information: float, prior: ArrayLike) -> float:
    """Bound every attacker's advantage from above, by Fano's inequality.

    max(0, 1 − e/(1 − p*)), with e the smallest solution of H₂(e) + e ln(m − 1) = H(a) − I for m
    values and p* the largest prior (Li et al. 2024, eq. 5 and 7; Guo et al. 2023).

    >>> fano_bound(0.0, [0.5, 0.5]), round(fano_bound(0.1, [0.5, 0.5]), 4), fano_bound(1.0, [1, 1])
    (0.0, 0.4396, 1.0)

    Args:
        information: an upper bound on I(a; g̃) in nats; an estimate gives an estimate.
        prior: (m,) of the values, at least two of them possible.

    Raises:
        ValueError: the information is negative or not a number.
    """
    if not information >= 0:
        raise ValueError("fano_bound needs information >= 0")
    probabilities = np.asarray(prior, dtype=np.float64)
    best_guess = probabilities.max() / probabilities.sum()
    return max(0.0, 1 - fano_error(information, prior) / (1 - float(best_guess)))


@dataclass(frozen=True)
class Channel:
    """The Gaussian channel from a gradient to its noisy release, estimated from samples.

    The determinant of a sample covariance is too small wherever there are more elements than
    samples. So half of the samples choose a few directions Q, and the other half give the
    covariance along those and the trace of all the rest, which are estimated without such a bias;
    by Fischer's inequality and the concavity of the logarithm,

        ln det(I + C/σ²) ≤ ln det(I + QᵀCQ/σ²) + (d − q) ln(1 + (tr C − tr QᵀCQ) / ((d − q) σ²)).

    Attributes:
        along: (samples, q) gradients before the noise along Q, in units of σ.
        squares: (samples,) their squared distance from their mean, in units of σ².
        elements: d, of the gradient.
    """

    along: NDArray[np.float64]
    squares: NDArray[np.float64]
    elements: int

    @classmethod
    def of(
        cls, gram: NDArray[np.float64], elements: int, strata: NDArray[np.int64] | None = None
    ) -> Channel:
        """Estimate the channel from the inner products of sampled gradients.

        Args:
            gram: (samples, samples) of the gradients before the noise, in units of σ; at least 8,
                in random order.
            elements: d.
            strata: (samples,) the value behind each: both halves have as many of every value, or
                a gap between values would count for more in one than in the other.
        """
        strata = np.zeros(len(gram), dtype=np.int64) if strata is None else strata
        order = np.argsort(strata, kind="stable")
        choose, measure = order[::2], order[1::2]
        values, vectors = np.linalg.eigh(_centred(gram[np.ix_(choose, choose)]))
        wanted = min(_DIRECTIONS, elements, len(choose) // 2)
        values, vectors = values[-wanted:], vectors[:, -wanted:]
        kept = values > max(values[-1], 0) * 1e-10
        basis = vectors[:, kept] / np.sqrt(values[kept])
        along = gram[np.ix_(measure, choose)] @ (basis - basis.mean(axis=0))
        return cls(along, np.diag(_centred(gram[np.ix_(measure, measure)])).copy(), elements)

    def information(self, samples: NDArray[np.int64] | None = None) -> float:
        """An upper bound on I(g; g̃) in nats, from all samples or from these."""
        along = self.along if samples is None else self.along[samples]
        squares = self.squares if samples is None else self.squares[samples]
        directions = along.shape[1]
        spread = np.atleast_2d(np.cov(along, rowvar=False)) if directions else np.zeros((0, 0))
        rest = max(float(squares.sum() / (len(squares) - 1) - np.trace(spread)), 0.0)
        others = self.elements - directions
        _, log_det = np.linalg.slogdet(np.eye(directions) + spread)
        return 0.5 * (float(log_det) + (others * math.log1p(rest / others) if others else 0.0))


def _centred(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre inner products on the samples' own mean."""
    rows = gram.mean(axis=0, keepdims=True)
    return np.asarray(gram - rows - rows.T + gram.mean())


def _uncertainty(error: float, values: int) -> float:
    """Compute H₂(e) + e ln(m − 1), the left side of Fano's inequality, in nats."""
    parts = [p * math.log(p) for p in (error, 1 - error) if p > 0]
    return -sum(parts) + error * math.log(values - 1)
