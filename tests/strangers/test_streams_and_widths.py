"""Streams that are long or have no end, and batches that are each padded to a width of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from language_models import SENTENCES, tokenizer_in
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gradaudit.config import SubjectSettings
from gradaudit.core.huggingface import library
from gradaudit.data import load_records
from gradaudit.data.common import items
from gradaudit.data.common.items import ItemLayout
from gradaudit.data.common.packing import arguments
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.run.opening import open_subject


class Numbers(IterableDataset[Any]):
    """Records 0, 1, 2, …, of which it knows how many were made."""

    def __init__(self, end: int | None = None) -> None:
        self.end, self.made = end, 0

    def __iter__(self) -> Iterator[Any]:
        while self.end is None or self.made < self.end:
            self.made += 1
            yield torch.full((2,), float(self.made - 1)), self.made % 2


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "STREAMED", 10)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("batch", [0, 4])
def test_the_first_records_of_a_stream_are_taken(batch: int) -> None:
    stream = Numbers()
    records = records_of(DataLoader(stream, batch) if batch else stream, "f")
    assert records.inputs[:, 0].tolist() == list(range(10))
    assert records.notes["first_records"] == 10
    assert stream.made <= 10 + max(batch, 1)


@pytest.mark.usefixtures("few")
def test_what_ends_before_is_taken_whole() -> None:
    records = records_of(Numbers(10), "f")
    assert len(records) == 10
    assert "first_records" not in records.notes
    assert len(records_of([(torch.ones(2), k % 2) for k in range(12)], "f")) == 12


def test_a_stream_stays_within_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "STREAMED_BYTES", 1000)
    records = records_of(Numbers(), "f")
    assert records.notes["first_records"] == len(records) == 126  # of 8 bytes each
    monkeypatch.setattr(items, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="limit it"):
        records_of(Numbers(), "f", ItemLayout(records=2000))


def test_a_generator_is_a_stream_and_how_many_is_an_option(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import itertools, torch\n"
        "def endless(): return ((torch.full((2,), float(k)), k % 2) for k in itertools.count())\n"
        "def listed(): return [(torch.ones(2), k % 2) for k in range(9)]\n"
    )
    records = load_records(f"{file}:endless?records=7")
    assert records.inputs[:, 0].tolist() == list(range(7))
    assert records.notes["first_records"] == 7
    assert len(load_records(f"{file}:listed?records=4")) == 4


TEXTS = [{"text": text, "label": index % 2} for index, text in enumerate(SENTENCES)]


def collated(tokenizer: Any, side: str = "right", labels: bool = False) -> DataLoader[Any]:
    """Batches of two texts, each padded to the longer of the two."""
    tokenizer.padding_side = side
    encoded = [{**tokenizer(row["text"]), "labels": row["label"]} for row in TEXTS]
    for one in encoded if labels else ():
        one["labels"] = [token % 3 for token in one["input_ids"]]
    kind = "DataCollatorForTokenClassification" if labels else "DataCollatorWithPadding"
    return DataLoader(encoded, 2, collate_fn=getattr(library("transformers"), kind)(tokenizer))


class Reader(nn.Module):
    """The mean of the embeddings that a mask leaves, in a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(64, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        kept = attention_mask.unsqueeze(2).to(self.words.weight.dtype)
        mean = (self.words(input_ids) * kept).sum(1) / kept.sum(1)
        scores: Tensor = self.head(mean.tanh())
        return scores


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_padded_to_the_widest_with_their_mask(tmp_path: Path, side: str) -> None:
    tokenizer = tokenizer_in(tmp_path, ends=True)
    subject = open_subject(
        SubjectSettings(device="cpu"), model=Reader(), records=collated(tokenizer, side)
    )
    records = subject.records
    _, given = arguments(records.parts, records.inputs)
    whole = tokenizer([row["text"] for row in TEXTS], padding=True, return_tensors="pt")
    assert torch.equal(given["input_ids"], whole["input_ids"])
    assert torch.equal(given["attention_mask"], whole["attention_mask"])
    assert records.notes["padded_to"] == whole["input_ids"].shape[1]
    model = subject.target.model.double()
    chunks = per_sample_gradients(
        subject.target, records.inputs, records.labels, subject.layers, dtype=torch.float64
    )
    found = torch.cat([torch.cat([*chunk.values()], dim=1) for chunk in chunks])
    for index, row in enumerate(TEXTS):
        alone = {k: torch.tensor([v]) for k, v in tokenizer(row["text"]).items()}
        loss = F.cross_entropy(model(**alone), torch.tensor([row["label"]]))
        slopes = torch.autograd.grad(loss, [layer.weight for layer in model.children()])  # type: ignore[misc]
        expected = torch.cat([slope.flatten() for slope in slopes])
        torch.testing.assert_close(found[index], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_labels_of_tokens_are_padded_by_what_counts_nothing(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path, ends=True)
    records = records_of(collated(tokenizer, labels=True), "f")
    longest = max(len(tokenizer(row["text"])["input_ids"]) for row in TEXTS)
    assert records.labels.shape == (len(TEXTS), longest)
    for row, labels in zip(TEXTS, records.labels.tolist(), strict=True):
        expected = [token % 3 for token in tokenizer(row["text"])["input_ids"]]
        assert labels == expected + [-100] * (longest - len(expected))


def wide(width: int, **others: Tensor) -> dict[str, Any]:
    return {"x": torch.ones(width, 3), **others, "label": width % 2}


def test_features_of_several_numbers_a_position_are_padded_too() -> None:
    masks = {width: torch.ones(width, dtype=torch.bool) for width in (3, 2)}
    records = records_of([wide(width, pad_mask=mask) for width, mask in masks.items()], "f")
    _, given = arguments(records.parts, records.inputs)
    assert given["x"].shape == (2, 3, 3)
    assert given["x"].sum(dim=(1, 2)).tolist() == [9, 6]
    assert given["pad_mask"].tolist() == [[True] * 3, [True, True, False]]


def refused(*widths: int) -> Records:
    ids = [{"input_ids": torch.ones(w, dtype=torch.int64), "label": w % 2} for w in widths]
    return records_of(ids, "f")


def test_widths_without_a_mask_are_refused_with_the_remedy() -> None:
    assert len(refused(3, 3, 3)) == 3
    with pytest.raises(DataError, match=r"input 1 is of shape \(2,\) .* or give an attention_mask"):
        refused(3, 2)
