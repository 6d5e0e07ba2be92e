"""The headline beside what was claimed and what the mechanism promises. No torch in here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.report import Measurement, Report

if TYPE_CHECKING:
    from gradaudit.dp.run import Game

LIMITS = (
    "A bound that does not exceed a claim proves no privacy: it speaks of one record, one pair of "
    "values, one state of the model and one release, and cannot rise above its ceiling."
)


def claim_exceeded(report: Report) -> str | None:
    """What the report says against the claimed epsilon, in one line; None where it says nothing.

    Only the headline bound of ``dp-audit.epsilon_lower`` counts: it is valid at its confidence.
    """
    for row in report.select("dp-audit.epsilon_lower", variant={}):
        if row.details.get("exceeded") is True:
            bound = "is infinite" if row.infinite else f"is at least {row.value:.4g}"
            level = f" (confidence {row.confidence:g})" if row.confidence else ""
            return f"dp-audit: epsilon {bound}{level}, claimed was {row.details['claimed']}"
    return None


def claim_untested(report: Report) -> str | None:
    """Why a claim was made but nothing bounds epsilon, in one line; None where something does."""
    for row in report.select("dp-audit.epsilon_lower", variant={}):
        if row.status != "measured" and "claimed" in row.details:
            return f"dp-audit: the claim was not tested: {row.reason}"
    return None


def with_claim(lower: Measurement, game: Game, options: DpAuditOptions) -> Measurement:
    """The headline with the claim, whether bound and promise contradict it, and all that in words.

    A claim that the promise of Gaussian noise exceeds needs no trials to be wrong: that is said
    first. (The promise of Laplace noise is at δ = 0 and contradicts no claim at δ.)
    """
    claimed, promise = options.claimed_epsilon, game.promise()
    promised = promise.epsilon if promise is not None and promise.delta else None
    details: dict[str, JsonValue] = {**lower.details, "limits": LIMITS}
    if claimed is not None:
        details |= {"claimed": claimed, "exceeded": _exceeds(lower, claimed)}
        if promised is not None:
            details["theory_exceeds_claim"] = promised > claimed
    if lower.status == "measured":
        details["remark"] = _remark(lower, claimed, promised)
    return lower.model_copy(update={"details": details})


def _exceeds(row: Measurement, claimed: float) -> bool:
    return row.number is not None and row.number > claimed


def _remark(lower: Measurement, claimed: float | None, promised: float | None) -> str:
    """What promise and bound say of the claim, and what the bound does not say."""
    flawless = lower.details.get("at_ceiling")
    said = ["no trial erred: epsilon is at least this."] if flawless else []
    if claimed is None:
        return " ".join([*said, LIMITS])
    if promised is not None and promised > claimed:
        words = "no finite epsilon" if math.isinf(promised) else f"epsilon {promised:.4g}"
        said.insert(0, f"The mechanism promises {words}, more than the claim of {claimed:g}.")
    if _exceeds(lower, claimed):
        return " ".join([*said, f"The claim of {claimed:g} is exceeded."])
    how = (
        "by this pair, which needs no trials" if lower.details.get("analytic") else "by the trials"
    )
    return " ".join([*said, f"The claim of {claimed:g} is not exceeded {how}.", LIMITS])
