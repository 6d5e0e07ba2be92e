"""Attacks on texts where the batch is too long, or the tokens have a name of their own."""

from dataclasses import replace

import pytest
import torch
from audits.attack_text.sentences import subject, transformer
from subjects import subject_of
from torch import nn

from gradaudit.audits.attack_text import AttackText, TextOptions
from gradaudit.audits.attack_text.text_threat import texts_of
from gradaudit.audits.attack_text.view import packed_inputs
from gradaudit.data.common.packing import InputPart
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject


def answer(width: int, *, hidden: tuple[str, ...] = (), batch: int = 3) -> Measurement:
    at = subject()
    target = Target(transformer(width=width), CrossEntropy())
    layers = tuple(layer for layer in target.layers if layer.name not in hidden)
    options = TextOptions(batches=1, batch_size=batch, decoys=2)
    rows = AttackText(options).run(Subject((target,), at.records, layers), Silent())
    return next(row for row in rows if row.metric == "tokens_recovered")


@pytest.mark.slow
def test_tokens_that_fill_the_width_are_remarked_on_with_what_lifts_it() -> None:
    remark = str(answer(16).details["remark"])
    assert "18 tokens fill the 16 dimensions" in remark
    assert "--batch-size 1 or less or length=2 or less in --data would lift it" in remark
    without = str(answer(16, hidden=("words",)).details["remark"])
    assert "the embedding (words.weight), which is left out" in without
    assert "remark" not in answer(16, batch=1).details
    assert "remark" not in answer(96).details


def records(**inputs: torch.Tensor) -> Records:
    return records_of({"inputs": inputs, "labels": torch.tensor([0, 1])}, "data")


def test_tokens_of_another_name_are_found_by_what_they_are() -> None:
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    texts = texts_of(records(words=ids, pad_mask=mask, segment_types=torch.zeros_like(ids)))
    assert (texts.ids.tolist(), texts.lengths.tolist()) == (ids.tolist(), [3, 2])
    parts = InputPart("words", (3,), "tokens"), InputPart("pad_mask", (3,), "tokens")
    packed = packed_inputs(parts, ids, torch.tensor([3, 2]))
    assert packed.tolist() == torch.cat([ids, mask], dim=1).tolist()


def test_inputs_that_may_all_be_tokens_are_named() -> None:
    ids = torch.tensor([[5, 6], [8, 9]])
    with pytest.raises(NotApplicable, match=r"inputs question, answer .* call these input_ids"):
        texts_of(records(question=ids, answer=ids))


class Reader(nn.Module):
    """The model by another name of its argument."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, words: torch.Tensor, pad_mask: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.inside(words)
        return scores


@pytest.mark.slow
def test_texts_come_back_from_a_model_whose_tokens_have_another_name() -> None:
    at = subject()
    ids = at.records.inputs
    parts = tuple(InputPart(name, ids.shape[1:], "tokens") for name in ("words", "pad_mask"))
    inputs = torch.cat([ids, torch.ones_like(ids)], dim=1)
    named = replace(at.records, inputs=inputs, parts=parts)
    target = Target(Reader(transformer()), CrossEntropy(), parts=parts)
    options = TextOptions(batches=1, batch_size=2, decoys=2)
    rows = AttackText(options).run(subject_of(target, named), Silent())
    assert next(row.value for row in rows if row.metric == "sequences_recovered") == 1


def test_lengths_beside_the_tokens_are_named() -> None:
    ids, lengths = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2])
    with pytest.raises(NotApplicable, match="inputs of another shape than the tokens: lengths;"):
        texts_of(records(input_ids=ids, lengths=lengths))
