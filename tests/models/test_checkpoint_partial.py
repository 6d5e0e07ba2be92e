"""Checkpoints that need to be told how they fit, from the request to the report."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import gradaudit
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.building import load_model

MODEL = "zoo:mlp?inputs=2&hidden=3&classes=2"
DATA = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2


def state() -> dict[str, torch.Tensor]:
    return load_model(MODEL).state_dict()


def audited(path: Path, **how: object) -> gradaudit.Report:
    return gradaudit.audit(MODEL, DATA, audits=["forward"], checkpoints=[path], **how)


def test_a_partial_checkpoint_is_a_warning_that_names_what_is_random(tmp_path: Path) -> None:
    weights = state()
    del weights["output.bias"]
    save_file(weights, tmp_path / "c.safetensors")
    with pytest.raises(CheckpointError, match=r"missing output\.bias"):
        audited(tmp_path / "c.safetensors")
    report = audited(tmp_path / "c.safetensors", partial=True)
    assert report.target.checkpoints[0].random == ["output.bias"]
    accuracy = report.data["accuracy"]
    assert isinstance(accuracy, dict)
    assert "the checkpoint is partial: output.bias are random" in str(accuracy["warning"])


def test_a_prefix_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    save_file({f"a.{name}": part for name, part in state().items()}, tmp_path / "c.safetensors")
    report = audited(tmp_path / "c.safetensors", prefix="a.=")
    assert report.target.checkpoints[0].notes == ["prefix 'a.' stripped from the keys"]
    with pytest.raises(UsageError, match="write OLD=NEW"):
        audited(tmp_path / "c.safetensors", prefix="a.")


def test_what_flower_saves_is_audited(tmp_path: Path) -> None:
    np.savez(tmp_path / "round-1.npz", *(part.numpy() for part in state().values()))
    report = audited(tmp_path / "round-1.npz")
    assert report.target.checkpoints[0].random == []
    assert all(row.status == "measured" for row in report.select("forward.fraction"))
