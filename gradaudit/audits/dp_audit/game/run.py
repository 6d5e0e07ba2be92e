"""Plays a subject's game: chooses its column, batch and record, then decides or plays trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.canary import (
    POOL,
    STAGES,
    CanaryPairs,
    Pair,
    choose_canary,
    expect_record,
)
from gradaudit.audits.dp_audit.game.client_updates import choose_updates, layout_of
from gradaudit.audits.dp_audit.game.domain import Domain, PrivateColumn
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, shifts
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict, verdict_without_trials
from gradaudit.audits.dp_audit.game.play import (
    Rules,
    StatisticResult,
    TrialsResult,
    expect_law,
    play,
)
from gradaudit.audits.dp_audit.game.sensitivity import RecordGradients, RecordSensitivity
from gradaudit.audits.dp_audit.law.theory import Relation
from gradaudit.audits.dp_audit.mechanisms import Mechanism, Promise
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.array_changes import (
    ArrayChange,
    array_changes_by_format,
    verdict_of_untouched,
)
from gradaudit.audits.dp_audit.middleware.payload import LENGTHS, LONG, simulated
from gradaudit.core.randomness import Seed, sequence
from gradaudit.progress import Progress
from gradaudit.subject import Subject


@dataclass(frozen=True)
class Game:
    """A game that was played, or decided without trials.

    ``result`` is a verdict that needed no trials, or what the trials said, and ``gaps_from`` says
    how gaps were measured. ``names`` are what neighbours hold, in words: values of the attribute,
    which is None where clients play or a record is removed, or updates. ``array_changes`` say what
    becomes of each array of a client's update.
    """

    options: DpAuditOptions
    rules: Rules
    mechanism: Mechanism
    attribute: str | None
    names: tuple[str, ...]
    canaries: CanaryPairs[Pair]
    hypotheses: Hypotheses
    gaps_from: str
    result: DegenerateVerdict | TrialsResult
    array_changes: Sequence[ArrayChange] = ()

    @property
    def pair(self) -> float | None:
        """The exact epsilon of the pair, the largest of a mixture's; None without a known law."""
        verdict = self.result if isinstance(self.result, DegenerateVerdict) else None
        return pair_epsilon(self.mechanism, self.hypotheses, self.rules.delta, verdict)

    @property
    def score(self) -> StatisticResult | None:
        """The requested statistic's result; None without trials, or for dependent trials."""
        if isinstance(self.result, DegenerateVerdict) or self.result.dependent:
            return None
        return self.result.scores[self.rules.statistic]

    @property
    def untestable(self) -> str:
        """Say why the pair cannot test a claim; empty where it can.

        Both values give the same release: certainly, or under the same randomness, and the trials
        show no difference either.
        """
        if isinstance(self.result, DegenerateVerdict):
            return "" if self.result.epsilon else self.result.reason
        if self.canaries.played.gap or self.score is None or self.score.bound.value:
            return ""
        return f"{self.gaps_from} are the same with either value"

    @property
    def epsilon_lower(self) -> float | None:
        """The lower bound on epsilon, or the verdict's epsilon; None without a bound."""
        if self.untestable:
            return None
        if isinstance(self.result, DegenerateVerdict):
            return self.result.epsilon
        return self.score.bound.value if self.score is not None else None

    def promise(self, relation: Relation | None = None) -> Promise | None:
        """The mechanism's privacy guarantee for such a batch; None where none is known.

        The relation is the game's own where none is asked for.
        """
        batch, relation = self.hypotheses, relation or self.options.relation
        return self.mechanism.promise(relation, batch.records, batch.elements, self.rules.delta)


def play_on(
    subject: Subject,
    attribute: str,
    mechanism: Mechanism,
    options: DpAuditOptions,
    rules: Rules,
    progress: Progress,
) -> Game:
    """Play the game of one attribute, or of a record's presence, on the subject's newest target.

    Raises:
        NotApplicable: the attribute is no input column, or records have no gradients of their own.
        UsageError: an option is wrong for these records or this mechanism.
        AuditError: the model or a mechanism from a file fails.
    """
    records = subject.records
    expect_law(mechanism, 1 + options.companions, rules.mode)
    expect_record(options, len(records))
    removed = options.relation == "remove"
    column = PrivateColumn.of_presence() if removed else PrivateColumn.of(records, attribute)
    seed = sequence(subject.seed, "dp-audit", attribute)
    gradients = RecordGradients.of(subject.target, records.inputs, records.labels, subject.hidden)
    mechanism = mechanism.expecting(1 + options.companions)
    sensitivity = RecordSensitivity.of(
        gradients, records, column, mechanism, options, rules.memory, sequence(seed, "batch")
    )
    domain = Domain.of(records, column, options.domain)
    # foreign code may carry a state from one release to the next
    workers = 1 if mechanism.foreign else subject.workers
    pool, drawn = subject.samples or POOL, sequence(seed, "canary")
    with progress.task(f"canaries for {attribute}", STAGES * options.restarts) as advance:
        canaries = choose_canary(
            sensitivity, domain, records, options, drawn, advance, workers, pool=pool
        )
    names, null, others = column.names, canaries.played.null, [canaries.played.alternative]
    if options.replacement == "uniform":
        others = [i for i in range(len(column)) if i != null]
    variants = column.variants(canaries.played.inputs[None])[0, [null, *others]]
    with torch.no_grad():
        label = canaries.played.label
        values = gradients(variants, label.expand(len(variants), *label.shape))
    alternatives = torch.zeros_like(values[1:]) if removed else values[1:]
    hypotheses = Hypotheses(values[0], alternatives, sensitivity.companions, removed=removed)
    verdict = verdict_without_trials(mechanism, hypotheses)
    return Game(
        options,
        rules,
        mechanism,
        None if removed else attribute,
        names,
        canaries,
        hypotheses,
        gaps_from=sensitivity.measured_by,
        result=verdict or _trials(mechanism, hypotheses, rules, seed, workers, progress),
    )


def play_between_clients(
    subject: Subject,
    mechanism: Middleware,
    options: DpAuditOptions,
    rules: Rules,
    progress: Progress,
) -> Game:
    """Play the game of two opposite updates, or of one and none, to the newest target's arrays.

    Raises:
        UsageError: an option is wrong for this mechanism, or nothing is sent.
        AuditError: the middleware fails.
    """
    expect_law(mechanism, 1, rules.mode)
    seed = sequence(subject.seed, "dp-audit", "clients")
    mechanism = mechanism.receiving(layout_of(subject, options.unsent))
    canaries, updates, names, measured_by = choose_updates(mechanism, options.relation, seed)
    null, other = updates[[canaries.played.null, canaries.played.alternative]]
    hypotheses = Hypotheses(null, other[None], null[None][:0])
    update = simulated(mechanism.layout, seed) * LENGTHS[LONG]
    update[mechanism.layout.where(mechanism.layout.counters)] = 1.0
    looked = array_changes_by_format(mechanism, update, sequence(seed, "fates"))
    verdict = verdict_of_untouched(mechanism, hypotheses, looked)
    verdict = verdict or verdict_without_trials(mechanism, hypotheses)
    return Game(
        options,
        rules,
        mechanism,
        None,
        names,
        canaries,
        hypotheses,
        gaps_from=measured_by,
        result=verdict or _trials(mechanism, hypotheses, rules, seed, 1, progress),
        array_changes=looked,
    )


def _trials(
    mechanism: Mechanism,
    hypotheses: Hypotheses,
    rules: Rules,
    seed: Seed,
    workers: int,
    progress: Progress,
) -> TrialsResult:
    with progress.task("releases", 2 * rules.trials) as advance:
        return play(mechanism, hypotheses, rules, sequence(seed, "game"), advance, workers)


def pair_epsilon(
    mechanism: Mechanism,
    hypotheses: Hypotheses,
    delta: float,
    verdict: DegenerateVerdict | None = None,
) -> float | None:
    """Exact epsilon of the pair, the largest of a mixture's; None where the law is not known.

    At δ for Gaussian noise, and at 0 for Laplace noise; by a verdict where no law is known.
    """
    if hypotheses.indistinguishable:
        return 0.0
    law = None if hypotheses.removed else mechanism.law(hypotheses.records)
    if law is None:
        return None if verdict is None else verdict.epsilon
    return law.epsilon(shifts(law, hypotheses), delta)
