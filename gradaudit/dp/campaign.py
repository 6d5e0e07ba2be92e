"""From a subject to a played game: column, batch, record, verdict or trials."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gradaudit.dp.attribute import PrivateColumn
from gradaudit.dp.board import Board, shifts
from gradaudit.dp.canaries import STAGES
from gradaudit.dp.contest import Contest, expect_record, hold_contest
from gradaudit.dp.domain import Domain
from gradaudit.dp.game import Outcome, Rules, play
from gradaudit.dp.gradients import RecordGradients
from gradaudit.dp.landscape import Canary, Landscape
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.survey import Setup, survey
from gradaudit.dp.theory import epsilon_gaussian, epsilon_laplace
from gradaudit.dp.trials import Statistic
from gradaudit.dp.verdicts import Verdict, verdict_without_trials
from gradaudit.errors import UsageError
from gradaudit.models.target import Subject
from gradaudit.progress import Progress


@dataclass(frozen=True)
class Game:
    """A game that was played, or decided without trials.

    Attributes:
        column: the private column.
        contest: the records and their gaps.
        board: the gradients.
        result: a verdict that needed no trials, or the outcome of the trials.
        pair: exact epsilon of the pair (the largest of a mixture's), None where no law is known.
        gaps_from: how gaps were measured.
        rules: that it was played by.
    """

    column: PrivateColumn
    contest: Contest
    board: Board
    result: Verdict | Outcome
    pair: float | None
    gaps_from: str
    rules: Rules

    def epsilon_lower(self, statistic: Statistic) -> float | None:
        """The bound of a statistic, or the verdict; None where the releases gave no bound."""
        if isinstance(self.result, Verdict):
            return self.result.epsilon
        return None if self.result.dependent else self.result.scores[statistic].bound.value


def play_on(
    subject: Subject,
    attribute: str,
    mechanism: Mechanism,
    setup: Setup,
    rules: Rules,
    progress: Progress,
) -> Game:
    """Play the game of one attribute on the subject's newest target.

    Raises:
        NotApplicable: the attribute is no input column, or records have no gradients of their own.
        UsageError: an option is wrong for these records or this mechanism.
        AuditError: the model or a mechanism from a file fails.
    """
    _expect_a_law(mechanism, setup.companions, rules)
    expect_record(setup.record, len(subject.records), setup.effort)
    column = PrivateColumn.of(subject.records, attribute)
    seed = np.random.SeedSequence([subject.seed, *attribute.encode()])
    of_survey, of_contest, of_verdict, of_game = seed.spawn(4)
    records = subject.records
    gradients = RecordGradients.of(subject.target, records.inputs, records.labels, subject.hidden)
    mechanism = mechanism.laid_out(gradients.sizes)
    landscape, gaps_from = survey(
        gradients, records, column, mechanism, setup, rules.memory, of_survey
    )
    domain = Domain.of(subject.records, column, setup.domain)
    with progress.task(f"canaries for {attribute}", STAGES * setup.effort.restarts) as advance:
        contest = hold_contest(
            landscape, domain, subject.records, setup.record, setup.effort, of_contest, advance
        )
    board = _board(landscape, contest.played, mixture=setup.mixture)
    result = _decide(mechanism, board, rules, (of_verdict, of_game), progress)
    pair = pair_epsilon(mechanism, board, rules.delta)
    if pair is None and isinstance(result, Verdict):
        pair = result.epsilon
    return Game(column, contest, board, result, pair, gaps_from, rules)


def pair_epsilon(mechanism: Mechanism, board: Board, delta: float) -> float | None:
    """Exact epsilon of the pair, the largest of a mixture's; None where the law is not known.

    At δ for Gaussian noise, and at 0 for Laplace noise, whose ‖g1 − g0‖₁/b is little more.
    """
    if board.indistinguishable:
        return 0.0
    if not isinstance(mechanism, AdditiveMechanism):
        return None
    moved, scale = shifts(mechanism, board), mechanism.scale(board.records)
    if mechanism.noise == "laplace":
        return epsilon_laplace(float(moved.abs().sum(dim=1).max()), scale)
    largest = float(torch.linalg.vector_norm(moved, dim=1).max())
    if scale == 0:
        return math.inf if largest else 0.0
    return epsilon_gaussian(largest / scale, delta)


def _board(landscape: Landscape, played: Canary, *, mixture: bool) -> Board:
    values = len(landscape.column)
    others = [i for i in range(values) if i != played.null] if mixture else [played.alternative]
    variants = landscape.column.variants(played.inputs[None])[0, [played.null, *others]]
    with torch.no_grad():
        found = landscape.gradients(
            variants, played.label.expand(len(variants), *played.label.shape)
        )
    return Board(found[0], found[1:], landscape.companions)


def _decide(
    mechanism: Mechanism,
    board: Board,
    rules: Rules,
    seeds: tuple[np.random.SeedSequence, np.random.SeedSequence],
    progress: Progress,
) -> Verdict | Outcome:
    verdict = verdict_without_trials(mechanism, board, seeds[0])
    if verdict is not None:
        return verdict
    with progress.task("releases", 2 * rules.trials) as advance:
        return play(mechanism, board, rules, seeds[1], advance)


def _expect_a_law(mechanism: Mechanism, companions: int, rules: Rules) -> None:
    """Refuse what needs a law that is not known, before the work."""
    law = (mechanism.noise, mechanism.per) if isinstance(mechanism, AdditiveMechanism) else None
    if law == ("laplace", "record") and companions:
        raise UsageError(
            f"--mechanism {mechanism.description}: the mean of several records' Laplace noise has "
            "no simple law; use per=sum, or --companions 0"
        )
    if rules.mode == "exact" and (law is None or law[0] != "gaussian"):
        raise UsageError(
            f"--mode exact: {mechanism.description} is not known to add Gaussian noise; "
            "use --mode implementation"
        )
