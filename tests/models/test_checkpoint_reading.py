"""What is read from good files, whatever their name and however scripts wrapped the weights."""

import hashlib
import json
import shlex
import shutil
import sys
import zipfile
from argparse import Namespace
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import PosixPath
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.models.checkpoint.torch_file import read_torch

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


@dataclass
class Found:
    """What `inert` does not know."""

    x: int = 1


INERT = {
    "args": Namespace(lr=0.1, out=PosixPath("runs/1"), shape=(1, np.float32(2))),
    "hyper_parameters": {
        "path": PosixPath("data"),
        "names": ["a", float],
        "since": date(2026, 1, 2),
    },
    "best": np.float64(0.5),
    "history": np.arange(3),
    "groups": defaultdict(list, {"a": [1]}),
    "raw": b"abc\xff",
    "space": SimpleNamespace(z=1),
}


def kinds(value):
    """The types in a nested value."""
    inside = value.values() if isinstance(value, dict) else value if type(value) is list else ()
    return {type(value)}.union(*map(kinds, inside))


def test_inert_values_beside_weights_are_passed_over_and_nothing_of_them_is_made(tmp_path):
    torch.save({"state_dict": STATE, **INERT}, tmp_path / "c.pt")
    content, _ = read_torch(tmp_path / "c.pt")
    del content["state_dict"]
    assert kinds(content) == {dict, type(None)}
    loaded = load_checkpoint(tmp_path / "c.pt")
    assert equal(loaded.state)
    assert loaded.notes[1] == "left aside: args, hyper_parameters, best, history and 3 more"
    assert loaded.notes[2].startswith("not read, as they are no weights: values of argparse.Names")


def test_classes_of_the_user_are_refused_by_name(tmp_path):
    torch.save({"state_dict": STATE, "config": Found()}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"asks to run .*\.Found when loaded"):
        load_checkpoint(tmp_path / "c.pt")


def attribute_dict():
    """What Lightning keeps hyper-parameters in, under its name."""
    module = ModuleType("lightning.fabric.utilities.data")
    module.AttributeDict = type("AttributeDict", (dict,), {"__module__": module.__name__})
    return module


def test_what_lightning_saves_is_read(tmp_path, monkeypatch):
    module = attribute_dict()
    parts = module.__name__.split(".")
    for end in range(1, len(parts)):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hyper = module.AttributeDict(lr=0.1, root=PosixPath("x"))
    torch.save(
        {"state_dict": STATE, "hparams_name": "kwargs", "hyper_parameters": hyper},
        tmp_path / "c.pt",
    )
    monkeypatch.delitem(sys.modules, module.__name__)
    assert equal(load_checkpoint(tmp_path / "c.pt").state)


def test_legacy_files_and_programs_are_refused_with_a_command_that_converts_them(tmp_path):
    legacy, script = tmp_path / "old.pt", tmp_path / "script.pt"
    torch.save(STATE, legacy, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(script, "w") as archive:
        archive.writestr("a/code/x.py", "")
    with pytest.raises(
        CheckpointError, match="if you trust its program, convert it with python -c"
    ):
        load_checkpoint(script)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(legacy)
    command = str(caught.value).partition("convert it with ")[2].partition(", which runs")[0]
    code = shlex.split(command)[2]
    argv = ["-c", str(legacy), str(tmp_path / "new.pt")]
    assert shlex.split(command)[3:] == [str(legacy), "new.pt"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        exec(code)
    assert equal(load_checkpoint(tmp_path / "new.pt").state)


ARRAYS = {"w": np.arange(6.0, dtype=">f4").reshape(2, 3), "n": np.array(7), "b": np.ones(2, bool)}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_are_read_by_name(tmp_path, save):
    save(tmp_path / "c.npz", **ARRAYS)
    loaded = load_checkpoint(tmp_path / "c.npz")
    assert not loaded.ordered
    wanted = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7), "b": torch.ones(2).bool()}
    assert equal(loaded.state, wanted)


def test_arrays_without_names_keep_their_order(tmp_path):
    np.savez(tmp_path / "c.npz", *(np.full(1, place) for place in range(12)))
    loaded = load_checkpoint(tmp_path / "c.npz")
    assert loaded.ordered
    assert [int(tensor) for tensor in loaded.state.values()] == [*range(12)]


def sharded(folder, kind="safetensors"):
    """Weights in two files with an index, and the index."""
    folder.mkdir()
    places = {}
    for number, (name, tensor) in enumerate(STATE.items(), start=1):
        file = f"model-{number:05}-of-00002.{kind}"
        content = {name: tensor}
        save_file(content, folder / file) if kind == "safetensors" else torch.save(
            content, folder / file
        )
        places[name] = file
    index = folder / f"model.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": places}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_read_by_their_index_or_folder(tmp_path, kind):
    index = sharded(tmp_path / "model", kind)
    loaded = load_checkpoint(index)
    assert equal(loaded.state)
    assert list(loaded.state) == list(STATE)
    digests = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in [index, *sorted(tmp_path.glob("model/model-*"))]
    )
    assert loaded.record.sha256 == hashlib.sha256(digests.encode()).hexdigest()
    of_folder = load_checkpoint(index.parent)
    assert equal(of_folder.state)
    assert of_folder.record.file == str(index.parent)


def test_a_folder_of_one_file_stands_for_it(tmp_path):
    save_file(dict(STATE), tmp_path / "model.safetensors")
    assert equal(load_checkpoint(tmp_path).state)
    save_file(dict(STATE), tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="several weights"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"w": "{1}", "b": "{0}"}, "lacks w"),
        ({"w": "{0}", "b": "{0}"}, "lacks b"),
        ({"w": "{0}", "b": "gone.safetensors"}, "gone.safetensors, which is not beside it"),
        ({"w": "{0}", "b": "../model/{1}"}, "not a file beside it"),
        ({"w": "{0}", "b": "model.safetensors.index.json"}, "is an index of shards, and no shard"),
        ({"w": "{0}", "b": 3}, "names no files"),
        ({}, "names no files"),
    ],
)
def test_every_tensor_is_where_the_index_says(tmp_path, places, words):
    index = sharded(tmp_path / "model")
    files = [path.name for path in sorted(index.parent.glob("*.safetensors"))]
    named = {k: v.format(*files) if isinstance(v, str) else v for k, v in places.items()}
    index.write_text(json.dumps({"weight_map": named}))
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(index)
