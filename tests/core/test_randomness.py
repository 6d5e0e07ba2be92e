"""Streams by name: equal for equal words, independent for others."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from gradaudit.core.randomness import number, rng, sequence, torch_rng

NAMES = [("a",), ("b",), ("a", "b"), ("ab",), ("a", 1), ("a", "1"), (1,), (1, 2), (12,)]


def test_equal_words_give_equal_numbers() -> None:
    assert np.array_equal(rng(3, "split", 1).random(5), rng(3, "split", 1).random(5))
    first, second = (torch.rand(5, generator=torch_rng(3, "noise")) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations(NAMES, 2)))
def test_other_words_give_other_numbers(
    left: tuple[str | int, ...], right: tuple[str | int, ...]
) -> None:
    assert number(0, *left) != number(0, *right)


def test_other_seeds_give_other_numbers() -> None:
    assert len({number(seed, "split") for seed in range(100)}) == 100


def test_words_of_a_child_follow_its_own() -> None:
    child = sequence(5, "vinfo")
    assert number(child, "split") == number(sequence(5, "vinfo"), "split")
    assert number(child, "split") != number(5, "split")
    assert number(child, "split") != number(sequence(6, "vinfo"), "split")


def test_streams_of_neighbouring_words_are_uncorrelated() -> None:
    draws = np.array([rng(0, "trial", i).normal(size=2000) for i in range(20)])
    pairs = np.corrcoef(draws)[np.triu_indices(20, 1)]
    assert stats.kstest(pairs * np.sqrt(2000), "norm").pvalue > 1e-3


def test_a_stream_without_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="word"):
        sequence(0)


def test_the_numbers_stay_what_they_are() -> None:
    """Reports name a seed: the same version and seed must give the same numbers anywhere."""
    assert number(0, "split") == 5993902723239720666
