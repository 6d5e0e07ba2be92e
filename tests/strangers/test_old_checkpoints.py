"""Checkpoints of other versions, of averaging clients and of averages alone; modules by name."""

import json
import struct
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from gradaudit.core.files import once
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.building import load_model
from gradaudit.models.checkpoint import apply_checkpoint, load_checkpoint
from gradaudit.models.checkpoint.shards import MAX_TENSORS


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def new_weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))


def header(*tensors: str) -> bytes:
    inside = ("{" + ",".join(tensors) + "}").encode()
    return struct.pack("<Q", len(inside)) + inside


@pytest.mark.parametrize(
    ("key", "quoted"), [("ema_model", "ema_model"), ("shadow weights", "'shadow weights'")]
)
def test_the_state_dict_of_a_file_of_averages_alone_is_named(
    key: str, quoted: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.pt"
    torch.save({key: nn.Linear(3, 2).state_dict(), "epoch": 3}, path)
    with pytest.raises(CheckpointError, match=f"holds no named tensors .* --state-dict {quoted}$"):
        load_checkpoint(path)
    assert load_checkpoint(path, key).state.keys() == {"weight", "bias"}


@pytest.mark.parametrize(("count", "whole"), [(12.5, 12), (12.6, 13), (7.0, 7)])
def test_averaged_counts_of_batches_are_rounded_and_named(
    count: float, whole: int, tmp_path: Path
) -> None:
    model = with_norm()
    averaged = {**model.state_dict(), "1.num_batches_tracked": torch.tensor(count).double()}
    torch.save(averaged, tmp_path / "c.pt")
    record = apply_checkpoint(model, load_checkpoint(tmp_path / "c.pt"))
    assert model.state_dict()["1.num_batches_tracked"] == whole
    assert list(record.notes) == ["rounded to whole numbers: 1.num_batches_tracked"]


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1.0, 1e300])
def test_counts_that_are_none_are_refused(count: float, tmp_path: Path) -> None:
    model = with_norm()
    state = {**model.state_dict(), "1.num_batches_tracked": torch.tensor(count).double()}
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"1\.num_batches_tracked \(float64 in the file"):
        apply_checkpoint(model, load_checkpoint(tmp_path / "c.pt"))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_old_keys_of_weight_norm_are_renamed_as_torch_does(prefix: str, tmp_path: Path) -> None:
    old = nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    state = {f"{prefix}{name}": tensor for name, tensor in old.state_dict().items()}
    torch.save(state, tmp_path / "c.pt")
    model = new_weight_norm()
    record = apply_checkpoint(model, load_checkpoint(tmp_path / "c.pt"))
    inputs = torch.randn(5, 3)
    assert torch.allclose(model(inputs), old(inputs), 1e-6, 1e-6)
    note = "keys of an older version, renamed as the model does: 0.weight_g, 0.weight_v"
    assert note in record.notes


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_old_keys_of_another_shape_are_named(tmp_path: Path) -> None:
    old = nn.Sequential(weight_norm(nn.Linear(3, 5)), nn.Linear(4, 2))
    torch.save(old.state_dict(), tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"unexpected 0\.weight_g, 0\.weight_v"):
        apply_checkpoint(new_weight_norm(), load_checkpoint(tmp_path / "c.pt"))


def test_complex_weights_fit_a_complex_model_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, dtype=torch.complex64)
    weights = nn.Linear(3, 2, dtype=torch.complex64).state_dict()
    torch.save(weights, tmp_path / "c.pt")
    loaded = load_checkpoint(tmp_path / "c.pt")
    apply_checkpoint(model, loaded)
    assert torch.equal(model.weight, weights["weight"])
    with pytest.raises(CheckpointError, match="complex64 in the file, float32 in the model"):
        apply_checkpoint(nn.Linear(3, 2), loaded)


def test_a_name_twice_in_a_header_is_refused(tmp_path: Path) -> None:
    one = '"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    path = tmp_path / "c.safetensors"
    path.write_bytes(header(one) + b"\0\0\x80?")
    assert load_checkpoint(path).state["w"] == 1
    path.write_bytes(header(one, one) + b"\0\0\x80?")
    with pytest.raises(CheckpointError, match="key 'w' twice"):
        load_checkpoint(path)


def test_a_header_of_too_many_tensors_is_refused(tmp_path: Path) -> None:
    tensors = (
        f'"{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(MAX_TENSORS + 1)
    )
    path = tmp_path / "c.safetensors"
    path.write_bytes(header(*tensors))
    with pytest.raises(CheckpointError, match="100,001 tensors, over the limit of 100,000"):
        load_checkpoint(path)


def test_a_key_twice_at_the_end_of_many_is_found() -> None:
    pairs = [(str(n), n) for n in range(200_000)]
    text = json.dumps(dict(pairs))[:-1] + ', "199999": 0}'
    with pytest.raises(ValueError, match="'199999' twice"):
        json.loads(text, object_pairs_hook=once)


def test_a_module_in_the_place_of_a_factory_is_copied(tmp_path: Path) -> None:
    code = "from torch import nn\nnet = nn.Linear(3, 2)\n"
    (tmp_path / "mine.py").write_text(code)
    spec = f"{tmp_path / 'mine.py'}:net"
    first = load_model(spec)
    with torch.no_grad():
        first.weight.zero_()
    assert load_model(spec).weight.abs().sum() > 0
    with pytest.raises(UsageError, match="is a model, which takes no options"):
        load_model(f"{spec}?width=3")
