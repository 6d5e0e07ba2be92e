"""Clients' updates, and which two of them are neighbours in the game."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.canary import CanaryPairs, Pair
from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.payload import Layout, owner_of
from gradaudit.core.randomness import Seed, number, rng, sequence
from gradaudit.core.specs import suggest
from gradaudit.core.text import listed
from gradaudit.errors import UsageError
from gradaudit.federation.clients import Client, ClientModel, Server
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import layers_of
from gradaudit.progress import Advance
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

NONE = "no update"
OPPOSITE = "its opposite"
_FACTORS = (1.0, 10.0, 100.0, 1e3, 1e4)
"""How many times as long as a client's a crafted update may be."""
_ENOUGH = 0.999


def train_clients(
    subject: Subject, options: DpAuditOptions, seed: Seed, advance: Advance
) -> tuple[Layout, Tensor]:
    """Train each client for one step of plain SGD, in training mode, from the newest weights.

    Every client has as many records as the others, drawn at random, and no two the same one, so
    that counts (of batches) are alike. ``advance`` is called for every client.

    Returns:
        The arrays received but those that are never sent, and updates (clients, elements) float64
        in the order of that layout.

    Raises:
        UsageError: there are too few records for two clients, or nothing is left to send.
        AuditError: the training diverges.
    """
    size, found = options.client_records, len(subject.records)
    count = min(options.clients, found // size)
    if count < 2:
        raise UsageError(
            f"--client-records {size}: two clients need {2 * size} records, and there are {found}"
        )
    target, training = replace(subject.target, mode="train"), TrainingOptions(rate=options.rate)
    sharing = SharingProtocol(hidden=subject.hidden)
    client_model = ClientModel(target, training, size, sharing, number(seed, "training"))
    state = Server(target, training).state()
    layout = Layout.of({key: state[key] for key in _sent(subject, options.unsent, list(state))})
    order = rng(seed, "clients").permutation(found)
    updates = []
    for index in range(count):
        records = subject.records.take(np.sort(order[index * size :][:size]).astype(np.int64))
        gradient = client_model.gradient(Client(index, records), state, 0).update
        with torch.no_grad():
            for name, parameter in client_model.shared.items():
                parameter.sub_(training.rate * gradient[name])
        trained = Layout.of(client_model.target.model.state_dict()).received
        moved = [trained[key].astype(float) - array for key, array in layout.received.items()]
        updates.append(torch.from_numpy(np.concatenate([each.ravel() for each in moved])))
        advance(1)
    return layout, torch.stack(updates)


def _sent(subject: Subject, unsent: tuple[str, ...], keys: list[str]) -> list[str]:
    """List the state dict's keys that clients send: no hidden layers, and not ``unsent``.

    Raises:
        UsageError: a glob matches no key, or nothing is left.
    """
    for glob in unsent:
        if not any(fnmatchcase(key, glob) for key in keys):
            raise UsageError(
                f"--unsent {glob}: matches no array of the model{suggest(glob, keys)}; "
                f"they are: {listed(keys, 20)}"
            )
    layers = [layer.name for layer in layers_of(subject.target.model)]
    kept = [
        key
        for key in keys
        if owner_of(key, layers) not in subject.hidden
        and not any(fnmatchcase(key, glob) for glob in unsent)
    ]
    if not kept:
        raise UsageError("nothing is sent: all arrays are hidden (--hide) or left out (--unsent)")
    return kept


@dataclass(frozen=True)
class Pool:
    """The updates that can be chosen, and which of them are neighbours.

    Attributes:
        updates: (updates, elements) float64, the clients' first.
        names: each update in words.
        ordinary: pairs of clients, or of a client and no update.
        crafted: pairs that are made up, the shortest updates first.
    """

    updates: Tensor
    names: tuple[str, ...]
    ordinary: list[tuple[int, int]]
    crafted: list[tuple[int, int]]

    @classmethod
    def of(cls, layout: Layout, clients: Tensor, options: DpAuditOptions) -> Self:
        """Make the pool of a relation of neighbours, with crafted updates where allowed.

        Crafted ones are the longest, by a factor, except for its whole-number arrays.
        """
        count, removed = len(clients), options.relation == "remove"
        updates, names = list(clients), [f"client {index}" for index in range(count)]
        ordinary, crafted = list(combinations(range(count), 2)), []
        if removed:
            updates, names = [*updates, torch.zeros_like(updates[0])], [*names, NONE]
            ordinary = [(index, count) for index in range(count)]
        longest = clients[torch.linalg.vector_norm(clients, dim=1).argmax()]
        real = layout.where(layout.real)
        for factor in _FACTORS if options.domain == "free" else ():
            crafted.append((len(updates), count if removed else len(updates) + 1))
            signs = (1,) if removed else (1, -1)
            updates += [torch.where(real, sign * factor * longest, longest) for sign in signs]
            names += [f"the longest update, {factor:g} times", OPPOSITE][: len(signs)]
        return cls(torch.stack(updates), tuple(names), ordinary, crafted)


def choose_clients(
    pool: Pool, mechanism: Middleware, options: DpAuditOptions, seed: Seed
) -> tuple[CanaryPairs[Pair], str]:
    """Choose among the pairs of updates the one whose releases differ most.

    Gaps are distances of what leaves, under the same randomness, or of the updates where no seed
    holds it fast. The crafted pair is that of all with the largest gap, the shortest of equals.

    Returns:
        The pairs, and how gaps were measured.

    Raises:
        UsageError: there is no such client.
        AuditError: the middleware fails.
    """
    common = CommonNoise(mechanism, sequence(seed, "common noise"))
    steady = common.repeats(pool.updates[:1])
    released = common(pool.updates, pool.updates[:0]) if steady else pool.updates

    def gaps(pairs: list[tuple[int, int]]) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(released[i] - released[j]) for i, j in pairs])

    def largest(kind: str, pairs: list[tuple[int, int]]) -> Pair:
        apart = gaps(pairs)
        best = int((apart >= _ENOUGH * apart.max()).nonzero()[0])
        return Pair(kind, *pairs[best], gap=float(apart[best]))

    pairs = {
        "random": largest("random", pool.ordinary[:1]),
        "crafted": largest("crafted", [*pool.ordinary, *pool.crafted]),
    }
    if options.record not in pairs:
        mine = [pair for pair in pool.ordinary if str(pair[0]) == options.record]
        mine += [pair[::-1] for pair in pool.ordinary if str(pair[1]) == options.record]
        if not mine:
            last = pool.ordinary[-1][0 if options.relation == "remove" else 1]
            raise UsageError(
                f"--record {options.record}: write random, crafted or the index of a client, of "
                f"which the last is {last}"
            )
        pairs[options.record] = largest(options.record, mine)
    words = "the release with common noise" if steady else "the updates, before the middleware"
    return CanaryPairs(pairs, pairs[options.record], gaps(pool.ordinary).sort().values), words
