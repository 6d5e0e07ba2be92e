"""Verdicts on a pair without a game, where the mechanism's law is known.

Releases can never show that ε is infinite: one that was equal a thousand times may differ the next,
and code may draw where nobody sees it (``os.getrandom``, ``/dev/urandom``, a library in C). So an
infinite ε is said only of a law that is known: a mechanism that adds no noise, and a defense that
draws nothing. A mechanism from a file plays the game, whatever its releases look like, and equal
releases give the finite bound that so many of them prove.
"""

import math
from dataclasses import dataclass

import torch

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, reproducible, shifts
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.randomness import Seed


@dataclass(frozen=True)
class DegenerateVerdict:
    """A verdict without trials.

    ``reason`` tells what is known; ε of the pair is infinite where the two values' releases never
    coincide, and 0 where they are the same, so that the pair can test no claim.
    """

    reason: str
    epsilon: float


def verdict_without_trials(
    mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed
) -> DegenerateVerdict | None:
    """The verdict of the law on a pair, or None where only the game can decide.

    Equal gradients, or equal noiseless releases, tell nothing apart; a mechanism without noise
    tells everything; a deterministic one tells what it does not release alike.
    """
    if hypotheses.indistinguishable:
        return DegenerateVerdict("the record's gradient is the same with either value", 0.0)
    if mechanism.deterministic:
        return _certain(mechanism, hypotheses, seed)
    law = mechanism.law(hypotheses.records)
    if mechanism.foreign or law is None:
        return None
    if not shifts(law, hypotheses).any():
        return DegenerateVerdict("the noiseless release is the same with either value", 0.0)
    if law.scale == 0:
        return DegenerateVerdict("the mechanism adds no noise", math.inf)
    return None


def _certain(mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed) -> DegenerateVerdict:
    """The verdict on a mechanism that is known to draw nothing: one release of each is enough."""
    with reproducible(seed, hypotheses.null.device) as generator:
        null, *others = (mechanism.release(batch, generator) for batch in hypotheses.batches)
    apart = any(not torch.equal(null, other) for other in others)
    how = "the two values' differ" if apart else "it is the same with either value"
    reason = f"{mechanism.description} is deterministic, so its release is certain: {how}"
    return DegenerateVerdict(reason, math.inf if apart else 0.0)
