"""Statistics of releases that find noise missing in some elements, rounds or directions.

The projection onto the mean difference reads noise that is alike in all directions. Faulty noise
may be none in some direction (one number for all elements, an array that is left out), or in some
elements (those whose gradient is zero, as of embeddings that no token touches), lie on a lattice
that is finer than its scale, be left out of some releases, or have a scale that depends on the
data. Each of these has a statistic here, which a few releases under each hypothesis, the
*looks*, set up. A pilot decides which one is played (``game.play``), so that none of them has seen
a trial: the bound is valid whatever the looks made of the noise, and only its power depends on it.

**Noise on a lattice.** Noise that is drawn as whole numbers times a step, and added to a gradient
that is not on that lattice, leaves the gradient's remainder by the step as it is, however loud the
noise: releases under two values lie on lattices that are shifted. A mechanism that rounds the noisy
gradient to the lattice leaves no remainder, and nothing is found here.

**Verdicts without a game.** Releases can never show that ε is infinite: one that was equal a
thousand times may differ the next, and code may draw where nobody sees it (``os.getrandom``,
``/dev/urandom``, a library in C). So an infinite ε is said only of a law that is known: a mechanism
that adds no noise, and a defense that draws nothing. A mechanism from a file plays the game,
whatever its releases look like, and equal releases give the finite bound that so many of them
prove.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import (
    Further,
    Hypotheses,
    ReleaseStatistics,
    reproducible,
    shifts,
)
from gradaudit.audits.dp_audit.law.theory import FloatArray
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.core.randomness import Seed, sequence
from gradaudit.errors import AuditError

_ELEMENTS = 256
"""Elements that are looked at, those that the two values move most."""
_ROUNDINGS = 16
"""Units of float rounding within which two values are the same."""
_STEPS = 40
_GAPS = 8
"""Smallest differences of an element's values, of which the step is the greatest divisor."""
_FACTOR = 4.0
"""Times a rounding that a step is, at least, and a range of counted steps grows by."""
_ON_LATTICE = 0.9
"""Mean resultant length of the values' phases above which they lie on the lattice; 128 values that
do not have one of .09."""
FEWEST_LOOKS, MOST_LOOKS = 16, 128
"""Looks under each hypothesis. With 128, noise is missed in some direction of up to 254 where it
spans fewer; 16 are what a million elements have room for."""
_NUMBERS = 1 << 20
"""Numbers of the looks under one hypothesis, where that leaves enough looks."""
_EQUAL, _OFTEN, _FEW = 11, 3, 8
"""Decimals of their fractions to which a statistic's values are equal, and how many that are equal
are no chance: of 5,000 normal values three are so less than once in 10⁹ times; and how many values
may be so, as one noiseless release is for each value of the record. None of 400 pairs of samples of
eight laws each, continuous and discrete, had any (normal, Cauchy, rounded, geometric, …)."""
_RIDGE = 1e-12
"""Share of an element's variance below which noise is rounding."""


def lattice_statistic(
    null: Tensor, other: Tensor, towards: Tensor
) -> Callable[[Tensor], FloatArray] | None:
    """Make Σ_j cos(2πx_j/h_j − φ_j′) − cos(2πx_j/h_j − φ_j), h and φ from pilot releases.

    Args:
        null: releases (count, elements) under the null hypothesis.
        other: the same under the alternative.
        towards: the mean difference, (elements,), of which the largest elements are looked at.

    Returns:
        The statistic (count,) of releases (count, elements); None where no element of the looks
        lies on a lattice.
    """
    chosen = towards.abs().argsort(descending=True)[:_ELEMENTS].sort().values
    first, second = (side[:, chosen].double().cpu().numpy() for side in (null, other))
    rounding = _ROUNDINGS * torch.finfo(null.dtype).eps * np.abs([*first, *second]).max(axis=0)
    steps = lattice_steps(first, rounding)
    phases, lengths = zip(*(_phase(side, steps) for side in (first, second)), strict=True)
    found = (np.min(lengths, axis=0) > _ON_LATTICE) & np.isfinite(steps)
    if not found.any():
        return None
    places, steps = chosen[torch.from_numpy(found)], steps[found]
    of_null, of_other = (phase[found] for phase in phases)

    def statistic(releases: Tensor) -> FloatArray:
        turns = 2 * math.pi * releases[:, places].double().cpu().numpy() / steps
        return np.asarray((np.cos(turns - of_other) - np.cos(turns - of_null)).sum(axis=1))

    return statistic


def lattice_steps(values: FloatArray, rounding: FloatArray) -> FloatArray:
    """The step of each element's lattice, (elements,); infinite where there is none.

    The greatest common divisor of the smallest differences of its values (count, elements), each
    known to a rounding (elements,), by Euclid's algorithm; then by least squares on the numbers of
    steps between the values, as far apart as they can be counted.
    """
    ordered = np.sort(values, axis=0)
    gaps = np.diff(ordered, axis=0)
    smallest = np.sort(np.where(gaps > rounding, gaps, np.inf), axis=0)[:_GAPS]
    step = smallest[0]
    for gap in smallest[1:]:
        step = _common_divisor(step, np.where(np.isfinite(gap), gap, step), rounding)
    step = np.where(step > _FACTOR * rounding, step, np.inf)
    return _refined(step, np.concatenate([gaps, ordered - ordered[len(ordered) // 2]]), rounding)


def _refined(step: FloatArray, distances: FloatArray, rounding: FloatArray) -> FloatArray:
    """Refine the step by least squares on the multiples that distances (count, elements) are.

    A step that is known to its rounding counts them right up to step²/rounding; from there on each
    fit counts farther.
    """
    sizes = np.abs(distances)
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = step**2 / np.maximum(rounding, np.finfo(float).tiny)
        while True:
            counts = np.where(sizes <= reach, np.rint(distances / step), 0.0)
            squares = (counts**2).sum(axis=0)
            step = np.where(squares > 0, (counts * distances).sum(axis=0) / squares, step)
            if not (np.isfinite(step) & (reach < sizes.max(axis=0))).any():
                return step
            reach = reach * _FACTOR


def _common_divisor(first: FloatArray, second: FloatArray, rounding: FloatArray) -> FloatArray:
    """Find it by Euclid's algorithm with the nearest remainder; those within rounding are none."""
    for _ in range(_STEPS):
        some = second > rounding
        if not some.any():
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = np.abs(first - np.rint(first / second) * second)
        first, second = np.where(some, second, first), np.where(some, rest, 0.0)
    return first


def _phase(values: FloatArray, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean direction of the values' phases, and how closely they agree, (elements,) each."""
    mean = np.exp(2j * math.pi * values / steps).mean(axis=0)
    return np.angle(mean), np.abs(mean)


@dataclass(frozen=True)
class DegenerateVerdict:
    """A verdict that needs no trials, since the mechanism's law decides it.

    ``reason`` says what is known; ε of the pair is infinite where the two values' releases never
    coincide, and 0 where they are the same, so that the pair can test no claim.
    """

    reason: str
    epsilon: float


def verdict_without_trials(
    mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed
) -> DegenerateVerdict | None:
    """Decide on a pair by the mechanism's law; None where only the game can decide.

    Equal gradients, or equal noiseless releases, have ε = 0; a mechanism without noise has an
    infinite ε, as has a deterministic one whose releases differ.
    """
    if hypotheses.indistinguishable:
        return DegenerateVerdict("the record's gradient is the same with either value", 0.0)
    if mechanism.deterministic:
        with reproducible(seed, hypotheses.null.device) as generator:
            null, *others = (mechanism.release(batch, generator) for batch in hypotheses.batches)
        apart = any(not torch.equal(null, other) for other in others)
        how = "the two values' differ" if apart else "it is the same with either value"
        reason = f"{mechanism.description} is deterministic, so its release is certain: {how}"
        return DegenerateVerdict(reason, math.inf if apart else 0.0)
    law = mechanism.law(hypotheses.records)
    if mechanism.foreign or law is None:
        return None
    if not shifts(law, hypotheses).any():
        return DegenerateVerdict("the noiseless release is the same with either value", 0.0)
    if law.scale == 0:
        return DegenerateVerdict("the mechanism adds no noise", math.inf)
    return None


def with_further(
    mechanism: Mechanism, hypotheses: Hypotheses, statistics: ReleaseStatistics, seed: Seed
) -> ReleaseStatistics:
    """Add the statistics that pilot releases of a mechanism from a file suggest.

    Raises:
        AuditError: the mechanism fails, or its batched form repeats its noise within a batch.
    """
    null, *others = hypotheses.batches
    count = min(MOST_LOOKS, max(FEWEST_LOOKS, _NUMBERS // hypotheses.elements))
    share = -(-count // len(others))
    looks = _looks(mechanism, null, count, sequence(seed, "null"))
    alternatives = torch.cat(
        [_looks(mechanism, b, share, sequence(seed, "other", i)) for i, b in enumerate(others)]
    )[:count]
    length = float(torch.linalg.vector_norm(statistics.towards))
    # The sign is 1 where releases of the alternative are farther from the null's mean, else −1.
    near, far = (np.median(statistics.scores(side)[1]) for side in (looks, alternatives))
    farther = 1 if far >= near else -1
    further: dict[str, Further] = {
        "distance from the null hypothesis's mean": lambda _, scores: farther * scores[1],
        "cosine with the mean difference": lambda _, scores: cosine(scores, length),
        "projection onto the direction of least noise": least_noise(
            looks, alternatives, statistics
        ),
    }
    if (noiseless := noiseless_elements(looks, alternatives)) is not None:
        further["number of elements at their noiseless value"] = noiseless
    if (found := lattice_statistic(looks, alternatives, statistics.towards)) is not None:
        further["phase on the lattice of the noise"] = lambda releases, _: found(releases)
    return replace(statistics, further=further)


def noiseless_elements(null: Tensor, other: Tensor) -> Further | None:
    """Make the count of elements at their noiseless value, alternative's less null hypothesis's.

    An element has none where its looks, (count, elements) each, differ, or where both agree.

    Returns:
        The statistic; None where no element has such a value.
    """
    sides = []
    for looks, others in ((other, null), (null, other)):
        still = (looks == looks[0]).all(dim=0) & ~(others == looks[0]).all(dim=0)
        places = still.nonzero()[:, 0]
        sides.append((places, looks[0, places]))
    if not any(len(places) for places, _ in sides):
        return None

    def statistic(releases: Tensor, scores: FloatArray) -> FloatArray:
        of_other, of_null = (
            (releases[:, places] == values).sum(dim=1).double() for places, values in sides
        )
        return np.asarray((of_other - of_null).cpu())

    return statistic


def _looks(mechanism: Mechanism, batch: Tensor, count: int, seed: Seed) -> Tensor:
    with reproducible(seed, batch.device) as generator:
        together = mechanism.releases(batch, count, generator)
        if bool((together == together[0]).all()):
            singly = [mechanism.release(batch, generator) for _ in range(FEWEST_LOOKS)]
            if len(torch.unique(torch.stack(singly), dim=0)) == FEWEST_LOOKS:
                raise AuditError(
                    f"--mechanism {mechanism.description}: its batched form repeats one release "
                    "within a batch; draw noise for each"
                )
    return together


def lone_repeats(null: FloatArray, other: FloatArray) -> int:
    """Count releases that repeat exactly under one hypothesis and never under the other.

    Of a statistic (count,) under each. 0 where half of the releases or more repeat, or many
    different ones do: a discrete law may do so, and what leaves out its noise at times does not.
    """
    both = np.concatenate([null, other])
    fractions, exponents = np.frexp(both)
    rounded = np.ldexp(np.round(fractions, _EQUAL), exponents)
    values, places = np.unique(rounded, return_inverse=True)
    sides = np.split(places, [len(null)])
    counts = np.stack([np.bincount(side, minlength=len(values)) for side in sides])
    repeated = counts.max(axis=0) >= _OFTEN
    if counts[:, repeated].sum() >= len(both) / 2 or repeated.sum() > _FEW:
        return 0
    return int(counts[:, repeated & (counts.min(axis=0) == 0)].sum())


def cosine(scores: FloatArray, length: float) -> FloatArray:
    """Cosine of a release with the way between both means, seen from halfway between them.

    ``scores`` are projection and distance, (2, count), and ``length`` is that of the way. Noise in
    many dimensions leaves it near 0; a release without noise is at −1 or 1.
    """
    ahead = scores[0] - length / 2
    square = scores[1] ** 2 - length * scores[0] + length**2 / 4
    return np.asarray(ahead / np.sqrt(np.maximum(square, ahead**2 + np.finfo(float).tiny)))


def least_noise(null: Tensor, other: Tensor, statistics: ReleaseStatistics) -> Further:
    """Make Fisher's discriminant: the projection that noise of this covariance hides least.

    Of releases, (count, elements) each. With R the looks less their hypothesis's mean, each element
    over its deviation, and g the statistics's mean difference in the same units, the weights are
    (RᵀR/n + λ)⁻¹ g, by the singular values of R. Where R spans no more than a part of the space
    they lead to what is outside of it.
    """
    null, other = null.double(), other.double()
    residuals = torch.cat([null - null.mean(dim=0), other - other.mean(dim=0)])
    rounding = torch.finfo(torch.float32).eps * (null[0].abs() + other[0].abs())
    scale = torch.maximum(residuals.square().mean(dim=0).sqrt(), rounding)
    scale = torch.where(scale > 0, scale, 1.0)
    gap = statistics.towards.double() / scale
    _, values, directions = torch.linalg.svd(residuals / scale, full_matrices=False)
    inside = directions @ gap
    outside = gap - directions.T @ inside
    shares = _RIDGE / (values.square() / len(residuals) + _RIDGE)
    weights = (outside + directions.T @ (shares * inside)) / scale
    weights, centre = weights / torch.linalg.vector_norm(weights), null.mean(dim=0)
    return lambda releases, _: np.asarray(((releases.double() - centre) @ weights).cpu())
