"""Random numbers by name: a seed and words give a stream that is independent of others.

``rng(seed, "vinfo", "split", attribute)`` depends on the seed and on these words alone, so that
what one part draws never moves with what another part draws, with the number of workers or with
the order of the work. Words are hashed into the spawn key of a ``numpy.random.SeedSequence``.

Worker processes that only fit classifiers draw too, so torch is imported when it is asked for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Seed = int | np.random.SeedSequence
Word = str | int
"""A word that names the purpose of a stream, or a number of one of several."""


def sequence(seed: Seed, *words: Word) -> np.random.SeedSequence:
    """Returns the seed sequence that these words name below a seed or a sequence.

    Args:
        seed: the root seed, or a sequence whose own words come first.
        words: at least one; ``1`` and ``"1"`` are two words, and so are ``"ab"`` and ``"a", "b"``.
    """
    if not words:
        raise ValueError("a stream needs a word that names its purpose")
    digest = hashlib.blake2b(repr(words).encode(), digest_size=16).digest()
    key = tuple(int(part) for part in np.frombuffer(digest, np.uint32))
    if isinstance(seed, np.random.SeedSequence):
        return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *key))
    return np.random.SeedSequence(seed, spawn_key=key)


def rng(seed: Seed, *words: Word) -> np.random.Generator:
    """Returns a NumPy generator for the stream that these words name."""
    return np.random.default_rng(sequence(seed, *words))


def torch_rng(seed: Seed, *words: Word, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a torch generator for the stream that these words name."""
    import torch

    return torch.Generator(device).manual_seed(number(seed, *words))


def number(seed: Seed, *words: Word) -> int:
    """Returns a seed of 63 bits for the stream that these words name, for other libraries."""
    (state,) = sequence(seed, *words).generate_state(1, np.uint64)
    return int(state) >> 1
