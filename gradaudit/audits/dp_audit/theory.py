"""Rows of what a mechanism promises, to stand beside what its audit found."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import JsonValue

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.rows import Rows
from gradaudit.dp.mechanisms import Mechanism
from gradaudit.dp.run import Game
from gradaudit.dp.theory import Relation, epsilon_classical, epsilon_composed
from gradaudit.errors import UsageError
from gradaudit.report import Measurement

_CLASSICAL_RANGE = "proved only up to epsilon = 1"
_RELATIONS: tuple[Relation, ...] = ("replace", "remove")
_THEORY = ("epsilon_theory", "epsilon_classical")


def theory_rows(
    game: Game, options: DpAuditOptions, columns: int, rows: Rows
) -> Iterator[Measurement]:
    """What the mechanism promises for a replaced (headline) and for a removed record.

    Args:
        game: that was played.
        options: of the audit.
        columns: columns of the table; Li24 divide epsilon by their number, which has no basis.
        rows: of the game's variant.
    """
    for relation in _RELATIONS:
        promise = game.promise(relation)
        if promise is None:
            reason = (
                "a deterministic defense promises no finite epsilon"
                if game.mechanism.deterministic
                else "a mechanism from a file promises nothing known; name it as dp:clip=C,sigma=S"
            )
            yield from rows.skipped(reason, _THEORY)
            return
        of_relation = rows if relation == "replace" else rows.of({"relation": relation})
        details: dict[str, JsonValue] = {
            "unit": "record",
            "relation": relation,
            "sensitivity_over_noise": promise.mu if math.isfinite(promise.mu) else None,
            "delta": promise.delta,
        }
        yield of_relation.measured("epsilon_theory", promise.epsilon, details=details)
        if not promise.delta:
            reason = "the classical formula is for Gaussian noise"
            yield from of_relation.skipped(reason, ["epsilon_classical"])
            continue
        classical = epsilon_classical(promise.mu, options.delta)
        details |= {"in_range": classical.in_range, "range": _CLASSICAL_RANGE}
        if not classical.in_range:
            details["remark"] = f"out of range: {_CLASSICAL_RANGE}"
        yield of_relation.measured("epsilon_classical", classical.value, details=details)
        if relation == "remove" and columns:
            note = "Li24's figure 8; dividing by columns has no basis"
            yield of_relation.of({"per": "column"}).measured(
                "epsilon_classical",
                classical.value / columns,
                details={"columns": columns, "note": note},
            )


def composition_rows(
    mechanism: Mechanism, options: DpAuditOptions, rows: Rows
) -> Iterator[Measurement]:
    """Epsilon of ``--steps`` steps, to compare a claimed budget with that of one.

    Raises:
        UsageError: composition is asked for a mechanism that has none here, or dp-accounting is
            missing.
    """
    if options.steps is None:
        return
    multiplier, rate = mechanism.noise_multiplier, options.sampling_rate
    if multiplier is None:
        raise UsageError("--steps: only Gaussian noise on the sum of clipped gradients composes")
    composed = epsilon_composed(multiplier, options.steps, options.delta, sampling_rate=rate)
    yield rows.of({"steps": options.steps, "sampling_rate": rate}).measured(
        "epsilon_theory", composed, details={"delta": options.delta}
    )
