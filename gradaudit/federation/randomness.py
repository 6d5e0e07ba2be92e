"""The draws of a training: each thing draws from a child of the seed of its own."""

from enum import IntEnum

import numpy as np
import torch

_ROOT = 7
"""Sets these children apart from those that audits draw from the same seed."""


class Draw(IntEnum):
    """What is drawn."""

    SPLIT = 0
    PARTITION = 1
    PRIVATE = 2
    CLIENT = 3
    DEFENSE = 4


def numbers(seed: int, what: Draw, *key: int) -> np.random.Generator:
    """A NumPy generator that depends on the seed, on what is drawn and on the key alone."""
    return np.random.default_rng(_sequence(seed, what, key))


def generator(
    seed: int, what: Draw, *key: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator that depends on the seed, on what is drawn and on the key alone."""
    state = int(_sequence(seed, what, key).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(state >> 1)


def _sequence(seed: int, what: Draw, key: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(_ROOT, what, *key))
