from functools import cache

import numpy as np
import pytest
import torch
from dp_subject import clip, deaf, from_file, hypotheses
from scipy.stats import binom, ks_2samp
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.game.play import GAUSSIAN_TRIALS, Rules, TrialsResult, play
from gradaudit.audits.dp_audit.game.run import pair_epsilon
from gradaudit.audits.dp_audit.law.decision import best_decision
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.dp_audit.mechanisms import FileMechanism, Mechanism, load_mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.core.randomness import Seed, Word, sequence
from gradaudit.errors import UsageError

DELTA = 1e-5


def game(mechanism: Mechanism, seed: int = 0, trials: int = 1000, **more: object) -> TrialsResult:
    gap = more.pop("gap", 1.0)
    played = hypotheses(gap, **{k: more.pop(k) for k in ("companions", "values") if k in more})
    rules = Rules(trials, DELTA, **more)
    return play(mechanism, played, rules, seed)


def gaussian_file(sigma: float, bound: float = 1.0) -> FileMechanism:
    """The same as dp:clip=…,sigma=…, as a user would write it."""

    def mechanism(gradients: Tensor, generator: Generator) -> Tensor:
        return releases(gradients, 1, generator)[0]

    def releases(gradients: Tensor, count: int, generator: Generator) -> Tensor:
        noise = sigma * torch.randn(count, gradients.shape[1], generator=generator)
        return (clip(gradients, bound).sum(0) + noise) / len(gradients)

    mechanism.releases = releases
    return from_file(mechanism, "gaussian")


@pytest.mark.parametrize("more", [{}, {"values": 3}, {"companions": 2}], ids=str)
def test_both_modes_follow_one_law(more: dict[str, int]) -> None:
    mechanism, modes = ClippedNoise(clip=5, sigma=0.4), ("implementation", "exact")
    real, exact = (game(mechanism, 1, trials=4000, mode=mode, **more) for mode in modes)
    for name, score in real.scores.items():
        other = exact.scores[name]
        assert ks_2samp(score.null, other.null).pvalue > 1e-3, name
        assert ks_2samp(score.alternative, other.alternative).pvalue > 1e-3, name
        assert score.bound.thresholds == other.bound.thresholds


def test_trials_repeat_by_seed() -> None:
    for mechanism in (ClippedNoise(clip=1, sigma=1), gaussian_file(1.0)):
        first, again, other = (game(mechanism, seed) for seed in (1, 1, 2))
        for name, score in first.scores.items():
            np.testing.assert_array_equal(score.null, again.scores[name].null)
            np.testing.assert_array_equal(score.alternative, again.scores[name].alternative)
            assert not np.array_equal(score.null[:9], other.scores[name].null[:9])


def test_hypotheses_share_no_noise() -> None:
    score = game(ClippedNoise(clip=5, sigma=1)).scores["projection"]
    pairs = zip(score.null, score.alternative, strict=False)
    assert abs(np.corrcoef(list(pairs), rowvar=False)[0, 1]) < 0.1


@pytest.mark.parametrize(
    "mechanism",
    [ClippedNoise(clip=1, sigma=1, noise="laplace"), gaussian_file(1.0)],
    ids=["laplace", "file"],
)
def test_without_a_gaussian_law_there_is_no_exact_mode(mechanism: Mechanism) -> None:
    with pytest.raises(UsageError, match="--mode implementation"):
        game(mechanism, mode="exact")


def test_a_threshold_comes_from_the_law_or_from_pilots() -> None:
    known = game(ClippedNoise(clip=1, sigma=1))
    assert (known.decided_by, known.pilots) == ("law", 0)
    laplace = game(ClippedNoise(clip=1, sigma=1, noise="laplace"))
    assert (laplace.decided_by, laplace.pilots) == ("pilot", 250)
    file = game(gaussian_file(1.0))
    assert (file.decided_by, file.pilots) == ("pilot", 500)


def test_opacus_is_tested_with_pilots() -> None:
    pytest.importorskip("opacus")
    outcome = game(load_mechanism("opacus:clip=5,sigma=0.5"), companions=1, trials=400)
    assert (outcome.decided_by, outcome.pilots) == ("pilot", 100)
    assert 0.5 < outcome.scores["projection"].bound.value < epsilon_gaussian(2, DELTA)


def test_the_threshold_does_not_see_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, played, results = gaussian_file(1.0), hypotheses(1.0), []
    for other in range(3):

        def only_the_trials_differ(seed: Seed, *words: Word, other: int = other) -> Seed:
            return sequence(seed, *words, *[other] * (words == ("trials",)))

        monkeypatch.setattr("gradaudit.audits.dp_audit.game.play.sequence", only_the_trials_differ)
        results.append(play(mechanism, played, Rules(400, DELTA), 0).scores["projection"])
    assert len({score.bound.thresholds for score in results}) == 1
    assert len({tuple(score.null[:9]) for score in results}) == 3


def test_a_null_mechanism_is_not_accused() -> None:
    """Of 20 games at most 5 by chance; a bound that errs half the time fails in 49 of 50 runs."""

    def batched(gradients: Tensor, generator: Generator) -> Tensor:
        return deaf(gradients, generator)

    batched.releases = lambda gradients, count, generator: deaf(
        gradients.new_zeros(1, count * 40), generator
    ).view(count, 40)
    games = [game(from_file(batched, "gaussian"), seed) for seed in range(20)]
    for name in ("projection", "distance"):
        accused = sum(outcome.scores[name].bound.value > 0 for outcome in games)
        assert accused <= binom.ppf(0.999, 20, 0.05)
    assert sum(outcome.gaussian.mu > 0 for outcome in games) <= binom.ppf(0.999, 20, 0.05)
    assert np.mean([outcome.scores["projection"].point.value for outcome in games]) > 0.5


@pytest.fixture
def _decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a law decides has seen no trial, and is the same for every game."""
    monkeypatch.setattr("gradaudit.audits.dp_audit.game.play.best_decision", cache(best_decision))


@pytest.mark.usefixtures("_decided_once")
def test_the_pairs_own_epsilon_is_rarely_exceeded() -> None:
    mechanism, played = ClippedNoise(clip=5, sigma=1 / 0.3), hypotheses(1.0)
    truth = pair_epsilon(mechanism, played, DELTA)
    assert truth == pytest.approx(epsilon_gaussian(0.3, DELTA))
    rules = Rules(2000, DELTA, mode="exact")
    games = [play(mechanism, played, rules, i) for i in range(200)]
    allowed = binom.ppf(0.999, 200, 0.05)
    assert sum(outcome.scores["projection"].bound.value > truth for outcome in games) <= allowed
    accused = sum(outcome.gaussian.epsilon > truth for outcome in games)
    assert 0 < accused <= allowed


@pytest.mark.usefixtures("_decided_once")
@pytest.mark.parametrize(("mu", "at_least"), [(6.4, 6.9), (3.0, 5.4)])
def test_power_of_the_bound_from_the_law(mu: float, at_least: float) -> None:
    mechanism = ClippedNoise(clip=50, sigma=1 / mu)
    bounds = [
        game(mechanism, seed, trials=5000, mode="exact").scores["projection"].bound.value
        for seed in range(5)
    ]
    assert np.mean(bounds) >= at_least


@pytest.mark.parametrize(("mu", "at_least"), [(6.4, 6.2), (3.0, 4.9)])
def test_power_of_the_bound_from_pilots(mu: float, at_least: float) -> None:
    mechanism = gaussian_file(1 / mu, 50)
    outcomes = [game(mechanism, seed, trials=5000) for seed in range(2)]
    assert np.mean([o.scores["projection"].bound.value for o in outcomes]) >= at_least


def test_laplace_is_bounded_by_its_pair() -> None:
    mechanism, played = ClippedNoise(clip=50, sigma=1.0, noise="laplace"), hypotheses(1.0)
    truth = pair_epsilon(mechanism, played, DELTA)
    games = [game(mechanism, seed) for seed in range(10)]
    found = [each.scores["projection"].bound.value for each in games]
    assert sum(bound > truth for bound in found) <= binom.ppf(0.999, 10, 0.05)
    assert np.mean(found) > 0.2 * truth
    assert not any(each.gaussian or each.dependent for each in games), "known to be independent"


def test_the_gaussian_bound_is_for_pairs_declared_gaussian() -> None:
    noisy, declared = ClippedNoise(clip=5, sigma=1), gaussian_file(1.0)
    assert game(noisy).gaussian is not None
    assert game(declared).gaussian is not None
    assert game(noisy, values=2).gaussian is None
    assert game(from_file(declared.function)).gaussian is None
    assert game(noisy, trials=GAUSSIAN_TRIALS - 1).gaussian is None


def test_more_comparisons_lower_the_bound_and_the_ceiling() -> None:
    mechanism = ClippedNoise(clip=5, sigma=0.2)
    one, four = (game(mechanism, comparisons=count) for count in (1, 4))
    assert four.scores["projection"].bound.ceiling < one.scores["projection"].bound.ceiling
    assert four.gaussian.mu < one.gaussian.mu


def test_the_statistic_that_is_asked_for_has_most_of_the_error_probability() -> None:
    rules = Rules(1000, DELTA, comparisons=5, statistic="distance")
    assert rules.alpha_of("distance") == pytest.approx(0.009)
    assert rules.alpha_of("projection") == pytest.approx(0.001)
    asked, other = (
        game(ClippedNoise(clip=5, sigma=0.2), statistic=name).scores["projection"].bound
        for name in ("projection", "distance")
    )
    assert asked.value > other.value
    assert asked.ceiling == Rules(1000, DELTA).ceiling > other.ceiling


class Carried:
    """Noise that is carried on, over a release that tells nothing of the gradient."""

    def __init__(self, coefficient: float) -> None:
        self.coefficient, self.last = coefficient, torch.zeros(40)

    def __call__(self, gradients: Tensor, generator: Generator) -> Tensor:
        self.last = self.coefficient * self.last + torch.randn(40, generator=generator)
        return self.last


@pytest.mark.parametrize(("coefficient", "dependent"), [(0.0, False), (0.5, True), (1.0, True)])
def test_releases_that_depend_on_each_other_are_found_and_prove_nothing(
    coefficient: float, dependent: bool
) -> None:
    outcome = game(from_file(Carried(coefficient)), trials=400)
    assert outcome.dependent is dependent
    assert outcome.scores["projection"].bound.value == 0


def test_too_few_trials_are_refused_and_a_quarter_rounded_up_are_pilots() -> None:
    assert [Rules(trials, DELTA).pilots for trials in (100, 5000, 5001)] == [25, 1250, 1251]
    with pytest.raises(UsageError, match="--trials 99: too few; give at least 100"):
        Rules(99, DELTA)
