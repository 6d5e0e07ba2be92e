"""Checkpoints that hold averaged weights (EMA) beside those of the last step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.run.opening import open_subject

LAST = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
MEAN = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
TRAINING: dict[str, Any] = {"epoch": 3, "lr": 0.1, "step": 9, "loss": 0.2, "best": 0.5}


@pytest.mark.parametrize("key", ["model_ema", "ema", "state_dict_ema", "ema_state_dict", "swa"])
def test_averaged_weights_are_named_where_they_are_left_and_audited_where_asked(
    key: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({**TRAINING, "model": LAST, key: MEAN}, path)
    loaded = load_checkpoint(path)
    assert loaded.state["weight"].sum() == 0
    assert any(key in note for note in loaded.notes if note.startswith("left aside: "))
    chosen = load_checkpoint(path, key)
    assert chosen.state["weight"].sum() == 6
    assert f"state dict taken from {key!r}, as --state-dict says" in chosen.notes
    assert "left aside: model" in chosen.notes


def test_a_wrapped_average_is_unwrapped(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": LAST, "ema": {"module": MEAN, "decay": 0.99}}, path)
    assert load_checkpoint(path, "ema").state["bias"].sum() == 2


def test_weights_that_are_not_there_are_asked_for_by_what_is(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": LAST, "teacher": MEAN}, path)
    with pytest.raises(UsageError, match="no such state dict; its state dicts are: model, teacher"):
        load_checkpoint(path, "ema")
    assert load_checkpoint(path).notes == (
        "state dict taken from 'model'",
        "left aside: teacher",
    )
    torch.save(LAST, path)
    assert load_checkpoint(path).notes == ()


def test_the_audited_model_has_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": LAST, "ema": MEAN}, path)
    records = Records(torch.rand(4, 3), torch.arange(4) % 2, classes=("a", "b"))
    settings = SubjectSettings(checkpoint=(path,), state_dict="ema")
    subject = open_subject(settings, model=torch.nn.Linear(3, 2), records=records)
    assert float(subject.target.model.weight.detach().sum()) == 6
