"""What gives away that the records are not preprocessed as in training."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from gradaudit.accuracy import task_accuracy
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.report import CheckpointRecord
from tests.command_line import run

PROBABLY = "the preprocessing is then probably not the one the model was trained with"
LOADED = CheckpointRecord(file="weights.safetensors", sha256="0" * 64)
GIVEN = 0.95


def guessing(right: float, records: int = 200) -> tuple[Target, Records]:
    """A trained model that returns its inputs, and records of which it gets this share right."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    labels = torch.arange(records) % 2
    guesses = torch.where(torch.arange(records) < right * records, labels, 1 - labels)
    target = Target(model, CrossEntropy(), description="mine.py:net", checkpoint=LOADED)
    return target, Records(nn.functional.one_hot(guesses, 2).float(), labels)


def warned(right: float, expected: float | None = None, **changes: Any) -> str:
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
    assert warned(0.5, 0.52) == ""


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


def test_on_the_command_line() -> None:
    sample = ("-m", "sample_models/models.py:digits_cnn", "-d", "digits", "--device", "cpu")
    wrong = run("forward", *sample, "--expected-accuracy", "1.2")
    assert (wrong.status, "--expected-accuracy" in wrong.err) == (2, True)
    done = run("forward", *sample, "--samples", "20", "-f", "json")
    said = json.loads(done.out)["data"]["accuracy"]["warning"]
    assert "no checkpoint was given" in said
