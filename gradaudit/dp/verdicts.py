"""Verdicts that need no trials: no difference to tell, no noise, or noise that repeats."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradaudit.dp.board import Board, shifts
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.randomness import randomness_state, reproducible
from gradaudit.errors import AuditError

LOOKS = 16
"""Releases that are looked at under each hypothesis."""

_FULL_RANK = 1e-3
"""Singular values below this share of the largest are rounding."""
_ELEMENTS_A_LOOK = 2
"""With so many elements a look, or more, no singular value of fresh noise is near to that."""
_ROUNDINGS = 10
_DENSE = 0.9
"""Share of elements that continuous noise changes from one release to the next."""


@dataclass(frozen=True)
class Verdict:
    """A verdict without trials.

    Attributes:
        reason: what repeats, in words.
        epsilon: of the pair: infinite where the hypotheses' releases never coincide, else 0.
    """

    reason: str
    epsilon: float


def verdict_without_trials(
    mechanism: Mechanism, board: Board, seed: np.random.SeedSequence
) -> Verdict | None:
    """What can be said of a pair without a game, or None.

    Equal gradients, or equal noiseless releases, tell nothing apart; a mechanism without noise
    tells everything; a deterministic one tells what it does not release alike; and one that
    repeats its noise is found by ``find_repetition``.
    """
    if board.indistinguishable:
        return Verdict("the record's gradient is the same with either value", 0.0)
    if mechanism.deterministic:
        return _certain(mechanism, board, seed)
    if not isinstance(mechanism, AdditiveMechanism) or mechanism.foreign:
        return find_repetition(mechanism, board, seed)
    if not shifts(mechanism, board).any():
        return Verdict("the noiseless release is the same with either value", 0.0)
    if mechanism.scale(board.records) == 0:
        return Verdict("the mechanism adds no noise", math.inf)
    return None


def _certain(mechanism: Mechanism, board: Board, seed: np.random.SeedSequence) -> Verdict:
    """The verdict on a mechanism that is known to draw nothing: one release of each is enough."""
    with reproducible(seed, board.null.device) as generator:
        null = mechanism.release(board.batch(board.null), generator)
        apart = any(
            not torch.equal(null, mechanism.release(board.batch(record), generator))
            for record in board.alternatives
        )
    found = "the two values' differ" if apart else "it is the same with either value"
    reason = f"{mechanism.description} is deterministic, so its release is certain: {found}"
    return Verdict(reason, math.inf if apart else 0.0)


def find_repetition(
    mechanism: Mechanism, board: Board, seed: np.random.SeedSequence
) -> Verdict | None:
    """Look whether a mechanism's releases, or its noise, repeat.

    Equal releases count only if the mechanism leaves every generator in a state that it has been
    in before: a random answer that happens to be the same does not repeat. Noise repeats if the
    differences between releases span fewer dimensions than fresh noise would: seeds that come
    round again, one number for all elements. The release is then certain in every other direction,
    and a pair that differs there is told apart for sure.

    Raises:
        AuditError: the mechanism's batched form repeats its noise within a batch.
    """
    first, second = seed.spawn(2)
    null, null_repeats = _look(mechanism, board.batch(board.null), first)
    other, other_repeats = _look(mechanism, board.batch(board.alternatives[0]), second)
    if _constant(null) and _constant(other):
        if not (null_repeats and other_repeats):
            return None
        rest = zip(board.alternatives[1:], seed.spawn(len(board.alternatives) - 1), strict=True)
        released = [other, *(_look(mechanism, board.batch(v), child)[0] for v, child in rest)]
        apart = any(not torch.equal(null[0], found[0]) for found in released)
        reason = f"{LOOKS} of {LOOKS} releases are equal bit for bit under each hypothesis"
        return Verdict(reason, math.inf if apart else 0.0)
    if _some_equal(null) and not null_repeats:
        return None
    return _narrow(null, other)


def _look(mechanism: Mechanism, batch: Tensor, seed: np.random.SeedSequence) -> tuple[Tensor, bool]:
    """Releases (LOOKS, elements), and whether the randomness comes back to where it was."""
    releases, states = [], []
    with reproducible(seed, batch.device) as generator:
        for _ in range(LOOKS):
            releases.append(mechanism.release(batch, generator).to(torch.float64))
            states.append(randomness_state(generator))
        pair = mechanism.releases(batch, 2, generator)
    found = torch.stack(releases)
    if _constant(pair) and not _some_equal(found):
        raise AuditError(
            f"--mechanism {mechanism.description}: its batched form repeats one release within a "
            "batch; draw noise for each"
        )
    return found, len(set(states)) < LOOKS


def _narrow(null: Tensor, other: Tensor) -> Verdict | None:
    """A verdict where the noise of both hypotheses spans too few dimensions.

    Every element counts in units of its own noise, so that loud elements do not hide quiet ones.
    """
    noise = torch.cat([null[1:] - null[0], other[1:] - other[0]])
    if noise.shape[1] < _ELEMENTS_A_LOOK * len(noise) or not _dense(noise):
        return None
    unit = noise.square().mean(dim=0).sqrt()
    unit[unit == 0] = math.inf
    _, values, directions = torch.linalg.svd(noise / unit, full_matrices=False)
    spanned = directions[values > _FULL_RANK * values[0]]
    gap = (other[0] - null[0]) / unit
    outside = torch.linalg.vector_norm(gap - spanned.T @ (spanned @ gap))
    rounding = torch.finfo(torch.float32).eps * torch.linalg.vector_norm(null[0] / unit)
    if len(spanned) == len(noise) or outside <= _ROUNDINGS * rounding:
        return None
    reason = (
        f"the noise of {2 * LOOKS} releases spans {len(spanned)} of {len(gap)} dimensions and is "
        "no noise in the others"
    )
    return Verdict(reason, math.inf)


def _constant(releases: Tensor) -> bool:
    return bool((releases == releases[0]).all())


def _some_equal(releases: Tensor) -> bool:
    return len(torch.unique(releases, dim=0)) < len(releases)


def _dense(noise: Tensor) -> bool:
    """Whether releases that differ do so nearly everywhere, as continuous noise makes them."""
    changed = (noise != 0).to(torch.float64).mean(dim=1)
    return bool((changed[changed > 0] > _DENSE).all())
