"""The fixed audits of a reference model, and what is kept of their report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from benchmarks.reference.recipes import SEED, Recipe, trained
from gradaudit import audit
from gradaudit.accuracy import task_accuracy
from gradaudit.judging import gate, known_metrics, verdict
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.references import COMPARED, SET, risk
from gradaudit.report import Measurement, Report

POLICY = Path(__file__).with_name("policy.yaml")
AUDITS: dict[str, dict[str, Any]] = {
    "vinfo": {"family": ["forest", "norms"], "repeats": 5, "correlation": False},
    "attack record": {"updates": 64, "candidates": 128, "reduce": "subset:20000"},
    "attack reconstruct": {"restarts": 2, "batches": 2},
    "attack labels": {"method": ["idlg"], "batches": 40},
}
"""Options of a plain scan, with fewer repetitions of the slowest audit."""
_DETAILS = ("attribute", "batch_size", "method", "permuted", "setting", "knowledge")
_FACTS = ("adapter", "records", "input_shape", "task", "classes", "attributes", "accuracy")


def kept_report(name: str, recipe: Recipe, seed: int = SEED) -> Report:
    """Train a reference model, audit it, and keep what is compared of its report."""
    model, records, held_out = trained(recipe, seed)
    report = audit(model, records, audits=AUDITS, attributes=[recipe.attribute], seed=seed)
    accuracy = task_accuracy(Target(model, CrossEntropy()), held_out)
    about: dict[str, JsonValue] = {
        "set": SET,
        "title": recipe.title,
        "says": recipe.says,
        "records": recipe.data,
        "held_out": accuracy.to_json(),
    }
    judged = gate(report, POLICY)
    return kept(judged, name, {**about, "verdict": verdict(judged)})


def kept(report: Report, name: str, about: dict[str, JsonValue]) -> Report:
    """A judged report with only the rows that are compared, and the rows beyond a limit."""
    provenance = report.provenance
    return report.model_copy(
        update={
            "target": report.target.model_copy(update={"model": name}),
            "data": {key: report.data[key] for key in _FACTS},
            "provenance": {
                "reference": about,
                "warnings": ["of each metric only the riskiest layer of each kind is kept"],
                **{key: provenance[key] for key in ("seed", "attributes", "audits", "versions")},
            },
            "measurements": list(_riskiest(report)),
            "findings": [each for each in report.findings if each.outcome == "failed"],
        }
    )


def _riskiest(report: Report) -> Iterator[Measurement]:
    """Yield the riskiest headline of each metric and kind of layer, with few details."""
    kinds = {layer.name: layer.kind for layer in report.target.layers}
    for metric in COMPARED:
        rows = [row for row in report.select(metric, variant={}) if row.number is not None]
        rows.sort(key=lambda row: row.number or 0.0)
        if known_metrics()[metric].riskier == "higher":
            rows.reverse()
        riskiest: dict[str | None, Measurement] = {}
        for row in rows:
            riskiest.setdefault(kinds.get(row.layer or ""), row)
        yield from map(_brief, riskiest.values())


def _brief(row: Measurement) -> Measurement:
    """A row with the details that say what it is of."""
    details = {key: row.details[key] for key in _DETAILS if key in row.details}
    if isinstance(permuted := details.get("permuted"), dict):
        details["permuted"] = {key: permuted[key] for key in ("value", "interval")}
    if isinstance(knowledge := details.pop("knowledge", None), dict):
        details["batch_size"] = knowledge["batch_size"]
    return row.model_copy(update={"details": details})


def differences(report: Report, made: Report) -> list[str]:
    """Say where a reference that was made again differs from the one that is kept."""
    old, new = _values(report), _values(made)
    said = [f"{' of '.join(place)}: not in both" for place in old.keys() ^ new.keys()]
    said += [
        f"{' of '.join(place)}: {abs(old[place]):.4g} became {abs(new[place]):.4g}"
        for place in old.keys() & new.keys()
        if abs(new[place] - old[place]) > COMPARED[place[0]].tolerance
    ]
    return sorted(said)


def _values(report: Report) -> dict[tuple[str, str], float]:
    kinds = {layer.name: layer.kind for layer in report.target.layers}
    return {
        (row.id, kinds.get(row.layer or "", "the whole model")): risk(
            known_metrics()[row.id], row.number or 0.0
        )
        for row in report.rows
    }
