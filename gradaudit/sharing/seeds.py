"""Generators for every use of randomness, that no other use disturbs."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch


class Use(IntEnum):
    """What random numbers are for; the first part of a spawn key."""

    VISIBLE = 0
    SUBSET = 1
    FIT_RECORDS = 2
    FIT_BATCHES = 3
    OTHERS = 4
    CLIENT = 5
    DEFENSE_OF_PARAMETER = 6
    DEFENSE_OF_LAYER = 7


@dataclass(frozen=True)
class Seeds:
    """Generators by use, all from one seed.

    Attributes:
        seed: the root.
        device: where the torch generators draw.
    """

    seed: int
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def numpy(self, use: Use, *key: int) -> np.random.Generator:
        """A numpy generator."""
        return np.random.default_rng(self._sequence(use, *key))

    def torch(self, use: Use, *key: int) -> torch.Generator:
        """A torch generator."""
        (state,) = self._sequence(use, *key).generate_state(1, np.uint64)
        return torch.Generator(self.device).manual_seed(int(state) >> 1)

    def _sequence(self, use: Use, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(int(use), *key))
