"""Where the statistics of trials come from: releases of the mechanism, or the laws they follow."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Played:
    """Trials in the order in which they were played.

    Attributes:
        coins: (releases,) bool, whether a fair coin picked the alternative.
        statistics: (releases,) by name.
    """

    coins: NDArray[np.bool_]
    statistics: dict[Statistic, FloatArray]

    def samples(self, name: Statistic) -> Samples:
        """A statistic under the null hypothesis, and under the alternative."""
        series = self.statistics[name]
        return series[~self.coins], series[self.coins]


class Trials(Protocol):
    """Where the statistics of trials come from."""

    def draw(self, trials: int, seed: np.random.SeedSequence, advance: Advance) -> Played:
        """Twice ``trials`` releases, each under a hypothesis that a fair coin of its own picks."""
        ...


@dataclass(frozen=True)
class ReleaseTrials:
    """Trials that run the mechanism."""

    mechanism: Mechanism
    board: Board
    ruler: Ruler
    memory: int

    def draw(self, trials: int, seed: np.random.SeedSequence, advance: Advance) -> Played:
        """Release under the null hypothesis, or with a value drawn evenly from the others."""
        of_coins, of_choice, of_releases = seed.spawn(3)
        coins = _fair_coins(2 * trials, of_coins)
        values = len(self.board.alternatives)
        others = np.random.default_rng(of_choice).integers(1, values + 1, len(coins))
        projection, distance = score_releases(
            self.mechanism,
            [self.board.batch(record) for record in (self.board.null, *self.board.alternatives)],
            self.ruler,
            np.where(coins, others, 0),
            of_releases,
            memory=self.memory,
            advance=advance,
        )
        return Played(coins, {"projection": projection, "distance": distance})


@dataclass(frozen=True)
class LawTrials:
    """Trials that sample the laws of the statistics."""

    laws: Laws

    def draw(self, trials: int, seed: np.random.SeedSequence, advance: Advance) -> Played:
        """Sample both laws, independently of each other."""
        of_coins, of_laws = seed.spawn(2)
        coins, rng = _fair_coins(2 * trials, of_coins), np.random.default_rng(of_laws)
        counts = len(coins) - int(coins.sum()), int(coins.sum())
        statistics: dict[Statistic, FloatArray] = {}
        for name, law in self.laws.items():
            samples = law.sample(max(counts), rng)
            statistics[name] = np.empty(len(coins))
            for side, sample, count in zip((~coins, coins), samples, counts, strict=True):
                statistics[name][side] = sample[:count]
        advance(len(coins))
        return Played(coins, statistics)


def _fair_coins(count: int, seed: np.random.SeedSequence) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).integers(2, size=count).astype(bool)
