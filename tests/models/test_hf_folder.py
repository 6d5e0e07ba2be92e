"""Models of transformers: what they are called with, and their gradients, padded or not."""

import copy
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from language_models import Shelf, folder_of
from safetensors.torch import load_file, save_file

from gradaudit.config import SubjectSettings
from gradaudit.core.huggingface import library
from gradaudit.data.records import IGNORED
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.building import load_model
from gradaudit.models.checkpoint import apply_checkpoint, load_checkpoint
from gradaudit.models.hf_weights import as_named_here
from gradaudit.run.opening import open_subject
from gradaudit.subject import Subject

MODELS = {
    "GPT2LMHeadModel": "text=text",
    "BertForMaskedLM": "text=text",
    "BertForSequenceClassification": "text=text&label=mood",
    "GPT2ForSequenceClassification": "text=text&label=mood",
    "RobertaForMaskedLM": "text=text",
}
LENGTH = 9


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*args: object) -> None:
        raise AssertionError(f"the network was asked for {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return


def opened(model: Path | str, data: str) -> Subject:
    return open_subject(SubjectSettings(model=f"hf:{model}", data=f"text:{data}"))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "data"), MODELS.items())
def test_per_sample_gradients_are_those_of_the_library_without_padding(
    architecture: str, data: str, shelf: Shelf
) -> None:
    subject = opened(shelf.model(architecture), f"{shelf.texts()}?{data}&length={LENGTH}")
    target, records = subject.target, subject.records
    found = per_sample_gradients(
        target, records.inputs, records.labels, target.layers, dtype=torch.float64
    )
    gradients = {layer.name: torch.cat([c[layer.name] for c in found]) for layer in target.layers}
    assert found.way == "vmap"
    model = copy.deepcopy(target.model).double().eval()
    for k, (ids, present) in enumerate(records.inputs.reshape(-1, 2, LENGTH)):
        ids, labels = ids[present > 0], records.labels[k : k + 1].flatten()
        if architecture == "GPT2LMHeadModel":
            labels = ids.roll(-1)
            labels[-1] = IGNORED
        model.zero_grad()
        logits = model(input_ids=ids[None]).logits.flatten(0, -2)
        F.cross_entropy(logits, labels[: len(logits)], ignore_index=IGNORED).backward()
        for layer in target.layers:
            parameters = map(model.get_parameter, layer.parameter_names)
            expected = torch.cat([parameter.grad.flatten() for parameter in parameters])
            torch.testing.assert_close(gradients[layer.name][k], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_weights_in_the_folder_are_its_checkpoint(shelf: Shelf) -> None:
    path = shelf.model("GPT2LMHeadModel")
    target = opened(path, f"{shelf.texts()}?text=text").target
    assert target.checkpoint is not None
    assert target.checkpoint.file == str(path / "model.safetensors")
    drawn = load_model(f"hf:{path}")
    assert not drawn.get_parameter("transformer.wte.weight").equal(
        target.model.get_parameter("transformer.wte.weight")
    )


@pytest.mark.slow
def test_weights_may_lie_in_shards_or_be_a_state_dict(shelf: Shelf, tmp_path: Path) -> None:
    whole = opened(path := shelf.model("BertForMaskedLM"), f"{shelf.texts()}?text=text").target
    for kind in ("shards", "bin"):
        copied = shutil.copytree(path, tmp_path / kind)
        (copied / "model.safetensors").unlink()
        if kind == "bin":
            torch.save(whole.model.state_dict(), copied / "pytorch_model.bin")
        else:
            copy.deepcopy(whole.model).save_pretrained(copied, max_shard_size="8KB")  # type: ignore[operator]
            assert len([*copied.glob("*.safetensors")]) > 1
        target = opened(copied, f"{shelf.texts()}?text=text").target
        assert target.checkpoint is not None
        for name, parameter in target.model.named_parameters():
            assert parameter.equal(whole.model.get_parameter(name))


@pytest.mark.slow
def test_older_names_of_weights_are_known(shelf: Shelf, tmp_path: Path) -> None:
    """As in folders of before: without the prefix and with masks, or with gamma and beta."""
    for architecture, add, old in (
        ("GPT2LMHeadModel", {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, ("transformer.", "")),
        ("BertForMaskedLM", {}, ("LayerNorm.weight", "LayerNorm.gamma")),
    ):
        path = shelf.model(architecture)
        target = opened(path, f"{shelf.texts()}?text=text").target
        state = load_file(path / "model.safetensors")
        renamed = {name.replace(*old): tensor for name, tensor in state.items()}
        save_file(renamed | add, tmp_path / "old.safetensors")
        model = copy.deepcopy(target.model)
        for parameter in model.parameters():
            parameter.data.zero_()
        apply_checkpoint(model, as_named_here(load_checkpoint(tmp_path / "old.safetensors"), model))
        for name, parameter in model.named_parameters():
            assert parameter.equal(target.model.get_parameter(name)), name


@pytest.mark.slow
def test_a_prefix_before_the_library_s_names_is_stripped(shelf: Shelf, tmp_path: Path) -> None:
    path = shelf.model("GPT2LMHeadModel")
    state = load_file(path / "model.safetensors")
    save_file({f"module.{key}": tensor for key, tensor in state.items()}, tmp_path / "m")
    model = load_model(f"hf:{path}")
    apply_checkpoint(model, as_named_here(load_checkpoint(tmp_path / "m"), model))
    assert all(tensor.equal(state[key]) for key, tensor in model.named_parameters())


@pytest.mark.slow
def test_whole_numbers_are_no_weights(shelf: Shelf, tmp_path: Path) -> None:
    path = shelf.model("BertForMaskedLM")
    state = load_file(path / "model.safetensors")
    old = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): x for key, x in state.items()}
    gamma = "bert.embeddings.LayerNorm.gamma"
    save_file(old | {gamma: old[gamma].long()}, tmp_path / "m")
    model = load_model(f"hf:{path}")
    with pytest.raises(CheckpointError, match=rf"{gamma} \(int64 in the file\)"):
        as_named_here(load_checkpoint(tmp_path / "m"), model)


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"not installed; install gradaudit\[transformers\]"):
        library.__wrapped__("transformers")


def test_tied_embeddings_are_one_layer(shelf: Shelf) -> None:
    names = [
        layer.name
        for layer in opened(shelf.model("GPT2LMHeadModel"), f"{shelf.texts()}?text=text").layers
    ]
    assert "transformer.wte" in names
    assert "lm_head" not in names


@pytest.mark.slow
def test_a_model_travels_to_workers(shelf: Shelf) -> None:
    target = opened(shelf.model("BertForMaskedLM"), f"{shelf.texts()}?text=text").target
    arrived = cloudpickle.loads(cloudpickle.dumps(target.model))
    assert type(arrived) is type(target.model)
    assert [*arrived.state_dict()] == [*target.model.state_dict()]


def test_a_task_can_be_named(shelf: Shelf) -> None:
    model = load_model(f"hf:{shelf.model('GPT2LMHeadModel')}?task=classification&classes=3")
    assert type(model).__name__ == "GPT2ForSequenceClassification"
    assert model.get_parameter("score.weight").shape == (3, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["BertModel"]}, "say ?task=next-token|masked-token|classification"),
        ({"architectures": None}, "say ?task=next-token"),
        ({"hidden_size": "wide"}, "config.json: transformers cannot read it"),
        ({"hidden_size": 1 << 18}, "config.json: asks for "),
    ],
    ids=lambda value: str(value)[:20],
)
def test_refused_configs(
    change: dict[str, object], message: str, shelf: Shelf, tmp_path: Path
) -> None:
    told = json.loads((shelf.model("BertForMaskedLM") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, **change}))
    with pytest.raises(UsageError) as caught:
        load_model(f"hf:{tmp_path}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_padding_without_an_embedding_is_refused_as_such(shelf: Shelf, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", "GPT2LMHeadModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 50256}))
    data = f"text:{shelf.texts()}?text=text&length=20"
    settings = SubjectSettings(model=f"hf:{folder}", data=data)
    with pytest.raises(UsageError, match=r"filled with the token 50,256, .* set pad_token_id in"):
        open_subject(settings)
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 1}))
    assert len(open_subject(settings).records) == 6


@pytest.mark.slow
def test_refused_folders(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder; nothing is ever downloaded"):
        load_model("hf:gpt2")
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        load_model(f"hf:{tmp_path}")
    path = shelf.model("GPT2LMHeadModel")
    with pytest.raises(UsageError, match="length=25 is beyond the 24 positions"):
        opened(path, f"{shelf.texts()}?text=text&length=25")
    with pytest.raises(UsageError, match="length=23 is beyond the 22 positions"):
        opened(shelf.model("RobertaForMaskedLM"), f"{shelf.texts()}?text=text&length=23")
    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())
    with pytest.raises(UsageError, match=r"holds no tokenizer \(tokenizer\.json\)"):
        opened(tmp_path, f"{shelf.texts()}?text=text")
    told = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "vocab_size": 20}))
    with pytest.raises(UsageError, match=r"tokens up to \d+, and the model has embeddings of 20"):
        opened(tmp_path, f"{shelf.texts()}?text=text&tokenizer={path}")
    (tmp_path / "config.json").write_text(json.dumps({**told, "n_embd": 8}))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"misshapen transformer\.wte\.weight"):
        opened(tmp_path, f"{shelf.texts()}?text=text&tokenizer={path}")
