"""Several readers of one update, pooled by how well they read batches held out."""

from dataclasses import replace

import numpy as np
import pytest
from audits.attack_inference.people import people
from scipy.special import log_softmax

from gradaudit.audits.attack_inference.game import AttributeGame
from gradaudit.audits.attack_inference.readers import (
    Guesses,
    calibrated,
    independent,
    pooled,
    shares_of,
)
from gradaudit.audits.attack_inference.split import Design, GameSplit, no_batches
from gradaudit.audits.vinfo.v_information import macro_auroc
from gradaudit.core.randomness import sequence

DESIGN = Design(batch_size=4, shadow=160, batches=200, trials=400, prior="uniform")


def split() -> GameSplit:
    return AttributeGame("sex").split(people(), DESIGN, sequence(0, "readers"))


def reader(of: GameSplit, strength: float, seed: int, name: str = "a") -> Guesses:
    """One that sees the truth with Gaussian noise: evidence of so many standard deviations."""
    generator = np.random.default_rng(seed)

    def said(labels: np.ndarray) -> np.ndarray:
        seen = strength * (labels - 0.5) + generator.normal(size=len(labels))
        return log_softmax(np.stack([0 * seen, strength * seen], axis=1), axis=1)

    posterior, held = said(of.observed.labels), said(of.held.labels)
    return calibrated(posterior, (posterior,), held, of, (name,), {name: 1.0})


def area(guesses: Guesses, of: GameSplit) -> float:
    return macro_auroc(guesses.posterior, of.observed.labels)


def test_weights_are_those_of_equal_readers_before_the_losses() -> None:
    np.testing.assert_allclose(shares_of([0.3, 0.5], 10), [1, np.exp(-2)] / (1 + np.exp(-2)))
    np.testing.assert_array_equal(shares_of([0.1, 0.9], 100), [1, 0])
    np.testing.assert_allclose(shares_of([np.inf] * 4, 0), 0.25)


def test_held_out_batches_count_as_many_as_share_no_record() -> None:
    of = split()
    assert independent(of) == len(set(of.held.indices.reshape(-1).tolist())) / 4


def test_a_single_reader_stays_as_it_is() -> None:
    of = split()
    alone = reader(of, 1.0, 0)
    found = pooled([alone], of)
    np.testing.assert_array_equal(found.posterior, alone.posterior)
    assert found.reads == {"a": 1.0}


def test_readers_that_see_apart_are_better_together_than_the_best() -> None:
    of = split()
    several = [reader(of, 1.0, seed, f"layer {seed}") for seed in range(4)]
    found = pooled(several, of)
    assert area(found, of) > max(area(each, of) for each in several) + 0.05
    assert sum(found.reads.values()) == pytest.approx(1)
    np.testing.assert_allclose(np.exp(found.posterior).sum(axis=1), 1)


def test_a_reader_of_nothing_takes_little_from_one_that_reads() -> None:
    of = split()
    good, blind = reader(of, 3.0, 0, "good"), [reader(of, 0.0, seed, "blind") for seed in (1, 2)]
    found = pooled([good, *blind], of)
    assert found.reads["good"] > 0.9
    assert area(found, of) > area(good, of) - 0.01


def test_without_batches_held_out_all_count_alike() -> None:
    of = split()
    bare = replace(of, held=no_batches(of.size))
    several = [reader(bare, 1.0, seed, f"layer {seed}") for seed in range(2)]
    found = pooled(several, bare)
    assert found.temperature is None
    assert found.reads == {"layer 0": 0.5, "layer 1": 0.5}
    mean = (np.exp(several[0].posterior) + np.exp(several[1].posterior)) / 2
    np.testing.assert_allclose(np.exp(found.posterior), mean)


def test_what_is_read_says_nothing_of_the_private_batches() -> None:
    """Weights come from held-out batches alone: other private batches get the same ones."""
    of = split()
    several = [reader(of, strength, 3, f"layer {strength}") for strength in (0.5, 1.5)]
    turned = [replace(each, posterior=each.posterior[::-1]) for each in several]
    assert pooled(several, of).reads == pooled(turned, of).reads
