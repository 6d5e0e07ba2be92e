"""Every audit keeps the contract of its rows; one that breaks it is broken, and keeps its rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks.reconstruction.scenes import records
from audits.attack_inference.people import people, subject, with_users
from audits.attack_text import sentences
from safetensors.torch import save_file
from subjects import subject_of
from torch import nn

from gradaudit.audits import Audit, AuditOptions, Metric, audits
from gradaudit.audits.contract import breaches
from gradaudit.audits.gathering import incomplete
from gradaudit.judging import gate, passed
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.run.runner import run
from gradaudit.subject import Subject

ATTACK = {
    "batch_size": 5,
    "trials": 20,
    "batches": 20,
    "shadow": 40,
    "family": "logistic",
    "repeats": 1,
}
LATENT = {"batch_size": 2, "batches": 10, "repeats": 2, "family": ["logistic"]}
IMAGINED = {"iterations": 1, "restarts": 2, "updates": 1, "guesses": 2, "together": [1, 2]}
ADAM = "dlg:optimiser=adam"
"""One evaluation a step, where L-BFGS takes more than twenty."""


def table() -> Subject:
    """Users with a private column, and a model of two layers."""
    return subject(with_users(8, 20), "sex")


def rounds() -> Subject:
    """Two private columns, and two rounds of the model."""
    return subject(people(300), "sex", "race", rounds=2)


def pictures() -> Subject:
    """Nine pictures and a model of two convolutions and a fully connected layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 3)
    ).eval()
    target = Target(model, CrossEntropy())
    return subject_of(target, records(1, 8, 8, labels=[0, 1, 2, 1, 0, 2, 1, 0, 2]))


UPDATE = "a file with an update of ``pictures``"


def written(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Options with a file in place of ``UPDATE``."""
    if UPDATE not in given.values():
        return given
    state = pictures().target.model.state_dict()
    save_file({name: torch.randn(tensor.shape) for name, tensor in state.items()}, path)
    return {name: str(path) if value == UPDATE else value for name, value in given.items()}


Case = tuple[Callable[[], Subject], dict[str, Any]]
CASES: dict[str, list[Case]] = {
    "attack attribution": [
        (made, {"batch_size": 2, "others": 1, "rounds": 2, "repeats": 2})
        for made in (table, pictures)
    ],
    "attack attribute": [(table, {**ATTACK, "rounds": 2})],
    "attack distribution": [(table, {**ATTACK, "rounds": 1})],
    "attack property": [(rounds, ATTACK)],
    "attack user": [(table, {**ATTACK, "rounds": 1})],
    "attack reconstruct": [
        (pictures, {"method": [ADAM, "closed-form"], "iterations": 1, "restarts": 1})
    ],
    "attack text": [(sentences.subject, {"batch_size": 2, "batches": 2, "decoys": 4})],
    "attack table": [(table, {"batch_size": 4, "batches": 1, "ensemble": 1, "iterations": 2})],
    "attack record": [(table, {"batch_size": 2, "updates": 8, "given": [3]})],
    "attack tracing": [
        (pictures, {"participants": 2, "repeats": 2, "method": ADAM, "iterations": 1})
    ],
    "copa-metric": [(pictures, {})],
    "dp-audit": [
        (
            rounds,
            {"mechanism": "dp:clip=1,sigma=1", "trials": 100, "restarts": 1, "iterations": 2},
        )
    ],
    "floor": [(lambda: replace(table(), samples=16), {"sigma": 0.1})],
    "observe": [(pictures, {"update": UPDATE})],
    "forward": [(rounds, {}), (pictures, {})],
    "sensitivity": [
        (pictures, {"probes": 8}),
        (lambda: replace(rounds(), samples=8), {"probes": 0}),
    ],
    "subspace": [(rounds, {"permutations": 19})],
    "vinfo": [
        (rounds, {**LATENT, "correlation": False}),
        (pictures, {**IMAGINED, "original": True, "method": [f"i{ADAM}"]}),
    ],
    "tradeoff": [
        (
            pictures,
            {
                "defense": ["prune:0.5|0.9"],
                "method": ADAM,
                "iterations": 1,
                "rounds": 2,
                "clients": 2,
                "batches": 5,
                "weights": "initial",
            },
        )
    ],
}
"""Subjects and options that make an audit cheap; new audits run on ``table`` and ``pictures``."""


@pytest.mark.parametrize("name", [n for n, audit in audits().items() if not audit.brings_model])
def test_every_audit_keeps_the_contract(name: str, tmp_path: Path) -> None:
    """And measures something, else it would hold of an audit that was never run."""
    audit = audits()[name]
    cases = CASES.get(name) or [(made, dict(audit.quick)) for made in (table, pictures)]
    cases = [(made, written(given, tmp_path / "update")) for made, given in cases]
    configured = [(made, audit(audit.Options.model_validate(given))) for made, given in cases]
    reports = [run(made(), [one]) for made, one in configured]
    assert [report.provenance["broken"] for report in reports] == [{}] * len(cases)
    assert "measured" in {row.status for report in reports for row in report.measurements}


class Careless(Audit[AuditOptions]):
    """Yields what a test asks for."""

    name = "careless"
    summary = "Breaks the contract on request."
    metrics = (
        Metric(id="bits", title="Bits", riskier="higher", error=1.0),
        Metric(id="total", title="Total", per_layer=False),
    )
    headline = ("bits",)
    given: tuple[Measurement, ...] = ()

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        yield from self.given


def of(metric: str, layer: str | None, value: float = 0.5, **fields: Any) -> Measurement:
    return Measurement(**{"audit": "careless", **fields}, metric=metric, layer=layer, value=value)


GOOD = [of("bits", "0"), of("bits", "2"), of("total", None)]
BROKEN: list[tuple[str, list[Measurement], str]] = [
    (
        "misspelt",
        [of("bit", "0"), of("bit", "2"), *GOOD[2:]],
        "the metric 'bit' is not declared (did you mean 'bits'?)",
    ),
    ("left out", [GOOD[0], GOOD[2]], "no row of bits for 2"),
    ("only a variant", [GOOD[0], of("bits", "2", variant={"round": 1})], "no row of bits for 2"),
    ("mute", [GOOD[2]], "no row at all for 0, 2"),
    ("strange layer", [*GOOD, of("bits", "9")], "rows of 9, which is not looked at"),
    ("of the whole model", [*GOOD, of("total", "0")], "'total' is declared for the whole model"),
    ("of another", [*GOOD, of("bits", "0", audit="vinfo")], "names the audit 'vinfo' instead of"),
    ("twice", [*GOOD, of("bits", "0", 0.9)], "two rows of bits for 0 alike"),
]


def test_rows_that_keep_the_contract() -> None:
    more = [of("bits", None), of("bits", "0", variant={"round": 1})]
    assert breaches(Careless, [*GOOD, *more], ["0", "2"]) == []


@pytest.mark.parametrize(("rows", "fault"), [c[1:] for c in BROKEN], ids=[c[0] for c in BROKEN])
def test_a_breach_is_a_failed_audit_that_keeps_its_rows(
    rows: list[Measurement], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "given", tuple(rows))
    monkeypatch.setattr("gradaudit.judging.policy.audits", lambda: {"careless": Careless})
    report = run(table(), [Careless(AuditOptions())])
    broken = report.provenance["broken"]
    assert isinstance(broken, dict)
    assert fault in str(broken["careless"])
    assert "careless failed" in (incomplete(report) or "")
    assert report.measurements[: len(rows)] == rows or fault.startswith("two rows")
    wanted = {("bits", "0"), ("bits", "2"), ("total", None)}
    assert wanted <= {(row.metric, row.layer) for row in report.measurements if not row.variant}


def test_a_misspelt_metric_passes_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Careless, "given", tuple(BROKEN[0][1]))
    monkeypatch.setattr("gradaudit.judging.policy.audits", lambda: {"careless": Careless})
    judged = gate(run(table(), [Careless(AuditOptions())]))
    assert {finding.outcome for finding in judged.findings} == {"unmeasured"}
    assert not passed(judged)
