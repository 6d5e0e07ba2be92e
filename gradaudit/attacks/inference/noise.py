"""How much the Gaussian noise in a defense lets through, whoever looks at it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.inference.fano import Channel
from gradaudit.attacks.inference.observation import Observation
from gradaudit.attacks.inference.split import GameSplit
from gradaudit.defenses.dp import Dp
from gradaudit.models.target import Layer
from gradaudit.noise import noise_scale
from gradaudit.randomness import rng, sequence
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.statistics import CONFIDENCE

NO_NOISE = "no Gaussian noise is added, so the gradient may tell everything"
_FEWEST, _MOST = 16, 1024
"""Trials whose gradients the covariance is taken of."""
_REPLICATES = 200


@dataclass(frozen=True)
class Leak:
    """An upper bound on what a layer's updates of all rounds tell, in nats, with its interval.

    ``information`` is None where there is none, and ``reason`` says why.
    """

    information: float | None
    interval: tuple[float, float] = (0.0, 0.0)
    reason: str = ""


def leaks(
    observations: Sequence[Observation], split: GameSplit, seed: np.random.SeedSequence
) -> dict[str | None, list[Leak]]:
    """What each round's noise lets through, by layer and for the whole update (None)."""
    by_scope: dict[str | None, list[Leak]] = {}
    for number, observation in enumerate(observations):
        for scope, leak in _of_round(observation, split, sequence(seed, "round", number)).items():
            by_scope.setdefault(scope, []).append(leak)
    return by_scope


def together(rounds: Sequence[Leak]) -> Leak:
    """All rounds: independent noises, so what they let through adds up at most."""
    for leak in rounds:
        if leak.information is None:
            return leak
    lows, highs = zip(*(leak.interval for leak in rounds), strict=True)
    total = sum(leak.information or 0.0 for leak in rounds)
    return Leak(total, (float(sum(lows)), float(sum(highs))))


def noisy_defense(sharing: SharingProtocol, layer: Layer) -> tuple[int, Dp] | None:
    """The first defense that adds Gaussian noise to every parameter of the layer, if any.

    What comes behind it cannot bring back what it has drowned.
    """
    for index, defense in enumerate(sharing.chain.acting):
        if (
            isinstance(defense, Dp)
            and defense.options.noise == "gaussian"
            and defense.options.sigma > 0
            and all(map(defense.defends, layer.parameter_names))
        ):
            return index, defense
    return None


def _of_round(
    observation: Observation, split: GameSplit, seed: np.random.SeedSequence
) -> dict[str | None, Leak]:
    layers = observation.layers
    noisy = {layer.name: noisy_defense(observation.sharing, layer) for layer in layers}
    scopes: list[str | None] = [*noisy, None]
    if not any(noisy.values()):
        return {scope: Leak(None, reason=NO_NOISE) for scope in scopes}
    samples: dict[str | None, _Samples] = {}
    for layer in layers:
        if (place := noisy[layer.name]) is not None:
            samples[layer.name] = _before_noise(observation, split, layer, *place)
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
    """Gradients of some of the trials, before the noise and in units of it.

    Attributes:
        gram: (samples, samples) inner products about the mean, float64.
        elements: of a gradient.
        labels: (samples,) the true values.
    """

    gram: NDArray[np.float64]
    elements: int
    labels: NDArray[np.int64]


def _before_noise(
    observation: Observation, split: GameSplit, layer: Layer, index: int, dp: Dp
) -> _Samples:
    """The gradients that the noise of a defense is added to: of as many trials as fit."""
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
    ((_, gradients),) = (
        replace(observation, sharing=sharing, reduce="none")
        .interceptor((layer,))
        .features(
            split.observed.indices[order],
            fit=split.parts.shadow,
            seed=observation.seed,
            values=labels,
        )
    )
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
