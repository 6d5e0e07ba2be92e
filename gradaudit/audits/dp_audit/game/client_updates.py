"""Simulated updates of a client, and which two of them are neighbours in the game."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.canary import CanaryPairs, Pair
from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise
from gradaudit.audits.dp_audit.law.theory import Relation
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.payload import LENGTHS, Layout, owner_of, simulated
from gradaudit.core.randomness import Seed, sequence
from gradaudit.core.specs import suggest
from gradaudit.core.text import listed
from gradaudit.errors import UsageError
from gradaudit.models.target import layers_of
from gradaudit.subject import Subject

NONE, OPPOSITE = "no update", "its opposite"
_ENOUGH = 0.999


def layout_of(subject: Subject, unsent: Sequence[str]) -> Layout:
    """Lay out the arrays that clients send: no hidden layers, and not ``unsent``.

    Raises:
        UsageError: a glob matches no key, or nothing is left.
    """
    state = subject.target.model.state_dict()
    for glob in unsent:
        if not any(fnmatchcase(key, glob) for key in state):
            raise UsageError(
                f"--unsent {glob}: matches no array of the model{suggest(glob, list(state))}; "
                f"they are: {listed(state, 20)}"
            )
    layers = [layer.name for layer in layers_of(subject.target.model)]
    kept = {
        key: array
        for key, array in state.items()
        if owner_of(key, layers) not in subject.hidden
        and not any(fnmatchcase(key, glob) for glob in unsent)
    }
    if not kept:
        raise UsageError("nothing is sent: all arrays are hidden (--hide) or left out (--unsent)")
    return Layout.of(kept)


def choose_updates(
    mechanism: Middleware, relation: Relation, seed: Seed
) -> tuple[CanaryPairs[Pair], Tensor, tuple[str, ...], str]:
    """Choose the length at which a simulated update and its neighbour leave furthest apart.

    The neighbour is the opposite update, or none. Gaps are distances of what leaves, under the
    same randomness, or of the updates where no seed holds it fast; of equals the shortest is taken.

    Returns:
        The pairs, updates (updates, elements) float64, their names, and how gaps were measured.

    Raises:
        AuditError: the middleware fails.
    """
    unit = simulated(mechanism.layout, sequence(seed, "update"))
    other, sign = (NONE, 0.0) if relation == "remove" else (OPPOSITE, -1.0)
    updates = torch.stack([way * length * unit for length in LENGTHS for way in (1.0, sign)])
    names = tuple(
        name for length in LENGTHS for name in (f"a simulated update of norm {length:g}", other)
    )
    common = CommonNoise(mechanism, sequence(seed, "common noise"))
    steady = common.repeats(updates[:1])
    released = common(updates, updates[:0]) if steady else updates
    gaps = torch.linalg.vector_norm(released[::2] - released[1::2], dim=1)
    best = int((gaps >= _ENOUGH * gaps.max()).nonzero()[0])
    pair = Pair("simulated", 2 * best, 2 * best + 1, gap=float(gaps[best]))
    words = "the release with common noise" if steady else "the updates, before the middleware"
    return CanaryPairs({}, pair, gaps[:0]), updates, names, words
