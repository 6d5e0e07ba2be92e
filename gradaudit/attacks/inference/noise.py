"""How much the Gaussian noise in a defense lets through, whoever looks at it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gradaudit.attacks.inference.deal import Deal
from gradaudit.attacks.inference.fano import Channel
from gradaudit.attacks.inference.sight import Sight
from gradaudit.defenses.dp import Dp
from gradaudit.models.target import Layer
from gradaudit.noise import noise_scale
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol

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
    sights: Sequence[Sight], deal: Deal, seed: np.random.SeedSequence, confidence: float = 0.95
) -> dict[str | None, list[Leak]]:
    """What each round's noise lets through, by layer and for the whole update (None)."""
    found: dict[str | None, list[Leak]] = {}
    for sight, child in zip(sights, seed.spawn(len(sights)), strict=True):
        for scope, leak in _of_round(sight, deal, child, confidence).items():
            found.setdefault(scope, []).append(leak)
    return found


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
    sight: Sight, deal: Deal, seed: np.random.SeedSequence, confidence: float
) -> dict[str | None, Leak]:
    scopes: list[str | None] = [*(layer.name for layer in sight.layers), None]
    noisy = {layer.name: noisy_defense(sight.sharing, layer) for layer in sight.layers}
    if not any(noisy.values()):
        return {scope: Leak(None, reason=NO_NOISE) for scope in scopes}
    size = deal.observed.indices.shape[1]
    grams: dict[str | None, NDArray[np.float64]] = {}
    elements: dict[str | None, int] = {}
    labels: dict[str | None, NDArray[np.int64]] = {}
    for layer in sight.layers:
        place = noisy[layer.name]
        if place is None:
            continue
        gradients = _before_noise(sight, deal, layer, place[0])
        sigma = noise_scale(place[1].options.per, place[1].options.sigma, size)
        grams[layer.name] = _gram(gradients / sigma)
        elements[layer.name] = gradients.shape[1]
        labels[layer.name] = deal.observed.labels[_some_trials(sight, deal, layer)]
    if len(grams) == len(sight.layers) and len({len(gram) for gram in grams.values()}) == 1:
        grams[None] = np.sum(list(grams.values()), axis=0)
        elements[None] = sum(elements.values())
        labels[None] = next(iter(labels.values()))
    return {
        scope: _leak(grams[scope], elements[scope], labels[scope], deal, seed, confidence)
        if scope in grams
        else Leak(None, reason=NO_NOISE if scope else "some layers' gradients carry no noise")
        for scope in scopes
    }


def _before_noise(sight: Sight, deal: Deal, layer: Layer, index: int) -> torch.Tensor:
    """Gradients (some of the trials, elements) of the batches as the noise is added to them."""
    acting = sight.sharing.chain.acting
    dp = acting[index]
    silent = type(dp)(dp.options.model_copy(update={"sigma": 0.0}))
    sharing = replace(
        sight.sharing,
        defenses=(*acting[:index], silent),
        others=0,
        fraction=None,
        elements=None,
    )
    order = _some_trials(sight, deal, layer)
    interceptor = Interceptor(
        sight.target,
        sight.records,
        (layer,),
        sharing=sharing,
        reduce="none",
        memory=sight.memory,
        seed=sight.seed,
    )
    ((_, gradients),) = interceptor.features(
        deal.observed.indices[order],
        fit=deal.parts.shadow,
        seed=sight.seed,
        values=deal.observed.labels[order],
    )
    return gradients.cpu()


def _some_trials(sight: Sight, deal: Deal, layer: Layer) -> NDArray[np.int64]:
    """Which trials the covariance is taken of: as many as fit, in random order."""
    most = min(max(sight.memory // (8 * layer.parameters), _FEWEST), _MOST)
    return np.random.default_rng(sight.seed).permutation(len(deal.observed.labels))[:most]


def _gram(gradients: torch.Tensor) -> NDArray[np.float64]:
    """Inner products about the mean, in float64."""
    centred = gradients - gradients.mean(dim=0)
    return np.asarray((centred @ centred.T).double().numpy())


def _leak(
    gram: NDArray[np.float64],
    elements: int,
    labels: NDArray[np.int64],
    deal: Deal,
    seed: np.random.SeedSequence,
    confidence: float,
) -> Leak:
    if len(gram) < _FEWEST:
        return Leak(None, reason=f"the covariance takes at least {_FEWEST} trials")
    channel = Channel.of(gram, elements, labels)
    samples = len(channel.squares)
    independent = max(len(deal.parts.private) // deal.observed.indices.shape[1] // 2, 2)
    drawn = np.random.default_rng(seed).integers(
        0, samples, (_REPLICATES, min(samples, independent))
    )
    again = [channel.information(rows) for rows in drawn]
    tail = (1 - confidence) / 2
    low, high = np.quantile(again, [tail, 1 - tail])
    value = channel.information()
    return Leak(value, (min(float(low), value), max(float(high), value)))
