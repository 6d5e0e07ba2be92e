"""The signs of a malicious model against what can be counted by hand."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from gradaudit.audits.attack_malicious_server.check import (
    bins,
    concentration,
    moves,
    starved,
    times_farther,
    traps,
)
from gradaudit.audits.attack_malicious_server.measure import dominated, record_shares


def longest_by_trying(active: Tensor, rows: Tensor) -> int:
    """The longest chain of rows alike with growing sets, over all orders of all subsets."""
    sets = [frozenset(column.nonzero().flatten().tolist()) for column in active.T]
    kept = [k for k, s in enumerate(sets) if 0.1 <= len(s) / len(active) <= 0.9]
    best = 0
    for size in range(1, len(kept) + 1):
        for chain in itertools.permutations(kept, size):
            pairs = list(itertools.pairwise(chain))
            alike = all(torch.cosine_similarity(rows[a], rows[b], dim=0) >= 0.9 for a, b in pairs)
            if alike and all(sets[a] < sets[b] for a, b in pairs):
                best = size
    return best


@pytest.mark.parametrize("seed", range(8))
def test_bins_are_the_longest_chain_of_rows_alike(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    ranks = torch.randint(1, 6, (6,), generator=draws)
    active = torch.arange(6)[:, None] < ranks  # nested, some alike
    active ^= torch.rand(6, 6, generator=draws) < 0.1
    rows = torch.ones(6, 5) + torch.randn(6, 5, generator=draws) * 0.4
    assert bins(active, rows) == longest_by_trying(active, rows)


def test_rows_of_few_inputs_tell_nothing_of_bins() -> None:
    active = torch.arange(10)[:, None] < torch.arange(10)
    assert bins(active, torch.ones(10, 3)) is None
    assert bins(active, torch.ones(10, 4)) == 9
    assert bins(torch.ones(10, 3, dtype=torch.bool), torch.ones(3, 4)) == 0


def test_traps_are_counted_among_rows_that_something_turns_on() -> None:
    active = torch.zeros(40, 5, dtype=torch.bool)
    active[:2, 0] = active[:3, 1] = active[:40, 2] = active[:1, 3] = True
    assert traps(active) == 2 / 4
    assert traps(active[:, 4:]) is None


def test_starved_are_records_without_gain_that_the_loss_asks_something_of() -> None:
    residuals = torch.tensor([1.0, 1e-9, 0.0, 2.0, 1.0], dtype=torch.float64)
    gains = torch.tensor([3.0, 2.0, 0.0, 0.0, 1e-9], dtype=torch.float64)
    assert starved(gains * residuals, residuals) == 2 / 4
    assert starved(torch.zeros(5), residuals) is None
    assert starved(torch.ones(5), torch.zeros(5)) is None


@pytest.mark.parametrize(
    ("squares", "value"),
    [
        ([1.0, 1.0, 1.0], 0.0),
        ([4.0, 0.0, 0.0], 1.0),
        ([1.0, 1.0, 0.0, 0.0], 2 / 3),
        ([3.0, 1.0], 0.4),
    ],
)
def test_concentration_has_a_closed_form(squares: list[float], value: float) -> None:
    """Half of the rows with all: n = C/2; squares 3 and 1: n = 16/10."""
    weight = torch.tensor(squares).sqrt()[:, None] * torch.tensor([[0.6, 0.8]])
    assert concentration(weight) == pytest.approx(value, abs=1e-6)
    assert concentration(weight[:1]) is None


def test_moves_are_relative_and_compared_with_other_layers_and_rounds() -> None:
    start = {"a.weight": torch.ones(4), "a.bias": torch.zeros(2), "b.weight": torch.full((4,), 2.0)}
    first = {**start, "a.weight": start["a.weight"] * 1.5}
    last = {
        "a.weight": first["a.weight"] * 2,
        "a.bias": torch.zeros(2),
        "b.weight": start["b.weight"] * 1.1,
    }
    assert moves(start, first) == {"a": 0.5, "b": 0.0}
    assert times_farther([first, last])["a"] == pytest.approx(1 / 0.1)
    assert times_farther([first, last])["b"] == pytest.approx(0.1)
    assert times_farther([start, first, last])["a"] == pytest.approx(1 / 0.5)
    assert times_farther([{"a.weight": torch.ones(1)}, {"a.weight": torch.ones(1) * 3}]) == {}
    assert moves({"a.weight": torch.zeros(2)}, {"a.weight": torch.ones(2)}) == {"a": 1.0}


def test_shares_are_of_whole_batches_and_rows() -> None:
    norms = torch.tensor([1.0, 3.0, 0.0, 5.0, 0.0, 0.0, 7.0])
    shares = record_shares(norms, 2)
    assert shares[:2].tolist() == [0.75, 1.0]
    assert math.isnan(shares[2])
    rows = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, 0.0]])
    assert dominated(rows, 2) == 1 / 2
    assert dominated(rows * 0, 2) is None
