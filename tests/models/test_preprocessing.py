"""What gives away that the records are not preprocessed as in training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradaudit.accuracy import TaskAccuracy, task_accuracy
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.preprocessing import expected_of_run, watching
from gradaudit.models.target import Expected, Target
from gradaudit.report import CheckpointRecord
from tests.command_line import run

PROBABLY = "the preprocessing is then probably not the one the model was trained with"
LOADED = CheckpointRecord(file="weights.safetensors", sha256="0" * 64)
GIVEN = Expected(0.95, "--expected-accuracy")


def guessing(right: float, records: int = 200) -> tuple[Target, Records]:
    """A trained model that returns its inputs, and records of which it gets this share right."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    labels = torch.arange(records) % 2
    guesses = torch.where(torch.arange(records) < right * records, labels, 1 - labels)
    target = Target(model, CrossEntropy(), description="mine.py:net", checkpoint=LOADED)
    return target, Records(nn.functional.one_hot(guesses, 2).float(), labels)


def warned(right: float, expected: Expected | None = None, **changes: Any) -> str:
    target, records = guessing(right)
    return task_accuracy(replace(target, **changes), records, expected=expected).warning or ""


def test_an_accuracy_below_the_expected_one_is_doubted() -> None:
    assert warned(0.7) == ""
    doubt = warned(0.7, GIVEN)
    assert doubt.startswith("the model reaches 0.700 on these records, and 0.950 by --expected")
    assert PROBABLY in doubt
    assert "or these are other records" in doubt
    assert warned(0.9, GIVEN) == ""


def test_an_expected_accuracy_at_chance_is_no_reason_to_doubt() -> None:
    assert PROBABLY in warned(0.5)
    assert warned(0.5, Expected(0.52, "--expected-accuracy")) == ""


@pytest.mark.parametrize("spec", ["zoo:mlp?inputs=2", "torchvision:resnet18"])
def test_random_weights_are_called_so(spec: str) -> None:
    said = warned(0.5, checkpoint=None, description=spec)
    assert said == warned(0.9, checkpoint=None, description=spec)
    assert said.startswith("the weights are random: no checkpoint was given (--checkpoint)")
    assert "random" not in warned(0.5, description=spec)


def test_weights_of_a_factory_may_be_random() -> None:
    said = warned(0.5, checkpoint=None)
    assert "no checkpoint was given (--checkpoint), so its weights may be random; if not" in said
    assert warned(0.9, checkpoint=None) == ""


def test_bytes_are_pointed_out_where_the_model_fails() -> None:
    target = Target(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), CrossEntropy(), checkpoint=LOADED
    )
    nn.init.zeros_(target.model[1].weight)  # type: ignore[index]
    pictures = torch.randint(0, 256, (40, 1, 4, 4)).float()
    pictures[0, 0, 0, 0] = 255
    labels = torch.arange(40) % 2
    said = task_accuracy(target, Records(pictures, labels)).warning or ""
    assert "(the inputs run from 0 to 255, as bytes do)" in said
    assert "bytes" not in (task_accuracy(target, Records(pictures / 255, labels)).warning or "")


def run_file(folder: Path, content: object) -> Path:
    (folder / "run.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / "round-002.safetensors"


def test_the_accuracy_of_a_run_is_found_beside_its_checkpoint(tmp_path: Path) -> None:
    rounds = [
        {"file": "round-001.safetensors", "train": 0.5, "test": 0.4},
        {"file": "round-002.safetensors", "train": 0.97, "test": 0.93},
    ]
    path = run_file(tmp_path, {"rounds": rounds})
    assert expected_of_run(path) == Expected(0.93, "run.json beside its checkpoint")
    assert expected_of_run(tmp_path / "round-003.safetensors") is None
    rounds[1]["test"] = None  # type: ignore[assignment]
    assert expected_of_run(run_file(tmp_path, {"rounds": rounds})).value == 0.97  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        [],
        {},
        {"rounds": 3},
        {"rounds": [{"file": "round-002.safetensors"}]},
        {"rounds": [{"file": "round-002.safetensors", "train": None, "test": "high"}]},
        "[" * 100_000,
    ],
    ids=lambda content: str(content)[:30],
)
def test_a_file_of_another_kind_expects_nothing(tmp_path: Path, content: object) -> None:
    assert expected_of_run(tmp_path / "round-002.safetensors") is None
    assert expected_of_run(run_file(tmp_path, content)) is None


def trained(inputs: Tensor, labels: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(72, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for rows in torch.randperm(len(inputs)).repeat(3).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval()


def test_inputs_unlike_those_that_batch_normalisation_remembers() -> None:
    """Well above chance, and still not the records that the model was trained on."""
    digits = load_digits()
    pictures = torch.from_numpy(digits.images[:, None]).float() / 16
    labels = torch.from_numpy(digits.target).long()
    scaled = (pictures - pictures.mean()) / pictures.std()
    target = Target(trained(scaled[:1000], labels[:1000]), CrossEntropy(), checkpoint=LOADED)

    def found(inputs: Tensor, expected: Expected | None = None) -> TaskAccuracy:
        return task_accuracy(target, Records(inputs[1000:], labels[1000:]), expected=expected)

    assert found(scaled).warning is None
    for wrong in (pictures, 255 * pictures):
        each = found(wrong)
        assert (each.value or 0) > 0.3
        assert "first batch normalisation (1)" in (each.warning or "")
        assert PROBABLY in (each.warning or "")
        assert found(wrong, Expected(each.value or 0, "--expected-accuracy")).warning is None
    assert not target.model[1]._forward_pre_hooks  # type: ignore[index]


def test_moments_by_channel_over_calls() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model(torch.randn(8, 3))
    values = torch.randn(50, 3) * 2 + 1
    with watching(model.eval()) as seen:
        model(values[:20])
        model(values[20:])
    assert seen.name == "0"
    count, total, squares = seen.moments
    torch.testing.assert_close(total / count, values.double().mean(0))
    torch.testing.assert_close(squares / count, values.double().square().mean(0))
    with watching(nn.Sequential(nn.BatchNorm1d(3))) as fresh:
        assert fresh.unlike(model) is None


def test_on_the_command_line() -> None:
    sample = ("-m", "sample_models/models.py:digits_cnn", "-d", "digits", "--device", "cpu")
    wrong = run("forward", *sample, "--expected-accuracy", "1.2")
    assert (wrong.status, "--expected-accuracy" in wrong.err) == (2, True)
    done = run("forward", *sample, "--samples", "20", "-f", "json")
    said = json.loads(done.out)["data"]["accuracy"]["warning"]
    assert "no checkpoint was given" in said
