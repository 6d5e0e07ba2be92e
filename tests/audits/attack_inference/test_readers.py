"""Several rounds and readers of one update: their posterior by hand, by simulation, and pooled."""

from dataclasses import replace

import numpy as np
import pytest
from audits.attack_inference.people import people
from scipy.special import log_expit, log_softmax
from scipy.stats import norm

from gradaudit.audits.attack_inference.game import AttributeGame
from gradaudit.audits.attack_inference.readers import (
    Guesses,
    Temperature,
    calibrated,
    combine,
    independent,
    log_prior,
    pooled,
    shares_of,
)
from gradaudit.audits.attack_inference.split import Design, GameSplit, no_batches
from gradaudit.audits.vinfo.v_information import macro_auroc
from gradaudit.core.randomness import sequence
from gradaudit.families import log_loss

DESIGN = Design(batch_size=4, shadow=160, batches=200, trials=400, prior="uniform")


@pytest.fixture(scope="module")
def of() -> GameSplit:
    """The batches that are read."""
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


def test_held_out_batches_count_as_many_as_share_no_record(of: GameSplit) -> None:
    assert independent(of) == len(set(of.held.indices.reshape(-1).tolist())) / 4


def test_readers_that_see_apart_are_better_together_than_the_best(of: GameSplit) -> None:
    several = [reader(of, 1.0, seed, f"layer {seed}") for seed in range(4)]
    found = pooled(several, of)
    assert area(found, of) > max(area(each, of) for each in several) + 0.05
    assert sum(found.reads.values()) == pytest.approx(1)
    np.testing.assert_allclose(np.exp(found.posterior).sum(axis=1), 1)


def test_a_reader_of_nothing_takes_little_from_one_that_reads(of: GameSplit) -> None:
    good, blind = reader(of, 3.0, 0, "good"), [reader(of, 0.0, seed, "blind") for seed in (1, 2)]
    found = pooled([good, *blind], of)
    assert found.reads["good"] > 0.9
    assert area(found, of) > area(good, of) - 0.01


def test_without_batches_held_out_all_count_alike(of: GameSplit) -> None:
    bare = replace(of, held=no_batches(of.size))
    several = [reader(bare, 1.0, seed, f"layer {seed}") for seed in range(2)]
    found = pooled(several, bare)
    assert found.temperature is None
    assert found.reads == {"layer 0": 0.5, "layer 1": 0.5}
    mean = (np.exp(several[0].posterior) + np.exp(several[1].posterior)) / 2
    np.testing.assert_allclose(np.exp(found.posterior), mean)


def test_what_is_read_says_nothing_of_the_private_batches(of: GameSplit) -> None:
    """Weights come from held-out batches alone: other private batches get the same ones."""
    several = [reader(of, strength, 3, f"layer {strength}") for strength in (0.5, 1.5)]
    turned = [replace(each, posterior=each.posterior[::-1]) for each in several]
    assert pooled(several, of).reads == pooled(turned, of).reads


def balanced(signal: np.ndarray, shift: float) -> np.ndarray:
    """Exact log-posterior under a uniform prior of N(±shift, 1): (…,) to (…, 2)."""
    return np.stack([log_expit(-2 * shift * signal), log_expit(2 * shift * signal)], axis=-1)


def test_two_rounds_by_hand_however_they_are_normalised() -> None:
    rounds = np.log([[[0.6, 0.4]], [[0.7, 0.3]]])
    weights = np.array([0.6 * 0.7 * 0.2, 0.4 * 0.3 * 0.8])
    for moved in (rounds, rounds + 3.0):
        np.testing.assert_allclose(np.exp(combine(moved, [0.2, 0.8]))[0], weights / weights.sum())
    said = np.log([[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]])
    np.testing.assert_allclose(combine(said, [1, 1, 1]), said[0])


def test_exact_rounds_give_the_exact_posterior() -> None:
    generator = np.random.default_rng(0)
    signals, prior = generator.normal(size=(4, 50)), np.array([0.9, 0.1])
    found = combine(balanced(signals, 0.7), prior)
    likelihood = np.stack(
        [norm.logpdf(signals, loc=loc).sum(axis=0) for loc in (-0.7, 0.7)], axis=1
    )
    expected = np.exp(likelihood) * prior
    np.testing.assert_allclose(np.exp(found), expected / expected.sum(axis=1, keepdims=True))


def test_the_papers_equation_fails_on_balanced_training_and_a_skewed_prior() -> None:
    """On a prior of 90 to 10, weak evidence and several rounds: right nine times, or one in ten."""
    generator = np.random.default_rng(1)
    prior, shift, rounds = np.array([0.9, 0.1]), 0.25, 5
    secrets = (generator.random(20_000) < prior[1]).astype(np.int64)
    signals = generator.normal(size=(rounds, len(secrets))) + shift * (2 * secrets - 1)
    answers = balanced(signals, shift)
    ours = combine(answers, prior).argmax(axis=1)
    papers = (answers.sum(axis=0) - (rounds - 1) * np.log(prior)).argmax(axis=1)
    total = (
        rounds * shift
    )  # Σ signals is N(±total, rounds); Bayes' rule guesses 1 above a threshold
    threshold = np.log(9) / (2 * shift)
    exact = 0.9 * norm.cdf((threshold + total) / rounds**0.5) + 0.1 * norm.sf(
        (threshold - total) / rounds**0.5
    )
    assert (ours == secrets).mean() == pytest.approx(exact, abs=0.006)
    assert exact == pytest.approx(0.91, abs=0.01)
    assert (papers == secrets).mean() < 0.12


def test_side_knowledge_counts_once() -> None:
    """Two rounds that say nothing beyond what φ says leave what φ says, as one round does."""
    alone, prior = np.log([[0.8, 0.2], [0.3, 0.7]]), np.array([0.25, 0.75])
    wanted = combine([alone], prior)
    np.testing.assert_allclose(np.exp(wanted)[0], np.array([0.2, 0.15]) / 0.35)
    np.testing.assert_allclose(combine([alone, alone], prior, shared=True), wanted)


@pytest.mark.parametrize("prior", [[0.5, 0.0], [], [0.5, np.nan], [-1.0, 2.0]])
def test_an_impossible_prior_is_refused(prior: list[float]) -> None:
    with pytest.raises(ValueError, match="prior"):
        log_prior(prior)


def test_copies_of_one_round_are_recalibrated() -> None:
    """Eight rounds that are one and the same are eight times too sure: so is the temperature."""
    generator = np.random.default_rng(2)
    secrets = generator.integers(0, 2, 20_000)
    said = balanced(generator.normal(size=len(secrets)) + 0.8 * (2 * secrets - 1), 0.8)
    prior = np.array([0.5, 0.5])
    eight = combine([said] * 8, prior)
    fitted = Temperature.fitted(eight[:10_000], secrets[:10_000], prior)
    assert fitted.value == pytest.approx(8, rel=0.1)
    rest = eight[10_000:], secrets[10_000:]
    assert log_loss(rest[0], rest[1]) > log_loss(said[10_000:], rest[1]) + 0.3
    assert log_loss(fitted.applied(rest[0]), rest[1]) == pytest.approx(
        log_loss(said[10_000:], rest[1]), abs=0.01
    )


def test_recalibration_keeps_the_ranking_and_the_prior() -> None:
    generator = np.random.default_rng(3)
    evidence, prior = generator.normal(size=100), np.array([0.9, 0.1])
    posterior = combine([balanced(evidence, 1.0)], prior)
    cooled = Temperature(5.0, prior).applied(posterior)
    assert (np.argsort(cooled[:, 1]) == np.argsort(posterior[:, 1])).all()
    np.testing.assert_allclose(np.exp(cooled).sum(axis=1), 1)
    frozen = Temperature(1e9, prior).applied(posterior)
    np.testing.assert_allclose(np.exp(frozen), np.tile(prior, (100, 1)), atol=1e-6)


def test_faultless_held_out_batches_do_not_make_it_surer() -> None:
    secrets = np.array([0, 1, 0, 1])
    said = balanced(np.array([-1.0, 1.0, -2.0, 2.0]), 1.0)
    assert Temperature.fitted(said, secrets, [0.5, 0.5]).value == pytest.approx(1, abs=1e-3)


def test_log_loss_by_hand() -> None:
    said = np.log([[0.25, 0.75], [0.5, 0.5]])
    assert log_loss(said, np.array([1, 0])) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2)
