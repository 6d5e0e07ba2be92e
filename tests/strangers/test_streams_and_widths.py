"""Streams that are long or have no end, and records of different widths."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from gradaudit.data.common import user_data
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError


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
    monkeypatch.setattr(user_data, "STREAMED", 10)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("batch", [0, 4])
def test_the_first_records_of_a_stream_are_taken(batch: int) -> None:
    stream = Numbers()
    records = records_of(DataLoader(stream, batch) if batch else stream, "f")
    taken = 12 if batch else 10  # whole batches
    assert records.inputs[:, 0].tolist() == list(range(taken))
    assert records.notes["first_records"] == taken
    assert stream.made <= taken + max(batch, 1)


@pytest.mark.usefixtures("few")
def test_what_ends_before_is_taken_whole() -> None:
    records = records_of(Numbers(10), "f")
    assert len(records) == 10
    assert "first_records" not in records.notes
    assert len(records_of([(torch.ones(2), k % 2) for k in range(12)], "f")) == 12


def of_widths(*widths: int) -> Records:
    ids = [{"input_ids": torch.ones(w, dtype=torch.int64), "label": w % 2} for w in widths]
    return records_of(ids, "f")


def test_different_widths_are_refused_with_the_remedy() -> None:
    assert len(of_widths(3, 3, 3)) == 3
    with pytest.raises(DataError, match=r"item 1 is of shape \(2,\) .* padding='max_length'"):
        of_widths(3, 2)
