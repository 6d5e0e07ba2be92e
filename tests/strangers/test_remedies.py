"""An error names the remedy that there is: an option of the data, another form, a conversion."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from command_line import run
from report_builder import make_report, skipped
from torch import nn
from torch.distributed.checkpoint import format_utils

from gradaudit.accuracy import task_accuracy
from gradaudit.audits.gathering import incomplete
from gradaudit.config import SubjectSettings
from gradaudit.data import load_records
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import AuditError, CheckpointError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.models.losses import CrossEntropy
from gradaudit.report import Report
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run as run_audits

generator = np.random.default_rng(0)
N = 40


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(words).mean(1))
        return scores


@pytest.fixture
def archive(tmp_path: Path) -> str:
    np.savez(
        tmp_path / "a.npz",
        words=generator.integers(0, 9, (N, 5)),
        x=generator.normal(size=(N, 4)),
        y=np.arange(N) % 3,
        many=3 * np.arange(N),
        soft=generator.dirichlet([1, 1, 1], N),
        real=generator.normal(size=(N, 3)),
        yes=generator.integers(0, 2, (N, 3)).astype(float),
    )
    return f"npz:{tmp_path / 'a.npz'}?"


def opened(model: nn.Module, spec: str) -> Report:
    subject = open_subject(SubjectSettings(device="cpu"), model=model, records=load_records(spec))
    return run_audits(subject, [])


def test_whole_numbers_for_an_embedding_are_asked_for_as_tokens(archive: str) -> None:
    with pytest.raises(AuditError, match=r"Expected tensor .* Long, Int; .* tokens="):
        opened(Words(), f"{archive}inputs=words&label=y")
    told = opened(Words(), f"{archive}inputs=words&label=y&tokens=true")
    assert told.data["input_type"] == "tokens"


def test_many_integer_labels_may_be_given_as_classes(archive: str) -> None:
    spec = f"{archive}inputs=x&label=many"
    with pytest.raises(AuditError, match=r"integers \(in a table, task=classification\)"):
        opened(nn.Linear(4, 120), spec)
    assert opened(nn.Linear(4, 120), f"{spec}&task=classification").data["task"] == "classification"


@pytest.mark.parametrize("label", ["real", "yes"])
def test_no_other_loss_is_proposed_for_real_targets(archive: str, label: str) -> None:
    with pytest.raises(AuditError, match=r"real numbers of shape \(.*; name the loss that") as seen:
        opened(nn.Linear(4, 3), f"{archive}inputs=x&label={label}")
    assert not {"mse", "bce"} & {*str(seen.value).split()}


def test_probabilities_of_classes_are_taken_with_cross_entropy(archive: str) -> None:
    records = load_records(f"{archive}inputs=x&label=soft")
    model = nn.Linear(4, 3)
    subject = open_subject(SubjectSettings(device="cpu"), model=model, records=records)
    double = nn.Linear(4, 3).double()
    double.load_state_dict(model.state_dict())
    x, soft = records.inputs.double(), records.labels.double()
    found = per_sample_gradients(
        subject.target, x, soft, subject.target.layers, dtype=torch.float64
    )
    rows = torch.cat([chunk["(model)"] for chunk in found])
    for index in range(N):
        loss = F.cross_entropy(double(x[index : index + 1]), soft[index : index + 1])
        (slope,) = torch.autograd.grad(loss, [double.weight])
        torch.testing.assert_close(rows[index], slope.flatten(), rtol=1e-10, atol=1e-12)
    accuracy = task_accuracy(subject.target, records)
    right = (model(records.inputs).argmax(1) == records.labels.argmax(1)).double().mean()
    assert accuracy.metric == "accuracy"
    assert accuracy.value == pytest.approx(float(right))


def test_probabilities_of_positions_are_taken_too() -> None:
    soft = torch.from_numpy(generator.dirichlet([1, 1, 1], (4, 5, 5))).movedim(-1, 1)
    records = records_of((torch.rand(4, 1, 5, 5), soft), "data.py:make")
    outputs = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    CrossEntropy().check(outputs, records.labels)
    expected = F.cross_entropy(outputs, soft, reduction="none").mean((1, 2))
    torch.testing.assert_close(CrossEntropy().per_record(outputs, soft), expected)


@pytest.mark.slow
@pytest.mark.parametrize("named", ["", ".metadata", "__0_0.distcp"])
def test_a_distributed_checkpoint_is_told_how_to_be_converted(tmp_path: Path, named: str) -> None:
    model, folder = nn.Linear(2, 3), tmp_path / "saved"
    dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(CheckpointError, match=r"a pickle that could run code") as caught:
        load_checkpoint(folder / named)
    command = str(caught.value).partition("`")[2].partition("`")[0].split()
    assert command[:4] == ["python", "-m", format_utils.__name__, "dcp_to_torch"]
    assert Path(command[4]) == folder
    format_utils.dcp_to_torch_save(folder, tmp_path / command[5])
    found = load_checkpoint(tmp_path / command[5])
    assert all(torch.equal(found.state[k], v) for k, v in model.state_dict().items())
    assert "left aside: step" in found.notes


NO_TIME = {"left_out": True}


def test_the_reason_that_decides_comes_first() -> None:
    rows = [
        *skipped("leak", ["bits"], ["conv1"], "a private attribute is not named"),
        *skipped("rank", ["deficit"], ["conv1"], "zero convolutions"),
    ]
    assert incomplete(make_report(*rows)) == (
        "nothing could be measured: a private attribute is not named; zero convolutions"
    )
    timed = rows[1].model_copy(update={"reason": "there was no time", "details": NO_TIME})
    assert incomplete(make_report(rows[0], timed)) == (
        "nothing could be measured: there was no time; another audit does not apply"
    )
    failed = rows[1].model_copy(update={"reason": "ValueError: x", "status": "failed"})
    assert incomplete(make_report(failed, rows[0])) == (
        "nothing could be measured: rank failed: ValueError: x; another audit does not apply"
    )


@pytest.mark.slow
def test_a_scan_without_time_begins_with_that(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,y\n" + "".join(f"{i % 7}.5,{i % 2}\n" for i in range(40)))
    model = "zoo:mlp?inputs=1&classes=2"
    done = run("scan", "-m", model, "-d", f"csv:{table}?label=y", "--budget", "0.01s", "-q")
    assert done.status == 3
    assert done.err.startswith("gradaudit: nothing could be measured: ")
    assert "(a longer --budget runs it)" in done.err
    assert "; no private attribute" not in done.err
