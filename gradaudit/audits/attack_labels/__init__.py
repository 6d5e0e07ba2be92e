"""The audit of labels that an attacker recovers from a shared update."""

from typing import ClassVar

from pydantic import Field, field_validator

from gradaudit.audits.attack_reconstruct.options import BatchOptions
from gradaudit.audits.base import Audit, Metric, methods_at_commas


class LabelsOptions(BatchOptions):
    """Options of the audit of labels."""

    method: tuple[str, ...] = Field(
        (),
        description="Attack that names the labels: dlg, idlg or another method; repeat it, or "
        "use commas, to compare several (without it dlg, beside idlg for single records and the "
        "counts of inverting-gradients for batches).",
    )
    _methods = field_validator("method", mode="before")(methods_at_commas)
    batches: int = Field(
        8, ge=1, description="Number of updates to attack; --samples only lowers it."
    )
    restarts: int = Field(
        1, ge=1, le=10_000, description="Number of starting points of each attack."
    )


class AttackLabels(Audit[LabelsOptions]):
    """Recover the labels behind an update: the membership attack of Fan et al. 2020.

    The distance is the share of a batch's labels that the attacker does not name: the paper's mean
    categorical distance between recovered and original labels, 0 where all are recovered. Labels
    are compared as lists, because an update does not order its records. The interval is over the
    attacked updates, whose labels are recovered together. Of several methods the headline is the
    one with the smallest distance.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), section 4.1 and algorithm 5.
    """

    name = "attack labels"
    aliases: ClassVar[tuple[str, ...]] = ("attack membership",)
    summary = (
        "Recover the labels behind an update (what Fan et al. 2020 call membership; whether a "
        "record is behind an update is `attack record`, or an attribute for `vinfo`)."
    )
    paper = "https://arxiv.org/abs/2006.11601"
    applies_defenses = True
    metrics = (
        Metric(
            id="membership_distance",
            title="Share of the labels behind an update that an attacker does not recover",
            riskier="lower",
            per_layer=False,
            warning=0.1,
            why="an attacker recovers the labels of the records from their shared update",
            question="labels",
            finding="Labels are recovered.",
            asks="Are labels recovered?",
            noun="share of labels missed",
            cleared="not recovered",
            helps="larger batches (--deployment), or noise (--defense)",
            stronger="the audit's --method and --restarts",
        ),
        Metric(
            id="labels_named",
            title="Labels that an attacker names for a captured update",
            per_layer=False,
        ),
    )
    headline = ()
    Options = LabelsOptions
    priority = 10
    least: ClassVar = {"method": ["idlg"], "batches": 4, "single": True}
    quick: ClassVar = {"method": ["idlg"]}
    plain: ClassVar = {"method": ["idlg"], "batches": 40}
    thorough: ClassVar = {"batches": 40, "restarts": 4}
