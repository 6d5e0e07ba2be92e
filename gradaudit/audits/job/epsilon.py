"""Epsilon of a job's rounds, where the law of the noise is known; else why there is none."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from scipy.stats import chi2

from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_composed
from gradaudit.audits.job.chains import JobChain
from gradaudit.audits.job.probing import Probe
from gradaudit.noise import Noise

RELATIONS: tuple[Relation, ...] = ("remove", "replace")
UNKNOWN = "unbounded by what is known: "
_CHANCE = 1e-4
"""Chance that an array of the common noise is taken for one of less."""


@dataclass(frozen=True)
class Strength:
    """What a round is worth against one client: noise over what the client moves, or why nothing.

    Attributes:
        multiplier: noise over the clip, so that a client replaced moves twice the clip; None where
            nothing bounds it or its law is not known.
        why: what the multiplier stands on, or why there is none.
        clear: whether something leaves in clear, so that epsilon is infinite.
    """

    multiplier: float | None
    why: str
    clear: bool = False

    def epsilon(self, rounds: int, delta: float, relation: Relation) -> float | None:
        """Epsilon of so many rounds for a client; None where it is not known."""
        if self.clear:
            return math.inf
        if self.multiplier is None:
            return None
        return epsilon_composed(self.multiplier, rounds, delta, relation=relation)

    def of_a_record(self, rounds: int, delta: float) -> float | None:
        """Epsilon for a record, at most: it may turn the client's update into any other."""
        return self.epsilon(rounds, delta, "replace")


def strength_of(chain: JobChain, probe: Probe, noise: Noise | None) -> Strength:
    """What a round of a client's own noise is worth.

    Args:
        chain: of the training.
        probe: what it does.
        noise: the law that the user declares.
    """
    if reason := _in_clear(probe):
        return Strength(None, f"infinite, because {reason}", clear=True)
    if chain.known is not None and chain.lawful:
        known = chain.known
        return Strength(known.sigma / known.clip, "the law of LocalDpMod, known from its source")
    if noise != "gaussian":
        return Strength(None, f"{UNKNOWN}the law of the noise (--noise gaussian declares it)")
    if not probe.steady:
        return Strength(None, f"{UNKNOWN}no seed repeats the noise, so no distance is exact")
    if probe.halved:
        return Strength(None, f"{UNKNOWN}noise of half precision follows no Gaussian law")
    return Strength(
        2 * _least_noise(probe) / probe.sensitivity, "measured, at 97.5 %; Gaussian as declared"
    )


def _in_clear(probe: Probe) -> str:
    """Why two clients are told apart for certain, or empty."""
    if probe.untouched:
        return f"{probe.untouched[0]} leaves in clear"
    if probe.bare:
        return f"{probe.bare[0]} leaves without noise"
    if probe.repeats:
        return "the noise of two rounds is the same"
    if not probe.noisy:
        return "no filter or mod adds noise"
    if probe.numbers:
        return f"{probe.numbers[0]} leaves in clear"
    if not probe.clipped or probe.on_weights or probe.fixed_length:
        return "no clip before the noise bounds what a client changes"
    return ""


def _least_noise(probe: Probe) -> float:
    """A lower bound of the noise on the array that gets the least, at 97.5 %.

    Arrays whose deviations agree to what chance allows are taken together.
    """
    free = {f.key: (f.looks - 1) * _elements(f.kind) for f in probe.carrying}
    squares = {f.key: f.noise**2 * free[f.key] for f in probe.carrying}
    pooled = sum(squares.values()) / max(1, sum(free.values()))
    ends = {key: chi2.ppf(_CHANCE, n) for key, n in free.items()}
    if all(squares[key] >= pooled * ends[key] for key in free):
        squares, free = {"": sum(squares.values())}, {"": sum(free.values())}
    bounds = [math.sqrt(squares[k] / float(chi2.ppf(0.975, free[k]))) for k in free if free[k]]
    return min(bounds, default=0.0)


def _elements(kind: str) -> int:
    """Elements of an array by its type and shape in words: ``float32 3×4``."""
    shape = kind.rpartition(" ")[2]
    return 1 if shape == "0-d" else math.prod(int(part) for part in shape.split("×"))


def by_accountant(strategy: Any, rounds: int) -> float | None:
    """Epsilon of the framework's own accountant after so many rounds; None where there is none."""
    accountant = getattr(strategy, "accountant", None)
    if accountant is None:
        return None
    from flwr.supercore.privacy_accounting import GaussianPrivacyEvent

    ledger = deepcopy(accountant)
    event = GaussianPrivacyEvent(
        noise_multiplier=strategy.noise_multiplier,
        sample_size=strategy.num_sampled_clients,
        population_size=ledger.config.population_size,
    )
    for _ in range(rounds):
        ledger.compose(event)
    return float(ledger.get_privacy_spent().epsilon)
