"""Reference models: what fixed audits found of small models, to set a report's numbers beside.

Each JSON file of this folder is the report of one reference model with only the rows that are
compared: of each metric in ``COMPARED`` the riskiest headline among the layers of one kind, and
the whole model's. ``make reference`` trains and audits them again. They are no scale of risk: no
limit or verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from gradaudit.audits import Audit, Metric
from gradaudit.report import Measurement, Report

if TYPE_CHECKING:
    from gradaudit.subject import Subject

FOLDER = Path(__file__).parent
SET = "2026-11"
"""Month in which the references were chosen; another choice, or other options, has another one."""
REFERENCE = "reference"
"""Detail of a row that is compared: a ``Standing``."""
FEWEST = 3
"""Smallest number of references with which a row is compared."""


@dataclass(frozen=True)
class Compared:
    """How a metric is compared.

    Attributes:
        tolerance: largest difference of values that are taken for alike: more than a reference
            moves where it is made again on another processor.
        free: options of its audit that may differ, as they do not change what is attacked, or by
            which adversary; all others must be those of the references.
    """

    tolerance: float
    free: frozenset[str]


class ReferenceRank(BaseModel):
    """How a row stands among the references of a set.

    Attributes:
        set: the set's month.
        of: how many references are compared.
        riskier_than: how many of them have a value that is less risky.
        alike: how many have a value within the tolerance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    set: str = Field(pattern=r"^\d{4}-\d\d$")
    of: int
    riskier_than: int
    alike: int

    @classmethod
    def read(cls, row: Measurement) -> ReferenceRank | None:
        """Reads what a row's details say of it; None where they say nothing that is one."""
        try:
            return cls.model_validate(row.details.get(REFERENCE))
        except ValidationError:
            return None


_ORIGINAL = "method restarts iterations updates guesses together threshold known_labels"
COMPARED: Mapping[str, Compared] = {
    metric: Compared(tolerance, frozenset(free.split()))
    for metric, tolerance, free in (
        ("vinfo.auroc", 0.1, f"batches shadow repeats correlation sensitivities {_ORIGINAL}"),
        ("attack.record_auroc", 0.1, "shadow updates candidates reduce"),
        ("attack.relative_error", 0.5, "batches success save_examples"),
        ("attack.membership_distance", 0.1, "batches restarts"),
    )
}
"""The metrics that are compared.

Seven references were trained and audited again by torch's kernels without vector instructions: an
AUROC of the ViT moved by 0.081, those of the six others by less than 0.05; the ViT's relative error
moved by 0.42, the others' by less than 0.1.
"""


@cache
def references() -> tuple[Report, ...]:
    """Reads the reports of all reference models, in the order of their files' names."""
    return tuple(map(Report.from_file, sorted(FOLDER.glob("*.json"))))


def with_references(
    rows: Sequence[Measurement], audit: Audit[Any], subject: Subject
) -> Sequence[Measurement]:
    """The rows, headlines with how they stand among the references in their details.

    Nothing is compared where updates are defended, layers hidden or the model is in training mode,
    as no reference is, and the whole model only where all its layers are audited.
    """
    if COMPARED.keys().isdisjoint(row.id for row in rows):
        return rows
    if subject.defenses or subject.hidden or subject.target.mode != "eval":
        return rows
    kinds: dict[str | None, str | None] = {x.name: x.kind for x in subject.layers}
    if len(subject.layers) == len(subject.target.layers):
        kinds[None] = None
    return [
        row.with_details({REFERENCE: stands.model_dump()})
        if row.layer in kinds and (stands := standing(row, kinds[row.layer], audit, references()))
        else row
        for row in rows
    ]


def standing(
    row: Measurement, kind: str | None, audit: Audit[Any], among: Sequence[Report]
) -> ReferenceRank | None:
    """Counts how many references a headline is riskier than.

    Args:
        row: a row of the audit.
        kind: the kind of the row's layer; None of the whole model.
        audit: the audit, with its options.
        among: the reports of the references.

    Returns:
        None where the row is no headline of a compared metric, or fewer than ``FEWEST`` references
        have the same metric for layers of this kind under the same options.
    """
    how, value = COMPARED.get(row.id), row.number
    if how is None or row.variant or value is None:
        return None
    asked = {k: v for k, v in audit.options.model_dump(mode="json").items() if k not in how.free}
    values = [
        other
        for report in among
        if asked.items() <= _options(report, audit.name).items()
        and (other := _riskiest(report, row.id, kind)) is not None
    ]
    if len(values) < FEWEST:
        return None
    metric = next(metric for metric in audit.metrics if metric.id == row.metric)
    above = [risk(metric, value) - risk(metric, other) for other in values]
    return ReferenceRank(
        set=SET,
        of=len(values),
        riskier_than=sum(by > how.tolerance for by in above),
        alike=sum(abs(by) <= how.tolerance for by in above),
    )


def risk(metric: Metric, value: float) -> float:
    """The value, negative where less is riskier, and chance where it is less risky than chance."""
    sign = -1 if metric.riskier == "lower" else 1
    return sign * value if metric.chance is None else max(sign * value, sign * metric.chance)


def _options(report: Report, audit: str) -> dict[str, JsonValue]:
    audits = report.provenance.get("audits")
    options = audits.get(audit) if isinstance(audits, dict) else None
    return options if isinstance(options, dict) else {}


def _riskiest(report: Report, metric: str, kind: str | None) -> float | None:
    """Returns the value that a reference has of a metric for layers of a kind; None without one."""
    kinds = {layer.name: layer.kind for layer in report.target.layers}
    found = (row.number for row in report.select(metric) if kinds.get(row.layer or "") == kind)
    return next(found, None)
