"""Verdicts that need no trials: no difference to tell, no noise, or noise that repeats.

Releases can never show that ε is infinite: one that was equal a thousand times may differ the
next. An infinite verdict therefore needs more than they show, either of

- **exact repetition that cannot be chance**: over ``CONFIRMED`` releases under each hypothesis the
  release is the same, or goes through the same few in the same order, bit for bit, and all
  randomness that the process knows of (``watched_randomness``) comes back to where it was. A
  discrete law, as of randomised response, draws; what draws where nobody can see still differs
  once in 2,000 releases with probability 1 − 1e-6 at ε = 5;
- **a kernel of the noise**: differences between releases span fewer dimensions than there are of
  them, to rounding. Noise of any law with a density spans as many. Every difference and every
  element counts in units of its own, so that a random or an uneven scale is not taken for missing
  noise, and singular values between noise and rounding leave the question to the trials. So does a
  gap outside of what is spanned that rounding may make, which tilts the directions that are found:
  ten times the largest singular value that is none over those that are some is allowed for (in 600
  simulations of noise along the gap it was .26 times, at most). Repeated releases are of a discrete
  law and are left to the trials too.
"""

import gc
import math
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradaudit.dp.hypotheses import Hypotheses, reproducible, shifts
from gradaudit.dp.mechanisms import Mechanism
from gradaudit.errors import AuditError
from gradaudit.randomness import Seed, sequence

LOOKS = 16
"""Releases that are looked at under each hypothesis."""
CONFIRMED = 1000
"""Releases under each hypothesis that must repeat exactly for a verdict."""

_NOISE = 1e-3
"""Singular values above this share of the largest are noise: of fresh noise, with any scale or tail
that was tried, none of 500 was below a fiftieth."""
_ELEMENTS_A_LOOK = 2
"""With so many elements a look, or more, that holds."""
_ROUNDINGS = 10
_DENSE = 0.9
"""Share of elements that continuous noise changes from one release to the next."""
_BALANCES = 4
"""Rounds of scaling elements and differences in turns."""
_NUMPY = {np.random.Generator, np.random.RandomState, np.random.BitGenerator}
_GENERATORS = {*_NUMPY, random.Random, torch.Generator}


@dataclass(frozen=True)
class Verdict:
    """A verdict without trials.

    ``reason`` tells what repeats; ε of the pair is infinite where the hypotheses' releases never
    coincide, else 0.
    """

    reason: str
    epsilon: float


def verdict_without_trials(
    mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed
) -> Verdict | None:
    """What can be said of a pair without a game, or None.

    Equal gradients, or equal noiseless releases, tell nothing apart; a mechanism without noise
    tells everything; a deterministic one tells what it does not release alike; and one that
    repeats its noise is found by ``find_repetition``.
    """
    if hypotheses.indistinguishable:
        return Verdict("the record's gradient is the same with either value", 0.0)
    if mechanism.deterministic:
        return _certain(mechanism, hypotheses, seed)
    law = mechanism.law(hypotheses.records)
    if mechanism.foreign or law is None:
        return find_repetition(mechanism, hypotheses, seed)
    if not shifts(law, hypotheses).any():
        return Verdict("the noiseless release is the same with either value", 0.0)
    if law.scale == 0:
        return Verdict("the mechanism adds no noise", math.inf)
    return None


def _certain(mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed) -> Verdict:
    """The verdict on a mechanism that is known to draw nothing: one release of each is enough."""
    with reproducible(seed, hypotheses.null.device) as generator:
        null, *others = (mechanism.release(batch, generator) for batch in hypotheses.batches)
    apart = any(not torch.equal(null, other) for other in others)
    how = "the two values' differ" if apart else "it is the same with either value"
    reason = f"{mechanism.description} is deterministic, so its release is certain: {how}"
    return Verdict(reason, math.inf if apart else 0.0)


def find_repetition(mechanism: Mechanism, hypotheses: Hypotheses, seed: Seed) -> Verdict | None:
    """Look whether a mechanism's releases, or its noise, repeat.

    Raises:
        AuditError: the mechanism's batched form repeats its noise within a batch.
    """
    batches = hypotheses.batches
    null, other = (
        _look(mechanism, batch, sequence(seed, "look", index))
        for index, batch in enumerate(batches[:2])
    )
    if _period([*map(_digest, null)]) and _period([*map(_digest, other)]):
        return _repetition(mechanism, batches, sequence(seed, "repetition"))
    if len(torch.unique(torch.cat([null, other]), dim=0)) < 2 * LOOKS:
        return None
    return _kernel(null, other)


def _look(mechanism: Mechanism, batch: Tensor, seed: Seed) -> Tensor:
    """Releases (LOOKS, elements)."""
    with reproducible(seed, batch.device) as generator:
        released = [mechanism.release(batch, generator) for _ in range(LOOKS)]
        together = mechanism.releases(batch, LOOKS, generator)
    singly = torch.stack(released).to(torch.float64)
    if bool((together == together[0]).all()) and len(torch.unique(singly, dim=0)) == LOOKS:
        raise AuditError(
            f"--mechanism {mechanism.description}: its batched form repeats one release within a "
            "batch; draw noise for each"
        )
    return singly


def _repetition(mechanism: Mechanism, batches: list[Tensor], seed: Seed) -> Verdict | None:
    """The verdict where every batch's releases repeat exactly; else, or in doubt, none."""
    releases = []
    device = batches[0].device
    with reproducible(seed, device) as generator, watched_randomness(generator) as state:
        for batch in batches:
            repeated = _repeated(partial(mechanism.release, batch, generator), state)
            if not repeated:
                return None
            releases.append(repeated)
    null, *others = releases
    apart = any(null.isdisjoint(other) for other in others)
    if not apart and any(other != null for other in others):
        return None
    reason = f"{CONFIRMED} of {CONFIRMED} releases repeat bit for bit under each hypothesis"
    return Verdict(reason, math.inf if apart else 0.0)


def _repeated(release: Callable[[], Tensor], state: Callable[[], bytes]) -> set[bytes]:
    """Releases that are made again and again, without anything new being drawn; none if not so."""
    releases, states = [], []
    for _ in range(LOOKS):
        releases.append(_digest(release()))
        states.append(state())
    if len(set(states)) > LOOKS // 2:
        return set()
    releases += [_digest(release()) for _ in range(CONFIRMED - LOOKS)]
    return set(releases) if _period(releases) and state() in states else set()


def _digest(release: Tensor) -> bytes:
    """Equal for equal releases (and zeros of either sign)."""
    return blake2b((release.to(torch.float64) + 0.0).cpu().numpy().tobytes()).digest()


def _period(releases: list[bytes]) -> int | None:
    """After how many releases, at most half of ``LOOKS``, they come again in the same order."""
    return next((n for n in range(1, LOOKS // 2 + 1) if releases[n:] == releases[:-n]), None)


def _kernel(null: Tensor, other: Tensor) -> Verdict | None:
    """A verdict where the noise of both hypotheses is none in a direction that tells them apart."""
    pairs = [_neighbours(null), _neighbours(other), (null[:1], other[:1])]
    before, after = (torch.cat(side) for side in zip(*pairs, strict=True))
    differences = after - before
    rounding = torch.finfo(torch.float32).eps * torch.maximum(before.abs(), after.abs())
    noise = differences[:-1]
    changed = (noise != 0).double().mean(dim=1)
    if noise.shape[1] < _ELEMENTS_A_LOOK * len(noise) or not (changed > _DENSE).all():
        return None
    by_element, by_row = _balance(noise)
    differences, rounding = differences / by_element, _ROUNDINGS * rounding / by_element
    _, values, directions = torch.linalg.svd(noise / by_element / by_row, full_matrices=False)
    spanned = values > _NOISE * values[0]
    nothing = values <= torch.linalg.norm(rounding[:-1] / by_row)
    if spanned.all() or not (spanned ^ nothing).all():
        return None
    basis, gap = directions[spanned], differences[-1]
    inside = basis @ gap
    outside = torch.linalg.vector_norm(gap - basis.T @ inside)
    tilt = torch.linalg.vector_norm(inside / values[spanned]) * values[~spanned][0]
    if outside <= torch.linalg.vector_norm(rounding[-1]) + _ROUNDINGS * tilt:
        return None
    reason = (
        f"the noise of {2 * LOOKS} releases spans {len(basis)} of {len(gap)} dimensions and is "
        "no noise in the others"
    )
    return Verdict(reason, math.inf)


def _neighbours(releases: Tensor) -> tuple[Tensor, Tensor]:
    """Releases and those next in the size of their noise: a loud one hides only its neighbours."""
    size = torch.linalg.vector_norm(releases - releases.median(dim=0).values, dim=1)
    ordered = releases[size.argsort()]
    return ordered[:-1], ordered[1:]


def _balance(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of elements (elements,) and of differences (rows, 1) that make all of one size."""
    by_element = torch.ones_like(noise[0])
    by_row = torch.ones_like(noise[:, :1])
    for _ in range(_BALANCES):
        size = (noise / by_row).square().mean(dim=0).sqrt()
        by_element = torch.where(size > 0, size, math.inf)
        by_row = torch.linalg.vector_norm(noise / by_element, dim=1, keepdim=True)
    return by_element, by_row


@contextmanager
def watched_randomness(given: torch.Generator) -> Iterator[Callable[[], bytes]]:
    """Yields what tells the state of all randomness in this process.

    As long as it does not change, or comes back to where it was, nothing was drawn but what is
    drawn again. It sees every generator that Python can reach, the global ones among them, and
    requests to the system for entropy, which fresh generators of numpy and the module ``secrets``
    make. It does not see generators that C code keeps or seeds for itself. ``given`` is the
    generator that a mechanism is handed.
    """
    requests = 0

    def counted(source: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def urandom(size: int, /) -> bytes:
            nonlocal requests
            requests += 1
            return source(size)

        return urandom

    generators = [given, torch.default_generator, *_living_generators()]
    kept = os.urandom, vars(random)["_urandom"]
    os.urandom, vars(random)["_urandom"] = map(counted, kept)
    try:
        yield lambda: pickle.dumps((requests, [_state(one) for one in generators]))
    finally:
        os.urandom, vars(random)["_urandom"] = kept


def _living_generators() -> list[Any]:
    """Every random generator that some object of this process refers to."""
    held = gc.get_referents(*gc.get_objects())
    untracked = [one for one in held if type(one) in (dict, tuple) and not gc.is_tracked(one)]
    held += gc.get_referents(*untracked)
    wanted = {kind for kind in set(map(type, held)) if not _GENERATORS.isdisjoint(kind.__mro__)}
    return list({id(one): one for one in held if type(one) in wanted}.values())


def _state(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return None if isinstance(generator, random.SystemRandom) else generator.getstate()
