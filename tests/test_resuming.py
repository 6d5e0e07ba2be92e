"""An audit that is short of memory, and fingerprints by which an interrupted scan goes on."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dp_subject import subject

from gradaudit.audits import Audit, AuditOptions, Metric
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.audits.rows import Rows
from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
from gradaudit.defenses import parse_defense
from gradaudit.errors import short_of_memory
from gradaudit.models.torch_losses import user_loss
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.run import fingerprint as fingerprints
from gradaudit.run.runner import run
from gradaudit.subject import Subject


class Hungry(Audit[AuditOptions]):
    """Needs no more than 2²⁸ bytes, and finds out when it has begun."""

    name: ClassVar[str] = "hungry"
    summary: ClassVar[str] = "How much memory there was."
    metrics = (Metric(id="bytes", title="Bytes", per_layer=False),)
    headline = ("bytes",)
    error: ClassVar[Exception] = MemoryError()
    enough: ClassVar[int] = 1 << 28

    def run(self, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        yield Rows(type(self)).measured("bytes", subject.memory)
        if subject.memory > self.enough:
            raise self.error


SHORT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_an_audit_short_of_memory_goes_on_with_half(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Hungry, "error", error)
    report = run(subject("sex"), [Hungry(AuditOptions())])
    assert [row.value for row in report.measurements] == [1 << 28]
    assert report.provenance["broken"] == {}


def test_an_audit_that_no_memory_suffices_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hungry, "enough", 0)
    report = run(subject("sex"), [Hungry(AuditOptions())])
    (fault,) = report.provenance["broken"].values()
    assert fault.startswith("MemoryError: (test_resuming.py, line ")


class Doubled(Hungry):
    """Whose numbers of double precision never fit."""

    least: ClassVar = {"single": True}

    def run(self, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        if subject.target.precision is torch.float64:
            raise self.error
        yield Rows(type(self)).measured("bytes", subject.memory)


def test_what_fits_in_single_precision_alone_is_taken_so_and_says_it() -> None:
    audited = subject("sex")
    report = run(audited, [Doubled(AuditOptions())])
    (row,) = report.measurements
    assert (row.value, row.details) == (audited.memory, {"dtype": "float32"})
    assert report.provenance["dtype"] == "float64"
    assert report.provenance["broken"] == {}


def test_a_real_shortage_is_one() -> None:
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(1 << 60)
    with pytest.raises(MemoryError) as numpys:
        np.empty(1 << 55)
    assert short_of_memory(torchs.value)
    assert short_of_memory(numpys.value)
    assert not short_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def fingerprint(audited: Subject, audit: Audit[Any]) -> str:
    return fingerprints.fingerprint(fingerprints.identity(audited), audited, audit)


def nudged(audited: Subject) -> Subject:
    model = copy.deepcopy(audited.target.model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    return replace(audited, targets=(replace(audited.target, model=model),))


OTHERS: dict[str, Callable[[Subject], Subject]] = {
    "seed": lambda audited: replace(audited, seed=1),
    "samples": lambda audited: replace(audited, samples=7),
    "records": lambda audited: replace(audited, records=audited.records.take(np.arange(50))),
    "weights": nudged,
    "layers": lambda audited: replace(audited, layers=audited.layers[1:]),
    "hidden": lambda audited: replace(audited, hidden=("0",)),
    "defenses": lambda audited: replace(audited, defenses=(parse_defense("sign"),)),
    "mode": lambda audited: replace(audited, targets=(replace(audited.target, mode="train"),)),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_run_has_another_fingerprint(change: Callable[[Subject], Subject]) -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))
    assert fingerprint(change(audited), audit) != fingerprint(audited, audit)


def test_options_and_the_files_that_they_name_are_in_the_fingerprint(tmp_path: Path) -> None:
    audited = subject("sex")
    code = tmp_path / "mine.py"

    def of(**options: Any) -> str:
        return fingerprint(audited, DpAudit(DpAudit.Options(**options)))

    prints = [of(), of(trials=200)]
    for text in ("a = 1", "a = 2"):
        code.write_text(text)
        prints.append(of(mechanism=f"{code}:a"))
    assert len(set(prints)) == 4
    assert prints[-1] == of(mechanism=f"{code}:a")


def test_code_of_the_loss_is_in_the_fingerprint_by_its_values() -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))
    prints = set[str]()
    for factor in (1.0, 2.0):

        def mine(outputs: torch.Tensor, labels: torch.Tensor, factor: float = factor) -> Any:
            return factor * (outputs[:, 0] - labels).square()

        target = replace(audited.target, loss=user_loss(mine, "mine"))
        prints.add(fingerprint(replace(audited, targets=(target,)), audit))
    assert len(prints) == 2


def test_code_that_changes_the_gradient_alone_is_in_the_fingerprint() -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))

    def whole(outputs: torch.Tensor, labels: torch.Tensor) -> Any:
        return (outputs[:, 0] - labels).square()

    def cut(outputs: torch.Tensor, labels: torch.Tensor) -> Any:
        return (outputs[:, 0] - labels) * (outputs[:, 0].detach() - labels)

    prints = {
        fingerprint(
            replace(audited, targets=(replace(audited.target, loss=user_loss(loss, "mine")),)),
            audit,
        )
        for loss in (whole, cut)
    }
    assert len(prints) == 2


def test_workers_and_memory_are_not_in_the_fingerprint() -> None:
    audited, audit = subject("sex"), Sensitivity(SensitivityOptions(probes=8))
    other = replace(audited, jobs=4, memory=1 << 20)
    assert fingerprint(other, audit) == fingerprint(audited, audit)
