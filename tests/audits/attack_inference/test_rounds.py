"""Posteriors of several rounds, by hand and by simulation."""

import numpy as np
import pytest
from scipy.special import log_expit
from scipy.stats import norm

from gradaudit.audits.attack_inference.readers import Temperature, combine, log_prior, pool
from gradaudit.families import log_loss


def balanced(signal: np.ndarray, shift: float) -> np.ndarray:
    """Exact log-posterior under a uniform prior of N(±shift, 1): (…,) to (…, 2)."""
    return np.stack([log_expit(-2 * shift * signal), log_expit(2 * shift * signal)], axis=-1)


def test_two_rounds_by_hand() -> None:
    rounds = np.log([[[0.6, 0.4]], [[0.7, 0.3]]])
    found = np.exp(combine(rounds, [0.5, 0.5], [0.2, 0.8]))
    weights = np.array([0.6 * 0.7 * 0.2, 0.4 * 0.3 * 0.8])
    np.testing.assert_allclose(found[0], weights / weights.sum())


def test_what_a_round_was_trained_under_comes_off_it() -> None:
    skewed = np.array([0.3, 0.7])
    rounds = np.log([[[0.6, 0.4]], [[0.7, 0.3]]])
    found = np.exp(combine(rounds, skewed, skewed))
    weights = np.array([0.6 * 0.7 / 0.3, 0.4 * 0.3 / 0.7])  # equation 4: both priors are the same
    np.testing.assert_allclose(found[0], weights / weights.sum())


def test_a_single_round_under_its_own_prior_is_left_alone() -> None:
    said = np.log([[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]])
    np.testing.assert_allclose(combine(said, [1, 1, 1], [1, 1, 1]), said[0])


def test_unnormalised_answers_give_the_same() -> None:
    rounds = np.log([[[0.6, 0.4]], [[0.7, 0.3]]])
    np.testing.assert_allclose(
        combine(rounds + 3.0, [0.5, 0.5], [0.2, 0.8]), combine(rounds, [0.5, 0.5], [0.2, 0.8])
    )


def test_exact_rounds_give_the_exact_posterior() -> None:
    generator = np.random.default_rng(0)
    signals, prior = generator.normal(size=(4, 50)), np.array([0.9, 0.1])
    found = combine(balanced(signals, 0.7), [0.5, 0.5], prior)
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
    ours = combine(answers, [0.5, 0.5], prior).argmax(axis=1)
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
    """Two rounds that say nothing beyond what φ says leave what φ says."""
    alone = np.log([[0.8, 0.2], [0.3, 0.7]])
    prior = np.array([0.25, 0.75])
    wanted = np.exp(alone) * prior
    wanted /= wanted.sum(axis=1, keepdims=True)
    found = pool(np.stack([alone, alone]), [0.5, 0.5], prior)
    np.testing.assert_allclose(np.exp(found), wanted)


def test_a_pool_of_one_is_the_round() -> None:
    said = np.log([[[0.2, 0.8], [0.6, 0.4]]])
    np.testing.assert_allclose(
        pool(said, [0.5, 0.5], [0.9, 0.1]), combine(said, [0.5, 0.5], [0.9, 0.1])
    )


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
    eight = combine(np.stack([said] * 8), prior, prior)
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
    posterior = combine(balanced(evidence, 1.0)[None], [0.5, 0.5], prior)
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
