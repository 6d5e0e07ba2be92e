"""The audit that traces records to the participants that shared their updates."""

from typing import ClassVar

from pydantic import Field

from gradaudit.audits.attack_reconstruct.options import AttackOptions
from gradaudit.audits.base import Audit, Metric


class TracingOptions(AttackOptions):
    """Options of the tracing audit."""

    method: str | None = Field(
        None,
        description="Attack that rebuilds records: dlg, idlg, inverting-gradients, … (without "
        "it closed-form where that applies and no defense is set, else dlg).",
    )
    participants: int = Field(10, ge=2, description="Number of clients; each shares one update.")
    updates: int = Field(1, ge=1, description="Number of updates that each client shares.")
    repeats: int = Field(1, ge=1, description="Number of repetitions with other records.")
    restarts: int = Field(
        1, ge=1, le=10_000, description="Number of starting points of each attack."
    )
    known_labels: bool = Field(False, description="Give the labels to the attacker.")


class AttackTracing(Audit[TracingOptions]):
    """Trace records to the participants that shared their updates.

    Every participant's records are rebuilt from its updates; each record of the query set (the same
    records) then goes to the participant behind the nearest reconstruction. The distance is the
    share of records that go to another participant: the mean categorical distance between recovered
    and actual participants, 0 where all are traced; guessing gives (N − 1)/N. Algorithm 6 as it is
    printed asks for the very item instead: the variant ``identity: item``.

    The interval is over the updates of all repetitions, whose records are rebuilt together. It has
    no default limit: of a handful of records the interval reaches far below guessing.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), section 4.1 and algorithm 6.
    """

    name = "attack tracing"
    summary = "Trace records to the participants that shared updates of them (Fan et al. 2020)."
    paper = "https://arxiv.org/abs/2006.11601"
    applies_defenses = True
    metrics = (
        Metric(
            id="tracing_distance",
            title="Share of records that an attacker traces to a wrong participant",
            riskier="lower",
            per_layer=False,
            stronger="the audit's --method and --restarts",
        ),
    )
    headline = ()
    Options = TracingOptions
    priority = 100
    least: ClassVar = {"participants": 4, "iterations": 2}
    quick: ClassVar = {"participants": 4, "iterations": 5}
    plain: ClassVar = {"participants": 8, "iterations": 5}
    thorough: ClassVar = {"repeats": 5}
