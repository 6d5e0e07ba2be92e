"""Statistics of releases that find noise missing in some elements or directions, and verdicts.

The projection onto the mean difference reads noise that is alike in all directions. Faulty noise
may be none in some direction (one number for all elements, an array that is left out), or in some
elements (those whose gradient is zero, as of embeddings that no token touches), or have a scale
that depends on the data. Each of these has a statistic here, which a few releases under each
hypothesis, the *looks*, set up. A pilot decides which one is played (``game.play``), so that none
of them has seen a trial: the bound is valid whatever the looks made of the noise, and only its
power depends on it.

**Verdicts without a game.** Releases can never show that ε is infinite: one that was equal a
thousand times may differ the next, and code may draw where nobody sees it (``os.getrandom``,
``/dev/urandom``, a library in C). So an infinite ε is said only of a law that is known: a mechanism
that adds no noise. A mechanism from a file plays the game, whatever its releases look like, and
equal releases give the finite bound that so many of them prove.
"""

import math
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
from gradaudit.audits.dp_audit.mechanisms import Mechanism, finite
from gradaudit.core.randomness import Seed, sequence
from gradaudit.errors import AuditError

FEWEST_LOOKS, MOST_LOOKS = 16, 128
"""Looks under each hypothesis. With 128, noise is missed in some direction of up to 254 where it
spans fewer; 16 are what a million elements have room for."""
_NUMBERS = 1 << 20
"""Numbers of the looks under one hypothesis, where that leaves enough looks."""
_RIDGE = 1e-12
"""Share of an element's variance below which noise is rounding."""


@dataclass(frozen=True)
class DegenerateVerdict:
    """A verdict that needs no trials, since the mechanism's law decides it.

    ``reason`` says what is known; ε of the pair is infinite where the two values' releases never
    coincide, and 0 where they are the same, so that the pair can test no claim.
    """

    reason: str
    epsilon: float


def verdict_without_trials(
    mechanism: Mechanism, hypotheses: Hypotheses
) -> DegenerateVerdict | None:
    """Decide on a pair by the mechanism's law; None where only the game can decide.

    Equal gradients, or equal noiseless releases, have ε = 0; a mechanism without noise has an
    infinite ε.
    """
    if hypotheses.indistinguishable:
        return DegenerateVerdict("the record's gradient is the same with either value", 0.0)
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
    # The sign is 1 where releases of the alternative are farther from the null's mean, else −1.
    near, far = (np.median(statistics.scores(side)[1]) for side in (looks, alternatives))
    farther = 1 if far >= near else -1
    further: dict[str, Further] = {
        "distance from the null hypothesis's mean": lambda _, scores: farther * scores[1],
        "projection onto the direction of least noise": least_noise(
            looks, alternatives, statistics
        ),
    }
    if (noiseless := noiseless_elements(looks, alternatives)) is not None:
        further["number of elements at their noiseless value"] = noiseless
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
        together = finite(mechanism, [batch], mechanism.releases(batch, count, generator))
        if bool((together == together[0]).all()):
            singly = [mechanism.release(batch, generator) for _ in range(FEWEST_LOOKS)]
            if len(torch.unique(torch.stack(singly), dim=0)) == FEWEST_LOOKS:
                raise AuditError(
                    f"--mechanism {mechanism.description}: its batched form repeats one release "
                    "within a batch; draw noise for each"
                )
    return together


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
