"""``gradaudit.audit`` on models and data in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_command_line import only_counting
from safetensors.torch import save_file
from torch import nn

import gradaudit
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, DataError, GradauditError, UsageError
from gradaudit.models.losses import MeanSquaredError

__all__ = ["only_counting"]
pytestmark = pytest.mark.usefixtures("only_counting")

INPUTS = torch.linspace(-1, 1, 24).reshape(12, 2)
LABELS = torch.arange(12) % 3


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()


def test_tensors_in_memory() -> None:
    report = gradaudit.audit(model(), (INPUTS, LABELS), mode="train", seed=3)
    assert [row.value for row in report.select("counting.count")] == [16, 8, 24]
    assert report.target.model == "Sequential"
    assert (report.target.mode, report.provenance["seed"]) == ("train", 3)
    assert report.data["adapter"] == "memory"
    assert report.data["task"] == "classification"
    assert report.data["classes"] == {"0": 4, "1": 4, "2": 4}


def test_the_model_is_left_as_it_was() -> None:
    audited = model()
    before = {name: tensor.clone() for name, tensor in audited.state_dict().items()}
    gradaudit.audit(audited, (INPUTS, LABELS))
    assert audited.training
    assert all(torch.equal(before[name], now) for name, now in audited.state_dict().items())
    assert all(parameter.grad is None for parameter in audited.parameters())


def test_options_layers_and_specs_as_on_the_command_line() -> None:
    report = gradaudit.audit(
        "zoo:mlp?inputs=10&hidden=3&classes=2",
        "diabetes",
        audits={"counting": {"scale": 2.0, "doubled": False}},
        hide=["fc*"],
        attributes=["sex"],
    )
    (row,) = report.measurements
    assert (row.layer, row.value) == ("output", 12)


def test_a_loss_in_memory_and_real_targets() -> None:
    records = Records(inputs=INPUTS, labels=INPUTS @ torch.ones(2, 3), adapter="mine")
    report = gradaudit.audit(model(), records, loss=MeanSquaredError())
    assert (report.target.loss, report.data["task"]) == ("mse", "regression")
    assert report.data["adapter"] == "mine"


def test_checkpoints_go_into_copies(tmp_path: Path) -> None:
    audited, file = nn.Linear(2, 3), tmp_path / "w.safetensors"
    save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, file)
    report = gradaudit.audit(audited, (INPUTS, LABELS), checkpoints=[file])
    assert [checkpoint.file for checkpoint in report.target.checkpoints] == [str(file)]
    assert not torch.equal(audited.weight, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gradaudit.audit(model(), (INPUTS, LABELS[:5])), DataError, "has 5 entries"),
        (lambda: gradaudit.audit(model(), (INPUTS / 0, LABELS)), DataError, "NaN or infinity"),
        (lambda: gradaudit.audit(model(), INPUTS), DataError, "data: returns Tensor"),
        (lambda: gradaudit.audit(model(), (INPUTS.T, LABELS[:2])), AuditError, "cannot be run on"),
        (lambda: gradaudit.audit(model(), (INPUTS, LABELS + 1)), AuditError, "from 1 to 3, but"),
        (
            lambda: gradaudit.audit(model(), (INPUTS, LABELS), attributes=["sex"]),
            UsageError,
            "data: has no attribute 'sex'; its attributes are: none",
        ),
        (
            lambda: gradaudit.audit(model(), (INPUTS, LABELS), audits=["countin"]),
            UsageError,
            r"countin: no such audit \(did you mean 'counting'\?\)",
        ),
        (
            lambda: gradaudit.audit(model(), (INPUTS, LABELS), audits={"counting": {"scal": 2}}),
            UsageError,
            r"counting: no option 'scal' \(did you mean 'scale'\?\); it takes: scale, doubled",
        ),
        (
            lambda: gradaudit.audit(model(), (INPUTS, LABELS), audits={"counting": {"scale": 0}}),
            UsageError,
            "--scale: Input should be greater than 0",
        ),
    ],
)
def test_faults_are_told(
    call: Callable[[], Any], error: type[GradauditError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
