"""The watched peak of small computations whose memory is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from gradaudit.gradients.memory import ColumnRange, column_blocks, device_memory, passes, peak_bytes

KILO = 4 * 250  # bytes of 250 floats


def test_what_is_freed_on_the_way_is_not_counted_twice():
    assert peak_bytes(lambda: torch.ones(250).add(1).mul(2).sub(3)) == 2 * KILO


def test_what_is_held_is_counted():
    def hold():
        first = torch.ones(250)
        second = first + 1
        return first, second, second + 1

    assert peak_bytes(hold) == 3 * KILO


def test_what_was_there_before_and_its_views_are_not_counted():
    before = torch.ones(10_000)
    assert peak_bytes(lambda: before[:250].view(25, 10)) == 0
    assert peak_bytes(lambda: before[:250] + 1) == KILO
    assert peak_bytes(lambda: before.mul_(2)) == 0


def test_what_a_backward_pass_saves_is_counted():
    weight = torch.ones(250, requires_grad=True)

    def backward():
        return torch.autograd.grad(weight.exp().exp().sum(), weight)

    assert peak_bytes(backward) >= 3 * KILO


def test_batches_under_vmap_are_counted():
    def batch(records: int) -> int:
        double = torch.func.vmap(torch.func.grad(lambda x: (x.exp() * 2).sum()))
        return peak_bytes(lambda: double(torch.ones(records, 250)))

    assert batch(8) - batch(4) == 4 * (batch(5) - batch(4)) >= 4 * 2 * KILO


WIDTHS = {"a": 3, "b": 10, "c": 1}
RECORDS = 7


class Stream:
    """Values of three layers in chunks of two or three records, counting runs."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.values = {
            name: torch.rand(RECORDS, width, generator=generator) for name, width in WIDTHS.items()
        }
        self.asked: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        self.asked.append(list(names))
        for rows in (slice(0, 3), slice(3, 5), slice(5, 7)):
            yield {name: self.values[name][rows] for name in names}


@pytest.mark.parametrize(
    ("elements", "runs"),
    [(100, [["a", "b", "c"]]), (13, [["a", "b"], ["c"]]), (5, [["a", "b"], ["b"], ["b", "c"]])],
)
def test_all_columns_in_order(elements: int, runs: list[list[str]]) -> None:
    stream = Stream()
    found: dict[str, list[np.ndarray]] = {}
    for piece, block in column_blocks(stream, WIDTHS, RECORDS, 8 * RECORDS * elements):
        assert block.shape == (RECORDS, piece.width)
        assert sum(part.shape[1] for part in found.get(piece.layer, [])) == piece.start
        found.setdefault(piece.layer, []).append(block)
    assert list(found) == list(WIDTHS)
    for name, parts in found.items():
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), stream.values[name].double())
    assert stream.asked == runs


def test_less_memory_than_one_column_needs_still_goes_on() -> None:
    blocks = list(column_blocks(Stream(), {"a": 3}, RECORDS, 1))
    assert [block.shape for _, block in blocks] == [(RECORDS, 1)] * 3


def test_columns_of_different_cost() -> None:
    found = list(passes({"a": 4, "b": 2}, 10, {"a": 3, "b": 20}))
    assert found == [
        [ColumnRange("a", 0, 3)],
        [ColumnRange("a", 3, 4)],
        [ColumnRange("b", 0, 1)],
        [ColumnRange("b", 1, 2)],
    ]


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "reserved", "memory", "wanted"),
    [
        (80, 0, 1, 10),
        (80, 0, 2, 20),
        (10, 0, 1, 5),
        (4, 6, 1, 5),
        (80, 0, 8, 40),
        (10, 0, 4, 5),
    ],
    ids=[
        "an eighth",
        "twice that",
        "half of what is free",
        "of torch's",
        "at most",
        "at most that",
    ],
)
def test_a_chunk_on_a_gpu_is_at_most_half_of_what_is_free(
    free, reserved, memory, wanted, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: (reserved + 1) * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: GIB)
    assert device_memory(torch.device("cuda"), memory * GIB) == wanted * GIB
    assert device_memory(torch.device("cpu"), memory * GIB) == memory * GIB
