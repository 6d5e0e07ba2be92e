"""From a subject to a played game: column, batch, record, verdict or trials."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradaudit.dp.attribute import PrivateColumn
from gradaudit.dp.board import Board, shifts
from gradaudit.dp.canaries import STAGES
from gradaudit.dp.contest import Contest, Effort, expect_record, hold_contest
from gradaudit.dp.domain import Domain, DomainName
from gradaudit.dp.game import Outcome, Rules, play
from gradaudit.dp.gradients import RecordGradients
from gradaudit.dp.landscape import (
    Canary,
    Distance,
    Landscape,
    Mean,
    cosine_distance,
    squared_gap,
)
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.pilots import CommonNoise
from gradaudit.dp.theory import epsilon_gaussian, epsilon_laplace
from gradaudit.dp.trials import Statistic
from gradaudit.dp.verdicts import Verdict, verdict_without_trials
from gradaudit.errors import UsageError
from gradaudit.loading.records import Records
from gradaudit.progress import Progress
from gradaudit.target import Subject


@dataclass(frozen=True)
class Setup:
    """What is asked of a game, besides its rules.

    Attributes:
        record: random, crafted or an index.
        domain: what a crafted record may look like.
        mixture: whether the alternative draws from all other values (definition 7.2), or is the
            one that moves the release most.
        companions: other records in the batch.
        clip: Δ that a mechanism from a file is declared to clip to, for crafting.
        effort: how hard crafting tries.
    """

    record: str = "crafted"
    domain: DomainName = "feasible"
    mixture: bool = False
    companions: int = 0
    clip: float | None = None
    effort: Effort = field(default_factory=Effort)


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
    """

    column: PrivateColumn
    contest: Contest
    board: Board
    result: Verdict | Outcome
    pair: float | None
    gaps_from: str

    def epsilon_lower(self, statistic: Statistic) -> float:
        """The bound of a statistic, or the verdict."""
        if isinstance(self.result, Verdict):
            return self.result.epsilon
        return self.result.scores[statistic].bound.value


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
    landscape, gaps_from = _survey(
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
    return Game(column, contest, board, result, pair, gaps_from)


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


def _survey(
    gradients: RecordGradients,
    records: Records,
    column: PrivateColumn,
    mechanism: Mechanism,
    setup: Setup,
    memory: int,
    seed: np.random.SeedSequence,
) -> tuple[Landscape, str]:
    """What the gaps of records depend on, and how they are measured, in words."""
    of_batch, of_common = seed.spawn(2)
    companions = _companions(records, gradients, setup.companions, of_batch)
    first = gradients(records.inputs[:1].flatten(1), records.labels[:1])
    batch = torch.cat([first, companions])
    judge, gaps_from = _judge(mechanism, setup.clip, batch, of_common)
    distances = _distances(judge, setup.clip, batch, companions)
    return Landscape(gradients, column, judge, distances, companions, memory), gaps_from


def _companions(
    records: Records, gradients: RecordGradients, count: int, seed: np.random.SeedSequence
) -> Tensor:
    """Gradients (count, elements) of the rest of the batch, drawn without replacement."""
    if count >= len(records):
        raise UsageError(
            f"--companions {count}: there are {len(records)} records in all; give at most "
            f"{len(records) - 1}"
        )
    chosen = np.random.default_rng(seed).permutation(len(records))[:count]
    if not count:
        return torch.zeros(0, gradients.elements, dtype=torch.float64, device=gradients.device)
    with torch.no_grad():
        return gradients(records.inputs[chosen].flatten(1), records.labels[chosen])


def _judge(
    mechanism: Mechanism, clip: float | None, batch: Tensor, seed: np.random.SeedSequence
) -> tuple[Mean, str]:
    """What gaps are measured by, also in words."""
    if isinstance(mechanism, AdditiveMechanism):
        return mechanism.mean_of, "the noiseless release"
    common = CommonNoise(mechanism, seed)
    if common.repeats(batch):
        words = "the release" if mechanism.deterministic else "releases with common noise"
        return common, words
    words = "the declared clip" if clip else "gradients that nothing clips"
    return _clipped_mean(clip), words


def _distances(
    judge: Mean, clip: float | None, batch: Tensor, companions: Tensor
) -> tuple[Distance, ...]:
    """What crafting maximises: the gap itself, where it can be differentiated.

    Else guesses stand for it: a mechanism from a file may clip as declared, not at all, or to a
    bound nobody knows, for which the cosine stands.
    """
    if not isinstance(judge, CommonNoise):
        return squared_gap(judge, companions), cosine_distance
    guess = judge if judge.differentiable(batch) else _clipped_mean(clip)
    unclipped = squared_gap(_clipped_mean(None), companions)
    return squared_gap(guess, companions), unclipped, cosine_distance


def _clipped_mean(clip: float | None) -> Mean:
    return ClippedNoise(clip=clip or math.inf, sigma=0).mean_of


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
