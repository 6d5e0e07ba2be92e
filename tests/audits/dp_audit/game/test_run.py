"""From a subject to a game: who plays, what is known without trials, what is told and kept."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from dp_subject import (
    Release,
    deaf,
    from_file,
    hypotheses,
    sensitivity,
    subject,
    table,
)

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult
from gradaudit.audits.dp_audit.game.run import Game, pair_epsilon, play_on
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import UsageError
from gradaudit.progress import Advance
from gradaudit.subject import Subject

DELTA = 1e-5
RULES = Rules(200, DELTA)
OPTIONS = DpAuditOptions(restarts=3, iterations=6)
NOISY = ClippedNoise(clip=0.5, sigma=0.3)


class Told:
    """What was opened, and how far it came."""

    def __init__(self) -> None:
        self.tasks: dict[str, tuple[int, list[int]]] = {}

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        self.tasks[description] = total, []
        yield self.tasks[description][1].append


def played(
    mechanism: Mechanism = NOISY,
    about: Subject | None = None,
    rules: Rules = RULES,
    **options: object,
) -> tuple[Game, Told]:
    told = Told()
    about = replace(about or subject("race"), samples=20)
    found = play_on(about, "race", mechanism, OPTIONS.model_copy(update=options), rules, told)
    return found, told


def test_a_game_is_of_the_canary_that_plays() -> None:
    game, told = played(companions=2)
    canary, gradients = game.canaries.played, sensitivity("race").gradients
    assert canary is game.canaries.by_kind["crafted"]
    variants = sensitivity("race").column.variants(canary.inputs[None])[0]
    expected = gradients(variants, canary.label.expand(3))
    batch = game.hypotheses
    torch.testing.assert_close(batch.null, expected[canary.null])
    torch.testing.assert_close(batch.alternatives, expected[canary.alternative][None])
    assert (batch.records, batch.elements) == (3, 114)
    moved = NOISY.noiseless(batch.alternatives, batch.companions) - NOISY.noiseless(
        batch.null, batch.companions
    )
    assert float(moved.norm()) == pytest.approx(canary.gap)
    assert game.pair == pytest.approx(epsilon_gaussian(canary.gap / 0.1, DELTA))
    assert game.gaps_from == "the noiseless release"
    assert isinstance(game.result, TrialsResult)
    assert game.score is game.result.scores["projection"]
    assert game.epsilon_lower == game.score.bound.value
    assert {name: (total, sum(units)) for name, (total, units) in told.tasks.items()} == {
        "canaries for race": (6, 6),
        "releases": (400, 400),
    }


def test_a_mixture_draws_from_all_other_values() -> None:
    found, _ = played(replacement="uniform", restarts=0, record="7")
    column, record = sensitivity("race").column, table().inputs[7:8].double()
    gradients = sensitivity("race").gradients(column.variants(record)[0], table().labels[[7] * 3])
    held = found.canaries.played.null
    others = [value for value in range(3) if value != held]
    torch.testing.assert_close(found.hypotheses.null, gradients[held])
    torch.testing.assert_close(found.hypotheses.alternatives, gradients[others])


def test_the_statistic_that_is_asked_for_is_the_score() -> None:
    game, _ = played(rules=replace(RULES, statistic="distance"), restarts=0, record="random")
    assert isinstance(game.result, TrialsResult)
    assert game.score is game.result.scores["distance"]
    dependent = replace(game, result=replace(game.result, dependent=True))
    assert dependent.score is None
    assert dependent.epsilon_lower is None


@pytest.mark.parametrize("function", [deaf, lambda gradients, generator: 0 * gradients[0] + 1])
def test_a_pair_with_equal_releases_can_test_no_claim(function: Release) -> None:
    """Whether noise is added to them or not, they say nothing of any other pair."""
    game, _ = played(from_file(function), restarts=0, record="random")
    assert game.canaries.played.gap == 0
    assert game.untestable == "releases with common noise are the same with either value"
    assert game.epsilon_lower is None


def test_a_law_that_hides_the_pair_can_test_no_claim_and_any_other_can() -> None:
    game, _ = played(restarts=0, record="random")
    assert (game.untestable, game.epsilon_lower is None) == ("", False)
    hidden = replace(game, result=DegenerateVerdict("it is the same with either value", 0.0))
    assert (hidden.untestable, hidden.epsilon_lower) == ("it is the same with either value", None)
    certain = replace(game, result=DegenerateVerdict("the mechanism adds no noise", math.inf))
    assert (certain.untestable, certain.epsilon_lower) == ("", math.inf)
    assert game.score is not None
    none = replace(game.score, bound=game.score.bound._replace(value=0.0))
    assert isinstance(game.result, TrialsResult)
    silent = replace(game, result=replace(game.result, scores={"projection": none}))
    assert (silent.untestable, silent.epsilon_lower) == ("", 0.0), "a gap that the trials missed"


def test_what_is_promised_is_for_the_batch_of_the_game_and_a_verdict_needs_no_trials() -> None:
    quiet = ClippedNoise(clip=0.5, sigma=0, per="record")
    game, told = played(quiet, restarts=0, record="1", companions=3)
    assert isinstance(game.result, DegenerateVerdict)
    assert game.score is None
    assert game.epsilon_lower == game.pair == math.inf
    assert list(told.tasks) == ["canaries for race"]
    noisy = replace(game, mechanism=ClippedNoise(clip=0.5, sigma=0.3, per="record"))
    promise, replaced = noisy.promise("remove"), noisy.promise()
    assert promise == noisy.mechanism.promise("remove", 4, 114, DELTA)
    assert promise is not None
    assert replaced is not None
    assert promise.mu == pytest.approx(0.5 / (0.3 * 2))
    assert replaced.mu == pytest.approx(2 * promise.mu)


def test_what_cannot_be_played_is_told_before_anything_is_computed() -> None:
    laplace = ClippedNoise(clip=1, sigma=1, noise="laplace", per="record")
    with pytest.raises(UsageError, match="--companions 0"):
        played(laplace, companions=1)
    with pytest.raises(UsageError, match="exact: dp:clip"):
        played(ClippedNoise(clip=1, sigma=1, noise="laplace"), rules=replace(RULES, mode="exact"))
    with pytest.raises(UsageError, match="the last of 60 records is 59"):
        played(record="60")


LAPLACE = ClippedNoise(clip=50, sigma=1.0, noise="laplace")


@pytest.mark.parametrize(
    ("mechanism", "pair", "epsilon"),
    [
        (from_file(deaf), hypotheses(0.0), 0),
        (from_file(deaf), hypotheses(1.0), None),
        (ClippedNoise(clip=1, sigma=0), hypotheses(1.0), math.inf),
        (
            ClippedNoise(clip=5, sigma=0.5),
            hypotheses(1.0, companions=3),
            epsilon_gaussian(2.0, DELTA),
        ),
        (
            ClippedNoise(clip=5, sigma=1),
            hypotheses(0.4, values=3),
            epsilon_gaussian(1.2, DELTA),
        ),
        (
            LAPLACE,
            hypotheses(1.0),
            float((hypotheses(1.0).alternatives[0] - hypotheses(1.0).null).abs().sum()),
        ),
    ],
)
def test_the_pairs_own_epsilon_is_that_of_its_law_the_largest_of_a_mixture(
    mechanism: Mechanism, pair: Hypotheses, epsilon: float | None
) -> None:
    found = pair_epsilon(mechanism, pair, DELTA)
    assert found == (None if epsilon is None else pytest.approx(epsilon))
