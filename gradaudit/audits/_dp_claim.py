"""The headline of the dp-audit beside what was claimed and what the mechanism promises."""

import math
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._dp_options import DpAuditOptions
from gradaudit.dp.claim import exceeds
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.dp.campaign import Game
    from gradaudit.dp.mechanisms import Mechanism

LIMITS = (
    "A bound that does not exceed a claim proves no privacy: it speaks of one record, one pair of "
    "values, one state of the model and one release, and cannot rise above its ceiling."
)


def with_claim(
    lower: Measurement, game: "Game", mechanism: "Mechanism", options: DpAuditOptions
) -> Measurement:
    """The headline with the claim, whether bound and promise contradict it, and all that in words.

    A claim that the promise of Gaussian noise exceeds needs no trials to be wrong: that is said
    first. (The promise of Laplace noise is at δ = 0 and contradicts no claim at δ.)
    """
    claimed = options.claimed_epsilon
    details: dict[str, JsonValue] = {**lower.details, "limits": LIMITS}
    if claimed is not None:
        details |= {"claimed": claimed, "exceeded": exceeds(lower, claimed)}
        promised = _promised(game, mechanism, options)
        if promised is not None:
            details["theory_exceeds_claim"] = promised > claimed
    if lower.status == "measured":
        details["remark"] = _remark(lower, claimed, _promised(game, mechanism, options))
    return lower.model_copy(update={"details": details})


def _promised(game: "Game", mechanism: "Mechanism", options: DpAuditOptions) -> float | None:
    from gradaudit.dp.mechanisms import AdditiveMechanism
    from gradaudit.dp.promises import promised_epsilon

    if not isinstance(mechanism, AdditiveMechanism):
        return None
    board = game.board
    if mechanism.noise != "gaussian":
        return None  # a promise at δ = 0 says nothing of a claim at δ
    return promised_epsilon(mechanism, "replace", board.records, board.elements, options.delta)


def _remark(lower: Measurement, claimed: float | None, promised: float | None) -> str:
    """What promise and bound say of the claim, and what the bound does not say."""
    flawless = lower.details.get("at_ceiling")
    said = ["no trial erred: epsilon is at least this."] if flawless else []
    if claimed is None:
        return " ".join([*said, LIMITS])
    if promised is not None and promised > claimed:
        words = "no finite epsilon" if math.isinf(promised) else f"epsilon {promised:.4g}"
        said.insert(0, f"The mechanism promises {words}, more than the claim of {claimed:g}.")
    if exceeds(lower, claimed):
        return " ".join([*said, f"The claim of {claimed:g} is exceeded."])
    how = (
        "by this pair, which needs no trials" if lower.details.get("analytic") else "by the trials"
    )
    return " ".join([*said, f"The claim of {claimed:g} is not exceeded {how}.", LIMITS])
