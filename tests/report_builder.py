"""Reports for the tests of judging and showing, and audits that declare their metrics."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gradaudit.audits import Audit, Metric
from gradaudit.progress import Progress
from gradaudit.report import (
    CheckpointRecord,
    LayerRecord,
    Measurement,
    Report,
    TargetRecord,
)

LAYERS = (("conv1", "Conv2d", 108), ("fc1", "Linear", 8192), ("fc2", "Linear", 320))


class Leak(Audit[Any]):
    """An audit with an upper and a lower limit, and a metric of the whole model."""

    name = "leak"
    summary = "How much leaks."
    metrics = (
        Metric(
            id="bits",
            title="Leaked bits",
            unit="bit",
            riskier="higher",
            warning=1.0,
            error=2.0,
            why="an attacker learns the attribute from this layer's gradient",
            question="attribute",
            chance=0.0,
            finding="The {secret} of a batch is inferred.",
            asks="Is the {secret} of a batch inferred?",
            noun="bits",
            cleared="not inferred",
            helps="noise (--defense)",
        ),
        Metric(id="effort", title="Effort", riskier="lower", warning=10.0),
        Metric(id="note", title="A number nobody judges"),
        Metric(
            id="total",
            title="Total",
            riskier="higher",
            per_layer=False,
            error=0.0,
            why="sum",
            question="records",
            finding="Records are reconstructed.",
            asks="Are records reconstructed?",
            noun="total",
        ),
    )
    headline = ("bits", "total")

    def run(self, subject: object, progress: Progress) -> Iterable[Measurement]:
        """Never run."""
        return []


class Rank(Audit[Any]):
    """A second audit, with no limit at all."""

    name = "rank"
    summary = "How full the rank is."
    metrics = (Metric(id="deficit", title="Rank deficit", question="freedom"),)
    headline = ("deficit",)

    def run(self, subject: object, progress: Progress) -> Iterable[Measurement]:
        """Never run."""
        return []


@pytest.fixture
def two_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``leak`` and ``rank`` are installed."""
    for module in ("gradaudit.judging.policy", "gradaudit.view.layers", "gradaudit.view.gaps"):
        monkeypatch.setattr(f"{module}.audits", lambda: {"leak": Leak, "rank": Rank})


def row(metric: str, layer: str | None, value: float | None = None, **fields: Any) -> Measurement:
    """A measurement of ``audit.metric``; an interval is at 95 % unless told."""
    audit, _, name = metric.partition(".")
    if "interval" in fields:
        fields.setdefault("confidence", 0.95)
    return Measurement(audit=audit, metric=name, layer=layer, value=value, **fields)


def fc1(value: float, *ends: float, **fields: Any) -> Measurement:
    """Bits that the layer fc1 leaks, with an interval where its two ends are given."""
    interval = {"interval": ends} if ends else {}
    return row("leak.bits", "fc1", value, **interval, **fields)


def saved(folder: Path, *rows: Any, name: str = "report.json", **fields: Any) -> Path:
    """A file with a report of these rows."""
    path = folder / name
    path.write_text(make_report(*rows, **fields).to_json())
    return path


def skipped(
    audit: str, metrics: Iterable[str], layers: Iterable[str | None], reason: str
) -> list[Measurement]:
    return [
        Measurement(audit=audit, metric=metric, layer=layer, status="skipped", reason=reason)
        for layer in layers
        for metric in metrics
    ]


def skipped_row(metric: str, layer: str | None, reason: str, **fields: Any) -> Measurement:
    return row(metric, layer, status="skipped", reason=reason, **fields)


def failed_row(metric: str, layer: str | None, reason: str) -> Measurement:
    return row(metric, layer, status="failed", reason=reason)


def infinite_row(metric: str, layer: str | None, **fields: Any) -> Measurement:
    return row(metric, layer, details={"infinite": True}, **fields)


def make_report(
    *rows: Measurement,
    layers: Iterable[tuple[str, str, int]] = LAYERS,
    model: str = "zoo:lenet",
    data: dict[str, Any] | None = None,
) -> Report:
    """A report of a small model with these rows."""
    records = [
        LayerRecord(name=name, kind=kind, parameters=parameters, position=position)
        for position, (name, kind, parameters) in enumerate(layers)
    ]
    return Report(
        tool={"name": "gradaudit", "version": "0.1.0"},
        target=TargetRecord(
            model=model,
            checkpoints=[CheckpointRecord(file="round-5.safetensors", sha256="ab" * 32)],
            parameters=sum(record.parameters for record in records),
            layers=records,
            loss="cross-entropy",
            mode="eval",
        ),
        data=data if data is not None else {"adapter": "digits", "records": 1797},
        provenance={"seed": 0, "device": "cpu", "finished": "2026-05-01T10:00:00+00:00"},
        measurements=list(rows),
    )
