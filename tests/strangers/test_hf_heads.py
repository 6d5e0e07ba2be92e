"""Folders of transformers with heads beyond language models: pictures, sounds, tags, experts."""

import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from language_models import table_in, tokenizer_in
from torch import Tensor

from gradaudit.accuracy import task_accuracy
from gradaudit.config import SubjectSettings
from gradaudit.core.huggingface import library
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.building import load_model
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.run.opening import open_subject
from gradaudit.subject import Subject

pytestmark = pytest.mark.slow

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
TOKENS = {"vocab_size": 60, "max_position_embeddings": 24, "pad_token_id": 1}
IDS = torch.arange(5, 21).reshape(2, 8)
TEXT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
CLASS, TAGS = torch.tensor([0, 1]), IDS % 3
ATTENDED = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
HEADS: dict[str, tuple[str, Mapping[str, Any], Any, Tensor]] = {
    "ViTForImageClassification": (
        "ViTConfig", {**SMALL, "image_size": 8, "patch_size": 4}, torch.rand(2, 3, 8, 8), CLASS
    ),
    "ConvNextForImageClassification": (
        "ConvNextConfig", {"hidden_sizes": [4] * 4, "depths": [1] * 4}, torch.rand(2, 3, 32, 32),
        CLASS,
    ),
    "BertForTokenClassification": (
        "BertConfig", {**SMALL, **TOKENS, "num_labels": 3}, TEXT, TAGS
    ),
    "Wav2Vec2ForSequenceClassification": (
        "Wav2Vec2Config",
        {
            **SMALL, "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2),
            "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 4,
        },
        torch.randn(2, 200),
        CLASS,
    ),
    "WhisperForAudioClassification": (
        "WhisperConfig",
        {
            "vocab_size": 50, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, **ATTENDED,
            "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "num_mel_bins": 4,
            "max_source_positions": 10, "max_target_positions": 10, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
            "suppress_tokens": None, "begin_suppress_tokens": None,
        },
        torch.randn(2, 4, 20),
        CLASS,
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {
            "vocab_size": 60, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2,
            "decoder_start_token_id": 1, "pad_token_id": 1,
        },
        {**TEXT, "decoder_input_ids": IDS.roll(1, 1)},
        IDS,
    ),
    "BertForQuestionAnswering": (
        "BertConfig",
        {**SMALL, **TOKENS},
        {**TEXT, "token_type_ids": torch.tensor([[0] * 3 + [1] * 5] * 2)},
        torch.tensor([[3, 5], [4, 4]]),
    ),
    "MixtralForCausalLM": (
        "MixtralConfig",
        {
            **SMALL, **TOKENS, "num_key_value_heads": 2, "num_local_experts": 2,
            "bos_token_id": None, "eos_token_id": None,
        },
        TEXT,
        IDS,
    ),
}  # fmt: skip


def saved(path: Path, architecture: str, **settings: Any) -> Any:
    """A model with random weights, written into a folder."""
    transformers = library("transformers")
    config, given, _, _ = HEADS[architecture]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = getattr(transformers, config)(**{**given, **settings})
        model = getattr(transformers, architecture)(made)
        model.save_pretrained(path)
    return model.eval()


def opened(path: Path, architecture: str) -> Subject:
    _, _, inputs, labels = HEADS[architecture]
    records = records_of({"inputs": inputs, "labels": labels}, "data")
    return open_subject(SubjectSettings(model=f"hf:{path}"), records=records)


@pytest.mark.parametrize("architecture", HEADS)
def test_gradients_are_those_of_the_model_that_was_saved(architecture: str, tmp_path: Path) -> None:
    model, (_, _, inputs, labels) = saved(tmp_path, architecture), HEADS[architecture]
    named = inputs if isinstance(inputs, dict) else {}
    if architecture.endswith("QuestionAnswering"):
        ends = {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        loss = model(**named, **ends).loss
    else:
        logits = model(**named).logits if named else model(inputs).logits
        loss = F.cross_entropy(logits.movedim(-1, 1), labels)
    used = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    slopes = torch.autograd.grad(loss, [p for _, p in used], allow_unused=True)
    subject = opened(tmp_path, architecture)
    functional = FunctionalModel.of(subject.target, dtype=torch.float32)
    found = torch.func.grad(functional.batch_loss)(
        functional.parameters, functional.cast(subject.records.inputs), subject.records.labels
    )
    assert set(found) == {name for name, _ in used}
    for (name, parameter), slope in zip(used, slopes, strict=True):
        expected = torch.zeros_like(parameter) if slope is None else slope
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)


def test_classes_of_a_folder_of_pictures_have_the_order_of_the_model(tmp_path: Path) -> None:
    names = {"id2label": {0: "dog", 1: "cat"}, "label2id": {"dog": 0, "cat": 1}}
    saved(tmp_path / "vit", "ViTForImageClassification", **names)
    factory = tmp_path / "data.py"
    factory.write_text(
        "import torch\n"
        "def pictures():\n"
        "    return {'inputs': torch.rand(2, 3, 8, 8), 'labels': ['cat', 'dog']}\n"
    )
    settings = SubjectSettings(model=f"hf:{tmp_path / 'vit'}", data=f"{factory}:pictures")
    records = open_subject(settings).records
    assert (records.classes, records.labels.tolist()) == (("dog", "cat"), [1, 0])


def test_the_ends_of_an_answer_are_two_labels(tmp_path: Path) -> None:
    _, _, inputs, labels = HEADS["BertForQuestionAnswering"]
    items = [
        {**{name: part[k] for name, part in inputs.items()}, "labels": [start, end]}
        for k, (start, end) in enumerate(labels.tolist())
    ]  # fmt: skip
    records = records_of(items, "data")
    assert torch.equal(records.labels, labels)
    assert not records.attributes
    saved(tmp_path, "BertForQuestionAnswering")
    subject = open_subject(SubjectSettings(model=f"hf:{tmp_path}"), records=items)
    assert task_accuracy(subject.target, subject.records).metric == "accuracy"


def ctc(outputs: Any, labels: Tensor) -> Tensor:
    """The library's loss of a whole wave, by torch's own."""
    log_probabilities = outputs.logits.log_softmax(-1).transpose(0, 1)
    lengths = (labels >= 0).sum(1)
    frames = torch.full_like(lengths, len(log_probabilities))
    losses = F.ctc_loss(log_probabilities, labels.clamp(min=0), frames, lengths, reduction="none")
    return losses / lengths


def test_a_head_of_letters_takes_a_loss_of_your_own(tmp_path: Path) -> None:
    transformers = library("transformers")
    given = {**HEADS["Wav2Vec2ForSequenceClassification"][1], "vocab_size": 7, "pad_token_id": 0}
    config = transformers.Wav2Vec2Config(**given, ctc_loss_reduction="mean")
    model = transformers.Wav2Vec2ForCTC(config).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"\(Wav2Vec2ForCTC\); .*its loss by --loss FILE\.py:NAME"):
        load_model(f"hf:{tmp_path}")
    waves, letters = torch.randn(3, 200), torch.tensor([[1, 2, 3], [4, 4, -100], [5, -100, -100]])
    data = {"inputs": waves, "labels": letters}
    loss = CustomLoss(ctc, "loss.py:ctc")
    subject = open_subject(SubjectSettings(device="cpu"), model=model, records=data, loss=loss)
    assert task_accuracy(subject.target, subject.records).metric == "none"
    functional = FunctionalModel.of(subject.target, dtype=torch.float32)
    found = torch.func.grad(functional.batch_loss)(
        functional.parameters, functional.cast(waves), letters
    )
    plain = model(waves, labels=letters).loss
    weights = [model.get_parameter(name) for name in found]
    slopes = torch.autograd.grad(plain, weights, allow_unused=True, materialize_grads=True)
    for slope, name in zip(slopes, found, strict=True):
        torch.testing.assert_close(found[name], slope, rtol=1e-4, atol=1e-6)


def test_sounds_of_a_folder_reach_a_model_of_waves_in_its_order(tmp_path: Path) -> None:
    names = {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}}
    model = saved(tmp_path / "model", "Wav2Vec2ForSequenceClassification", **names)
    for name in ("no", "yes"):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        with wave.open(str(tmp_path / "sounds" / name / "0.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(bytes(range(0, 200, 2)) * 4)
    settings = SubjectSettings(
        model=f"hf:{tmp_path / 'model'}", data=f"sounds:{tmp_path / 'sounds'}?rate=16000"
    )
    subject = open_subject(settings)
    records = subject.records
    assert (records.classes, records.labels.tolist()) == (("yes", "no"), [1, 0])
    functional = FunctionalModel.of(subject.target, dtype=torch.float32)
    with torch.no_grad():
        found = functional.outputs({}, functional.cast(records.inputs))
        torch.testing.assert_close(found, model(input_values=records.inputs).logits)


def test_a_head_without_a_known_loss_is_told_what_to_write(tmp_path: Path) -> None:
    saved(tmp_path, "BertForTokenClassification")
    config = tmp_path / "config.json"
    for known, other in (("bert", "Bert"), ("swin2sr", "Swin2SR")):
        config.write_text(f'{{"model_type": "{known}", "architectures": ["{other}ForNothing"]}}')
        with pytest.raises(UsageError, match=r"--model FILE\.py:factory") as caught:
            load_model(f"hf:{tmp_path}")
        assert "none of which" not in str(caught.value)
        assert ("?task=" in str(caught.value)) == (known == "bert")


def test_texts_of_a_file_are_refused_where_the_model_takes_others(tmp_path: Path) -> None:
    saved(tmp_path, "BertForTokenClassification")
    tokenizer_in(tmp_path, ends=True)
    data = f"text:{table_in(tmp_path / 'texts.csv', 6)}?text=text"
    with pytest.raises(UsageError, match="its arguments by name from a function"):
        open_subject(SubjectSettings(model=f"hf:{tmp_path}", data=data))
