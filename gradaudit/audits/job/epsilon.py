"""Computes epsilon over a job's rounds where the noise's law is known; else says why not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_composed
from gradaudit.audits.job.loading.chains import JobChain, LoadedJob
from gradaudit.audits.job.probing import LeftNumbers, Probe
from gradaudit.core.noise_laws import Noise
from gradaudit.core.parts import library
from gradaudit.core.text import listed

RELATIONS: tuple[Relation, ...] = ("remove", "replace")
UNKNOWN = "unbounded by what is known: "
_AGREES = 0.95
"""Share of a known multiplier from which the measured one agrees with it."""
_CELLS, _DEVIATIONS, _BISECTIONS = 64, 14, 60
_NOTHING = 1e-12
_CHANCE = 1e-4
"""Chance that an array of the common noise is taken for one of less."""


@dataclass(frozen=True)
class NoiseStrength:
    """A round's protection of one client: noise over the client's effect, or why there is none.

    Attributes:
        multiplier: noise over the clip, so that a client replaced moves twice the clip; None where
            nothing bounds it or its law is not known.
        why: what the multiplier stands on, or why there is none.
        clear: whether something leaves in clear, so that epsilon is infinite.
        reasons: why epsilon is infinite, all of them.
        measured: noise over the clip as measured, whatever its law is and whatever numbers leave
            beside the arrays; 0 where nothing bounds it.
        without: the protection if what leaves in clear did not leave.
        claim: ε and δ of one message that a mod itself claims; None where it claims none.
    """

    multiplier: float | None
    why: str
    clear: bool = False
    measured: float = 0.0
    without: NoiseStrength | None = None
    claim: tuple[float, float] | None = None
    reasons: tuple[str, ...] = ()

    @classmethod
    def infinite(cls, reasons: Sequence[str], without: NoiseStrength) -> NoiseStrength:
        """Make the strength of none, for these reasons, beside that without them."""
        why = f"infinite, because {reasons[0]}"
        return cls(None, why, clear=True, without=without, reasons=tuple(reasons))

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key of protections, the weakest first and the unknown before the known."""
        return not self.clear, self.multiplier is not None, self.multiplier or self.measured

    def of_rounds(self, numbers: str) -> NoiseStrength:
        """Name the rounds that this is the protection of, where it is not that of all."""
        if not numbers:
            return self
        reasons = tuple(f"{reason} ({numbers})" for reason in self.reasons)
        return replace(self, why=f"{self.why} ({numbers})", reasons=reasons)

    def epsilon(self, rounds: int, delta: float, relation: Relation) -> float | None:
        """Compute a client's epsilon over a number of rounds; None where it is not known."""
        if self.clear:
            return math.inf
        if self.multiplier is None:
            return None
        return epsilon_composed(self.multiplier, rounds, delta, relation=relation)


def strength_of(chain: JobChain, probe: Probe, noise: Noise | None) -> NoiseStrength:
    """Compute the protection that a client's own noise gives in one round.

    Args:
        chain: of the training.
        probe: what it does.
        noise: the law that the user declares.
    """
    bare = _unprotected(probe)
    measured = 0.0 if bare else _multiplier(probe)
    return replace(_by_law(chain, probe, noise, measured), measured=measured)


def _by_law(chain: JobChain, probe: Probe, noise: Noise | None, measured: float) -> NoiseStrength:
    if chain.masked and not probe.noisy:
        return NoiseStrength(
            None, f"{UNKNOWN}secure sums alone have no epsilon without assumptions"
        )
    reasons = _unprotected(probe)
    if probe.numbers.clear:
        reasons.append(f"these numbers leave in clear: {listed(probe.numbers.clear, 6)}")
    if reasons:
        return NoiseStrength.infinite(reasons, _without(chain, probe, noise))
    if probe.numbers.noisy:
        return NoiseStrength(None, f"{UNKNOWN}the noise on {probe.numbers.noisy[0]}")
    if chain.known is not None and chain.lawful:
        known = chain.known
        why = "the law of LocalDpMod, known from its source"
        return NoiseStrength(known.sigma / known.clip, why, claim=known.claim)
    if noise != "gaussian":
        return NoiseStrength(None, f"{UNKNOWN}the law of the noise (--noise gaussian declares it)")
    if probe.halved:
        return NoiseStrength(None, f"{UNKNOWN}noise of half precision follows no Gaussian law")
    parts = "at 97.5 %, as noise is" if probe.steady else "at 95 %, as clip and noise are"
    return NoiseStrength(measured, f"an upper value {parts} measured; Gaussian as declared")


def _without(chain: JobChain, probe: Probe, noise: Noise | None) -> NoiseStrength:
    """Compute the protection of a result without the arrays and numbers that leave in clear."""
    clear = {*probe.untouched, *probe.bare, *probe.counts}
    kept = tuple(change for change in probe.array_changes if change.key not in clear)
    rest = replace(probe, array_changes=kept, numbers=LeftNumbers())
    if reasons := _unprotected(rest) if rest.carrying else ["nothing else leaves"]:
        return NoiseStrength(None, f"{UNKNOWN}{reasons[0]}")
    return _by_law(chain, rest, noise, _multiplier(rest))


def _multiplier(probe: Probe) -> float:
    """Bound the noise over half the sensitivity from below; 0 without a clip."""
    sensitivity = probe.largest.interval[1] if probe.clipped else math.inf
    return 2 * _least_noise(probe) / max(sensitivity, _NOTHING)


def strength_of_release(
    job: LoadedJob, measured: Any, heaviest: float | None = None
) -> NoiseStrength:
    """Compute the protection of the server's release in a round, where Flower adds the noise.

    The law is that of fixed clipping around ``FedAvg``, as Flower's accountant demands too: noise
    of z·C/n on a mean that one client moves by C/n. It counts where the measured release agrees.
    A client that is absent counts as one whose update is zero. In a mean weighted by counts, a
    client with the share ``heaviest`` of the weight moves it by that share of its clip.
    """
    names = [type(layer).__name__ for layer in job.server.layers]
    whole = [key for key in job.layout.received if key not in job.layout.real]
    if not names[0].endswith("FixedClipping"):
        return NoiseStrength(None, f"{UNKNOWN}the law of {names[0]}")
    if names[1:] != ["FedAvg"]:
        return NoiseStrength(None, f"{UNKNOWN}how far a client moves the mean of {names[-1]}")
    if whole:
        return NoiseStrength(None, f"{UNKNOWN}{whole[0]} is averaged without a clip")
    weighted = measured.uneven < _AGREES * measured.even
    if weighted and heaviest is None:
        why = "the mean weighs clients by their counts (--heaviest-share bounds a client's weight)"
        return NoiseStrength(None, f"{UNKNOWN}{why}")
    declared = job.server.outermost.num_sampled_clients
    multiplier = measured.promised * min(1.0, measured.clients / declared)
    if measured.even < _AGREES * multiplier:
        return NoiseStrength(None, f"{UNKNOWN}the mean has less noise than {names[0]} promises")
    known = "the law of the strategy's noise, known from its source"
    if not weighted or heaviest is None:
        return NoiseStrength(multiplier, known)
    share = max(heaviest, 1 / measured.clients)
    why = f"{known}; a client holds {share:.3g} of the weight at most, as declared"
    return NoiseStrength(multiplier / (measured.clients * share), why)


def epsilon_laplace_composed(each: float, count: int, delta: float) -> float:
    """Compute epsilon of ``count`` numbers under Laplace noise, each with at most ``each``.

    The privacy loss of one is ``each`` with probability 1/2, minus ``each`` with e^(-each)/2, and
    between them has the density e^((l - each)/2)/4; that of all is its convolution, by a discrete
    Fourier transform. On a grid of each/64, with the mass of a cell shared out to its ends, it
    agrees with dp-accounting's within 1 % (``tests/audits/job/test_epsilon.py``).
    """
    step, width = each / _CELLS, 2 * _CELLS + 1
    ends = (np.arange(width) - _CELLS) * step
    rise = np.exp((ends - each) / 2) / 2
    between = np.diff(rise)
    loss = np.concatenate([[math.exp(-each) / 2], np.zeros(width - 2), [0.5]])
    loss[:-1] += between / 2
    loss[1:] += between / 2
    mean = float(loss @ ends)
    spread = math.sqrt(count * float(loss @ (ends - mean) ** 2))
    size = 2 ** math.ceil(math.log2(max(width, 2 * _DEVIATIONS * spread / step)))
    total = np.fft.irfft(np.fft.rfft(loss, size) ** count, size).clip(0)
    first = round(count * (mean / step + _CELLS)) - size // 2
    at = (first + (np.arange(size) - first) % size - count * _CELLS) * step
    low, high = 0.0, count * each
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        beyond = at > middle
        kept = float(total[beyond] @ -np.expm1(middle - at[beyond]))
        low, high = (middle, high) if kept > delta else (low, middle)
    return high


def _unprotected(probe: Probe) -> list[str]:
    """List why noise does not hide a client's arrays; nothing where it does."""
    reasons = []
    if clear := [*probe.untouched, *probe.counts]:
        reasons.append(f"these arrays leave in clear: {listed(clear, 6)}")
    if probe.bare:
        reasons.append(f"these arrays leave without noise: {listed(probe.bare, 6)}")
    if probe.untouched or probe.bare:
        return reasons
    if probe.repeats:
        reasons.append("the noise of two rounds is the same")
    elif not probe.noisy:
        reasons.append("no filter or mod adds noise")
    elif not probe.clipped or probe.on_weights or probe.fixed_length:
        reasons.append("no clip before the noise bounds what a client changes")
    return reasons


def _least_noise(probe: Probe) -> float:
    """Bound from below, at 97.5 %, the noise on the array with the least noise.

    Arrays whose deviations agree to what chance allows are taken together.
    """
    free = {f.key: (f.looks - 1) * _elements(f.kind) for f in probe.carrying}
    squares = {f.key: f.noise**2 * free[f.key] for f in probe.carrying}
    pooled = sum(squares.values()) / max(1, sum(free.values()))
    ends = {key: 2 * gammaincinv(n / 2, _CHANCE) for key, n in free.items()}
    if all(squares[key] >= pooled * ends[key] for key in free):
        squares, free = {"": sum(squares.values())}, {"": sum(free.values())}
    bounds = [
        math.sqrt(squares[k] / float(2 * gammaincinv(free[k] / 2, 0.975))) for k in free if free[k]
    ]
    return min(bounds, default=0.0)


def _elements(kind: str) -> int:
    """Count an array's elements from its type and shape in words: ``float32 3×4``."""
    shape = kind.rpartition(" ")[2]
    return 1 if shape == "0-d" else math.prod(int(part) for part in shape.split("×"))


def by_accountant(strategy: Any, rounds: int) -> float | None:
    """Compute epsilon by the framework's own accountant; None where it has none.

    It is the job's own, which counts these rounds from here on: it cannot be copied.
    """
    accountant = getattr(strategy, "accountant", None)
    if accountant is None:
        return None
    events = library("flwr.supercore.privacy_accounting", "flower", "job")
    event = events.GaussianPrivacyEvent(
        noise_multiplier=strategy.noise_multiplier,
        sample_size=strategy.num_sampled_clients,
        population_size=accountant.config.population_size,
    )
    for _ in range(rounds):
        accountant.compose(event)
    return float(accountant.get_privacy_spent().epsilon)
