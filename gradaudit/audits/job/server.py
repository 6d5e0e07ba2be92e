"""Measures the noise on a Flower strategy's released mean by running its aggregation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import reproducible
from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.flower_messages import answered, arrays_of, reply_of
from gradaudit.audits.dp_audit.middleware.payload import Outgoing, Payload, simulated
from gradaudit.audits.job.loading.chains import Fault, JobChain, Level, LoadedJob, fault
from gradaudit.core.randomness import Seed, sequence
from gradaudit.errors import AuditError

_LONG, _HEAVY = 1e3, 9
"""Norm of the updates, and examples of the heaviest client as a multiple of the others'."""
_NUMBERS, _MESSAGES = 5_000, 2_000
"""Degrees of freedom that a deviation is estimated from, messages that this may take."""
_KEPT = 0.95
"""Share of the promised multiplier from which it counts as kept: 5,000 numbers are within 2 %."""


@dataclass(frozen=True)
class Multiplier:
    """The noise multiplier of the released mean: noise over one client's largest effect.

    Attributes:
        promised: by the strategy, or None where it says nothing.
        even: where all clients have as many examples.
        uneven: where one client has nine times as many as each other.
        clients: that answered.
    """

    promised: float | None
    even: float
    uneven: float
    clients: int


def adds_noise(job: LoadedJob) -> bool:
    """Whether the server's strategy promises noise on the mean."""
    return job.server is not None and promised(job) is not None


def promised(job: LoadedJob) -> float | None:
    """Return the strategy's declared noise multiplier, where it has one above zero."""
    for layer in job.server.layers:
        value = getattr(layer, "noise_multiplier", None)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def multiplier(job: LoadedJob, chain: JobChain, seed: Seed) -> Multiplier:
    """Run the strategy's aggregation on simulated updates.

    Raises:
        AuditError: the strategy fails, or releases nothing.
    """
    clients = len(job.server.fresh().asked("train"))
    even, uneven = [1] * clients, [_HEAVY, *[1] * (clients - 1)]
    noise = _noise(job, chain, even, seed)
    alike = apart = _moved(job, chain, even, seed)
    if job.server.counted not in chain.constants:
        with suppress(AuditError):  # Flower's accountant refuses clients that weigh differently
            apart = _moved(job, chain, uneven, seed)
    return Multiplier(promised(job), _over(noise, alike), _over(noise, apart), clients)


def _over(noise: float, moved: float) -> float:
    return noise / moved if moved else np.inf


def _updates(job: LoadedJob, clients: int, seed: Seed) -> list[Tensor]:
    """Make clients' updates, (elements,) in single precision, as they are sent."""
    seeds = (sequence(seed, "client", i) for i in range(clients))
    return [simulated(job.layout, each).float() * _LONG for each in seeds]


def _noise(job: LoadedJob, chain: JobChain, counts: Sequence[int], seed: Seed) -> float:
    """Estimate the deviation of the noise on an element of the released mean."""
    updates = _updates(job, len(counts), seed)
    draws = torch.stack(
        [_released(job, chain, updates, counts, sequence(seed, i)) for i in range(_draws(job))]
    )
    variance = draws.double().var(dim=0)
    return float(variance[variance > 0].mean().sqrt()) if (variance > 0).any() else 0.0


def _moved(job: LoadedJob, chain: JobChain, counts: Sequence[int], seed: Seed) -> float:
    """Measure half the distance by which one client moves the mean, with fixed noise."""
    updates, common = _updates(job, len(counts), seed), sequence(seed, "common")
    there = _released(job, chain, updates, counts, common)
    back = _released(job, chain, [-updates[0], *updates[1:]], counts, common)
    return float((there - back).norm()) / 2


def _draws(job: LoadedJob) -> int:
    """Draw releases of the same updates, with enough numbers in few messages."""
    enough = 1 + math.ceil(_NUMBERS / max(1, job.layout.elements))
    affordable = _MESSAGES // max(1, job.clients or 1)
    return max(2, min(enough, affordable))


def replied(message: Message, chain: JobChain, config: Mapping[str, Any], content: Any) -> Message:
    """Compute a client's reply to a server's message, through its chain of mods."""
    reply: Message = answered(message, [x.part for x in reversed(chain.links)], config, content)
    return reply


def _released(
    job: LoadedJob, chain: JobChain, updates: Sequence[Tensor], counts: Sequence[int], seed: Seed
) -> Tensor:
    """Compute the server's release of a first round, as an update (elements,)."""
    server = job.server.fresh()
    with reproducible(seed, updates[0].device), quiet():
        replies = [
            replied(message, chain, server.config, _content(job, message, chain, update, count))
            for message, update, count in zip(server.asked("train"), updates, counts, strict=True)
        ]
        try:
            arrays, _ = server.strategy.aggregate_train(1, replies)
        except (Exception, SystemExit) as error:  # whatever the user's strategy raises
            raise AuditError(f"the strategy fails to aggregate: {error}") from error
    if not arrays:
        raise AuditError("the strategy releases nothing: every reply is an error")
    released = arrays_of(arrays, tuple(job.layout.received) if server.legacy else ())
    return job.layout.update(Payload(released, "weights"))


def _content(
    job: LoadedJob, message: Message, chain: JobChain, update: Tensor, count: int
) -> RecordDict:
    arrays = job.layout.payload(update.float(), "weights").arrays
    numbers = {**chain.numbers, job.server.counted: count}
    return reply_of(Outgoing(arrays, "weights", numbers), message, legacy=job.server.legacy)


def server_faults(job: LoadedJob, chain: JobChain, found: Multiplier) -> Iterator[Fault]:
    """List the faults by which the released mean has less noise than the strategy promises."""
    if found.promised is None:
        return
    file = job.server.file
    name, few = type(job.server.outermost).__name__, found.even < _KEPT * found.promised
    declared = getattr(job.server.outermost, "num_sampled_clients", found.clients)
    facts = {
        **vars(found),
        "part": name,
        "declared": declared,
        "heavy": _HEAVY,
        "counted": job.server.counted,
    }
    facts["instead"] = f"the multiplier is {found.even:.3g} instead of {found.promised:.3g}"
    if found.clients < declared:
        yield fault("fewer-clients", file, f"{name}(num_sampled_clients=)", "server", **facts)
    elif few and "Adaptive" in name:
        yield fault("adaptive-clip-noise", file, name, "server", **facts)
    elif few:
        summed = job.secure is not None and "ServerSide" in name
        kind = "clip-of-the-sum" if summed else "server-noise-too-small"
        yield fault(kind, file, name, "server", **facts)
    assumed = job.server.counted in chain.assumed
    if found.uneven < _KEPT * min(found.even, found.promised):
        level: Level = "warning" if assumed else "error"
        facts["assumed"] = ", which are assumed to differ" if assumed else ""
        name = "mean-weighted-by-counts"
        yield fault(name, file, "weighted_by_key", "server", level=level, **facts)


def unmeasured(job: LoadedJob, error: AuditError) -> Fault:
    """Make the fault of a strategy that fails on simulated replies, so nothing is measured."""
    file, key = job.server.file, type(job.server.outermost).__name__
    what = "the released mean"
    return fault("result-unmeasured", file, key, "server", what=what, why=str(error))


def wrong_way(job: LoadedJob, chain: JobChain, seed: Seed) -> Iterator[Fault]:
    """Adaptive clipping that shrinks its clip when most updates are clipped (flwr 1.41)."""
    name = type(job.server.outermost).__name__
    if "Adaptive" not in name:
        return
    before = job.server.outermost.clipping_norm
    server = job.server.fresh()
    with reproducible(seed, torch.device("cpu")), quiet():
        updates = (simulated(job.layout, sequence(seed, i)) * 1e-3 * before for i in count())
        replies = [
            replied(message, chain, server.config, _content(job, message, chain, update, 1))
            for message, update in zip(server.asked("train"), updates, strict=False)
        ]
        server.strategy.aggregate_train(1, replies)
    after = server.outermost.clipping_norm
    if after > before:
        facts = {"part": name, "before": before, "after": after}
        yield fault("adaptive-clip-direction", job.server.file, name, "server", **facts)
