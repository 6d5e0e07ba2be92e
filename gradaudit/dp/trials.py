"""Where the statistics of trials come from: releases of the mechanism, or the laws they follow."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from gradaudit.dp.board import Board, Ruler, score_releases, shifts
from gradaudit.dp.laws import DistanceLaw, ProjectionLaw, Samples
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.theory import FloatArray
from gradaudit.progress import Advance

Statistic = Literal["projection", "distance"]
Laws = dict[Statistic, ProjectionLaw | DistanceLaw]


def laws_of(mechanism: Mechanism, board: Board, ruler: Ruler) -> Laws:
    """The laws of both statistics where the noise is known to be Gaussian, else nothing."""
    if not isinstance(mechanism, AdditiveMechanism) or mechanism.noise != "gaussian":
        return {}
    moved = shifts(mechanism, board)
    scale = mechanism.scale(board.records)
    lengths = torch.linalg.vector_norm(moved, dim=1)
    return {
        "projection": ProjectionLaw(tuple(ruler.projection(moved).tolist()), scale),
        "distance": DistanceLaw(tuple(lengths.tolist()), scale, board.elements),
    }


class Trials(Protocol):
    """Where the statistics of trials come from."""

    def draw(
        self, trials: int, seed: np.random.SeedSequence, advance: Advance
    ) -> dict[Statistic, Samples]:
        """Both statistics of ``trials`` releases under each hypothesis."""
        ...


@dataclass(frozen=True)
class ReleaseTrials:
    """Trials that run the mechanism."""

    mechanism: Mechanism
    board: Board
    ruler: Ruler
    memory: int

    def draw(
        self, trials: int, seed: np.random.SeedSequence, advance: Advance
    ) -> dict[Statistic, Samples]:
        """Release under the null hypothesis, and with values drawn evenly from the others."""
        of_null, of_choice, of_other = seed.spawn(3)
        values = len(self.board.alternatives)
        even = np.full(values, 1 / values)
        counts = np.random.default_rng(of_choice).multinomial(trials, even)
        null = self._scores(self.board.null, trials, of_null, advance)
        others = [
            self._scores(record, int(count), own, advance)
            for record, count, own in zip(
                self.board.alternatives, counts, of_other.spawn(values), strict=True
            )
        ]
        other = np.concatenate(others, axis=1)
        return {"projection": (null[0], other[0]), "distance": (null[1], other[1])}

    def _scores(
        self, record: torch.Tensor, count: int, seed: np.random.SeedSequence, advance: Advance
    ) -> FloatArray:
        batch = self.board.batch(record)
        return score_releases(
            self.mechanism, batch, self.ruler, count, seed, memory=self.memory, advance=advance
        )


@dataclass(frozen=True)
class LawTrials:
    """Trials that sample the laws of the statistics."""

    laws: Laws

    def draw(
        self, trials: int, seed: np.random.SeedSequence, advance: Advance
    ) -> dict[Statistic, Samples]:
        """Sample both laws, independently of each other."""
        rng = np.random.default_rng(seed)
        found = {name: law.sample(trials, rng) for name, law in self.laws.items()}
        advance(2 * trials)
        return found
