"""Canaries of a training: extra clients with random directions, included by coin tosses.

A canary's update is a direction of its own, drawn evenly over the sphere, as long as a client's
update may be. It goes through the same defenses as the clients' updates, in every round, if its
coin let it in; else it is held out. Nothing else depends on the coins, so that whoever tells from
the released mean updates which are in has found out what the training gives away of a client.

G. Andrew et al., "One-shot empirical privacy estimation for federated learning" (2024), algorithm
2; the coins are those of T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1)
training run" (2023).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.federation.canary_scores import CanaryScores
from gradaudit.randomness import rng, torch_rng

_AT_ONCE = 16
_MEMORY = "canaries.cosines"


def coins(count: int, seed: int) -> NDArray[np.bool_]:
    """Whether each canary is included, (canaries,), by a fair coin of its own."""
    draws = rng(seed, "federation", "canaries", "coins")
    return draws.integers(2, size=count).astype(bool)


@dataclass(kw_only=True)
class Canaries:
    """The canaries of one training.

    Attributes:
        count: how many, in and out.
        shapes: of the parameters that are shared, by name.
        seed: of directions, coins and noise.
        seen: (canaries, blocks) of each round.
    """

    count: int
    shapes: Mapping[str, torch.Size]
    seed: int
    device: torch.device
    seen: list[Tensor] = field(default_factory=list)

    @cached_property
    def included(self) -> NDArray[np.bool_]:
        """Whether each canary is included, (canaries,)."""
        return coins(self.count, self.seed)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """Names of the shared parameters of each layer."""
        layers: dict[str, list[str]] = {}
        for name in self.shapes:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
        return layers

    @property
    def scores(self) -> CanaryScores:
        """Returns the scores of the canaries so far."""
        blocks = 1 + len(self.layers)
        cosines = torch.stack(self.seen) if self.seen else torch.zeros(0, self.count, blocks)
        return CanaryScores(self.included, cosines.double().numpy(), tuple(self.layers))

    def see(self, update: Mapping[str, Tensor]) -> None:
        """Add the cosines between a round's released update, by parameter, and all directions."""
        self.seen.append(self._cosines(update))

    def directions(self, numbers: NDArray[Any]) -> dict[str, Tensor]:
        """Returns the canaries' directions: unit vectors, (canaries, elements) by parameter."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        rows = torch.stack(
            [
                torch.randn(
                    sum(sizes),
                    generator=torch_rng(self.seed, "federation", "canary", int(number)),
                )
                for number in numbers
            ]
        )
        rows = (rows / rows.norm(dim=1, keepdim=True)).to(self.device)
        return dict(zip(self.shapes, rows.split(sizes, dim=1), strict=True))

    def memory(self) -> dict[str, Tensor]:
        """Returns the canaries' scores by name; empty before the first round."""
        return {_MEMORY: torch.stack(self.seen)} if self.seen else {}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Restore the scores that ``memory`` returned."""
        self.seen = list(memory[_MEMORY]) if _MEMORY in memory else []

    def _cosines(self, update: Mapping[str, Tensor]) -> Tensor:
        """Returns cosines (canaries, blocks) of an update with all canaries' directions."""
        some = (list(self._of(update, part)) for part in pieces(np.arange(self.count)))
        return torch.cat([torch.stack(blocks, dim=1) for blocks in some])

    def _of(self, update: Mapping[str, Tensor], numbers: NDArray[Any]) -> Iterator[Tensor]:
        directions = self.directions(numbers)
        for names in (list(self.shapes), *self.layers.values()):
            rows = torch.cat([directions[name] for name in names], dim=1).double()
            released = torch.cat([update[name].flatten() for name in names]).double()
            norms = rows.norm(dim=1) * released.norm()
            yield torch.nan_to_num(rows @ released / norms).float().cpu()


def pieces(numbers: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Splits the canaries' numbers into pieces that fit into the memory."""
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]
