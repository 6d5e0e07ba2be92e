"""What is read from good files, whatever their name and however scripts wrapped the weights."""

import hashlib
import shutil
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradaudit.models.checkpoint import load_checkpoint

STATE = OrderedDict(w=torch.arange(6.0).reshape(2, 3), b=torch.tensor([1, -1]))
OPTIMIZER = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]}


def equal(state, expected=STATE):
    return state.keys() == expected.keys() and all(
        torch.equal(state[k], expected[k]) and state[k].dtype == expected[k].dtype for k in expected
    )


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".bin", ""])
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_the_format_is_told_by_content(tmp_path, kind, suffix):
    path = tmp_path / f"weights{suffix}"
    if kind == "torch":
        torch.save(STATE, path)
    else:
        save_file(dict(STATE), path, metadata={"note": "x"})
    loaded = load_checkpoint(path)
    assert equal(loaded.state)
    assert loaded.record.file == str(path)
    assert loaded.record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.notes == ()
    assert equal(load_checkpoint(str(path)).state)


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        ({"state_dict": STATE}, ["state dict taken from 'state_dict'"]),
        (
            {"epoch": 3, "model_state_dict": STATE, "optimizer_state_dict": OPTIMIZER, "loss": 0.1},
            [
                "state dict taken from 'model_state_dict'",
                "left aside: epoch, optimizer_state_dict, loss",
            ],
        ),
        (
            {
                "epoch": 3,
                "pytorch-lightning_version": "2.4.0",
                "state_dict": STATE,
                "optimizer_states": [OPTIMIZER],
            },
            [
                "state dict taken from 'state_dict'",
                "left aside: epoch, pytorch-lightning_version, optimizer_states",
            ],
        ),
        (
            {"model": STATE, "args": {"lr": 0.1}},
            ["state dict taken from 'model'", "left aside: args"],
        ),
        ({"module": STATE}, ["state dict taken from 'module'"]),
        ({"net": STATE, "acc": 94.5}, ["state dict taken from 'net'", "left aside: acc"]),
        ({"weights": STATE}, ["state dict taken from 'weights'"]),
        (
            {"model": {"state_dict": STATE}},
            ["state dict taken from 'model'", "state dict taken from 'state_dict'"],
        ),
        ({**STATE, "epoch": 3, 7: 8}, ["left aside: epoch, int"]),
        ({**STATE, "a\x1b[2J": 0}, ["left aside: a�[2J"]),
        ({"model": STATE, "model_ema": STATE}, ["state dict taken from 'model'"]),
    ],
)
def test_wrapped_state_dicts_are_found_and_notes_say_where(tmp_path, content, notes):
    torch.save(content, tmp_path / "c.pt")
    loaded = load_checkpoint(tmp_path / "c.pt")
    assert equal(loaded.state)
    assert list(loaded.notes) == notes


def test_parameters_become_plain_tensors(tmp_path):
    torch.save(dict(nn.Linear(2, 3).named_parameters()), tmp_path / "p.pt")
    state = load_checkpoint(tmp_path / "p.pt").state
    assert {type(tensor) for tensor in state.values()} == {torch.Tensor}
    assert not any(tensor.requires_grad for tensor in state.values())


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_nothing_that_is_done_to_a_loaded_tensor_reaches_the_file(tmp_path, kind):
    path = tmp_path / "weights"
    torch.save(STATE, path) if kind == "torch" else save_file(dict(STATE), path)
    before = path.read_bytes()
    load_checkpoint(path).state["w"].zero_()
    assert path.read_bytes() == before


def test_a_link_to_a_checkpoint_is_followed(tmp_path):
    torch.save(STATE, tmp_path / "blob")
    (tmp_path / "weights.safetensors").symlink_to("blob")
    assert equal(load_checkpoint(tmp_path / "weights.safetensors").state)


def test_names_of_files_never_reach_a_message_raw(tmp_path):
    path = tmp_path / "a\x1b[31m.pt"
    torch.save(STATE, tmp_path / "plain.pt")
    shutil.copy(tmp_path / "plain.pt", path)
    assert load_checkpoint(path).record.file.isprintable()
