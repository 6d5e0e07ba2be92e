"""Adapters of PEFT: the trained weights alone are shared, and they are those of the library."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from language_models import Shelf, adapter_of, folder_of

from gradaudit.config import SubjectSettings
from gradaudit.core.huggingface import library
from gradaudit.data.records import IGNORED
from gradaudit.errors import CheckpointError, GradauditError, UsageError
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.resume import ROUND, RunFolder, RunRecord, train_into
from gradaudit.federation.settings import TrainingOptions
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.run.opening import open_subject
from gradaudit.subject import Subject

GPT2, BERT = "GPT2LMHeadModel", "BertForSequenceClassification"


def opened(shelf: Shelf, model: str, adapter: Path, *checkpoints: Path) -> Subject:
    label = "" if model == GPT2 else "&label=mood"
    settings = SubjectSettings(
        model=f"hf:{shelf.model(model)}?adapter={adapter}",
        data=f"text:{shelf.texts()}?text=text&length=9{label}",
        checkpoint=checkpoints,
    )
    return open_subject(settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layers"), [(GPT2, ("c_attn", "c_fc")), (BERT, ("query", "dense"))]
)
def test_gradients_are_those_of_the_trained_weights(
    model: str, layers: tuple[str, ...], shelf: Shelf
) -> None:
    folder, adapter = shelf.model(model), shelf.adapter(model, *layers)
    target, records = (s := opened(shelf, model, adapter)).target, s.records
    found = per_sample_gradients(
        target, records.inputs, records.labels, target.layers, dtype=torch.float64
    )
    assert found.way == "vmap"
    base = getattr(library("transformers"), model).from_pretrained(folder, local_files_only=True)
    theirs = library("peft").PeftModel.from_pretrained(base, adapter, is_trainable=True)
    theirs = theirs.double().eval()
    trained = {name for name, p in theirs.named_parameters() if p.requires_grad}
    ours = {f"base_model.model.{name}" for layer in target.layers for name in layer.parameter_names}
    assert trained == ours
    gradients = {layer.name: torch.cat([c[layer.name] for c in found]) for layer in target.layers}
    for k, (ids, present) in enumerate(records.inputs.reshape(-1, 2, 9)):
        theirs.zero_grad()
        logits = theirs(input_ids=ids[None], attention_mask=present[None]).logits.flatten(0, -2)
        labels = records.labels[k : k + 1].flatten()
        F.cross_entropy(logits, labels, ignore_index=IGNORED).backward()
        for layer in target.layers:
            (name,) = layer.parameter_names
            expected = theirs.get_parameter(f"base_model.model.{name}").grad.flatten()
            torch.testing.assert_close(gradients[layer.name][k], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_report_tells_of_both_files(shelf: Shelf) -> None:
    adapter = shelf.adapter(GPT2, "c_attn")
    checkpoint = opened(shelf, GPT2, adapter).target.checkpoint
    assert checkpoint is not None
    assert checkpoint.file == str(adapter / "adapter_model.safetensors")
    assert any(str(shelf.model(GPT2) / "model.safetensors") in note for note in checkpoint.notes)


@pytest.mark.slow
def test_only_trained_weights_travel_and_are_kept(shelf: Shelf, tmp_path: Path) -> None:
    adapter = shelf.adapter(GPT2, "c_attn", "c_fc")
    subject = opened(shelf, GPT2, adapter)
    options = TrainingOptions(algorithm="fedavg", clients=2, rounds=1, rate=0.5)
    training = FederatedTraining(subject.target, subject.records, options)
    record = RunRecord(settings={}, records=6, clients=[], test=[], sizes=[])
    before, after = train_into(RunFolder(tmp_path / "run", record), training, 1, 1)
    trained = {name for layer in subject.layers for name in layer.parameter_names}
    kept = load_checkpoint(tmp_path / "run" / ROUND.format(1)).state
    assert kept.keys() == trained
    again = opened(shelf, GPT2, adapter, tmp_path / "run" / ROUND.format(1)).target.model
    for name, parameter in again.named_parameters():
        now = after.state if name in trained else subject.target.model.state_dict()
        assert parameter.detach().equal(now[name])
        assert name not in trained or not parameter.detach().equal(before.state[name])


@pytest.mark.slow
def test_refused_adapters(shelf: Shelf, tmp_path: Path) -> None:
    def refused(kind: type[GradauditError], adapter: Path, message: str) -> None:
        with pytest.raises(kind) as caught:
            opened(shelf, GPT2, adapter)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    refused(UsageError, tmp_path, "holds no adapter_config.json")
    refused(CheckpointError, shelf.adapter(BERT, "query"), "base_model_name_or_path is another")
    wider = folder_of(tmp_path / "wider", GPT2, n_embd=32)
    adapter = adapter_of(tmp_path / "adapter", wider, GPT2, target_modules=["c_attn"])
    refused(CheckpointError, adapter, "n_embd is 32 there and 16 here")
    settings = adapter / "adapter_config.json"
    told = json.loads(settings.read_text()) | {"base_model_name_or_path": "elsewhere"}
    settings.write_text(json.dumps(told))
    refused(CheckpointError, adapter, "does not fit the model: misshapen transformer.h.0.attn")
    settings.write_text(json.dumps(told | {"target_modules": ["query"]}))
    refused(CheckpointError, adapter, "peft cannot put the adapter into this model")
    settings.write_text(json.dumps(told | {"peft_type": "PROMPT_TUNING"}))
    refused(CheckpointError, adapter, "peft cannot put the adapter into this model")
    (adapter / "adapter_model.safetensors").unlink()
    settings.write_text(json.dumps(told))
    refused(UsageError, adapter, "holds no adapter_model.safetensors")
