"""The same game at several clips and sigmas (Li24, figure 8)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradaudit.dp.campaign import Game
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.promises import promised_epsilon
from gradaudit.dp.trials import Statistic
from gradaudit.dp.verdicts import Verdict
from gradaudit.errors import UsageError

Swept = Literal["clip", "sigma"]
Setting = tuple[Swept, float, AdditiveMechanism]


@dataclass(frozen=True)
class Point:
    """Epsilons at one setting.

    Attributes:
        at: clip or sigma.
        lower: the valid lower bound.
        point: the paper's estimate, no bound.
        interval: of the estimate.
        pair: exact epsilon of the pair.
        theory: what the mechanism promises for a replaced record.
    """

    at: float
    lower: float
    point: float
    interval: tuple[float, float]
    pair: float
    theory: float


def settings(
    mechanism: Mechanism, clips: Sequence[float], sigmas: Sequence[float]
) -> list[Setting]:
    """What is swept, its value, and the mechanism with that value.

    Raises:
        UsageError: the mechanism has no clip and sigma to change, or a value is out of range.
    """
    return list(_settings(mechanism, clips, sigmas))


def _settings(
    mechanism: Mechanism, clips: Sequence[float], sigmas: Sequence[float]
) -> Iterator[Setting]:
    if not clips and not sigmas:
        return
    for option, values in (("--sweep-clip", clips), ("--sweep-sigma", sigmas)):
        for value in values:
            if not 0 < value < math.inf:
                raise UsageError(f"{option} {value:g}: not a positive number")
    if not isinstance(mechanism, AdditiveMechanism):
        raise UsageError(
            f"--sweep-clip, --sweep-sigma: {mechanism.description} has no clip and sigma "
            "to change; name it as dp:clip=C,sigma=S"
        )
    for clip in dict.fromkeys(clips):
        yield "clip", clip, mechanism.resized(clip, mechanism.sigma)
    for sigma in dict.fromkeys(sigmas):
        yield "sigma", sigma, mechanism.resized(mechanism.clip, sigma)


def point_of(
    game: Game, mechanism: AdditiveMechanism, at: float, statistic: Statistic, delta: float
) -> Point | None:
    """The epsilons of one setting; None where they were decided without trials, or not at all."""
    if isinstance(game.result, Verdict) or game.result.dependent or game.pair is None:
        return None
    score, board = game.result.scores[statistic], game.board
    return Point(
        at=at,
        lower=score.bound.value,
        point=score.point.value,
        interval=score.point.interval,
        pair=game.pair,
        theory=promised_epsilon(mechanism, "replace", board.records, board.elements, delta),
    )
