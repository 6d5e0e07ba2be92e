"""Studies one mechanism: trains with every setting, and attacks the updates."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from gradaudit.accuracy import TaskAccuracy, task_accuracy
from gradaudit.attacks.reconstruction.campaign import Choice, chosen_batches
from gradaudit.audits.tradeoff import TradeoffOptions
from gradaudit.audits.tradeoff.attacking import (
    Attack,
    AttackScores,
    FloatArray,
    attacked,
    has_secret,
)
from gradaudit.audits.tradeoff.mechanisms import DefenseGrid, DefenseSetting
from gradaudit.core.randomness import number as seed_of
from gradaudit.data.records import Records
from gradaudit.defenses import Defense
from gradaudit.defenses.defense_chain import Chain
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.executors.workers import shared_out
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.partition import split
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Target, shared_parameters
from gradaudit.progress import Advance, Progress
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject, defended_target


@dataclass(frozen=True)
class AttackedModel:
    """The model whose updates are attacked, with the attack's options.

    Attributes:
        batch_size: records behind an update.
        weights: ``initial``, of the model before its training, or ``trained``.
        insider: whether the attacker knows what clients keep private in the model.
    """

    batch_size: int
    weights: str
    insider: bool = False


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study: the audit's options, how models are trained, and how they are attacked.

    ``attack`` is on every batch.
    """

    options: TradeoffOptions
    training: TrainingOptions
    attack: Attack


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained with a defense.

    The model before and after it, with its defenses, and the accuracy on test records.
    """

    initial: Target
    target: Target
    accuracy: TaskAccuracy

    @property
    def value(self) -> float:
        """Return the accuracy on the test records; 0 where it was not measured."""
        return self.accuracy.value or 0.0

    @property
    def reach(self) -> float:
        """Half the width of the accuracy's interval."""
        low, high = self.accuracy.interval or (0.0, 0.0)
        return (high - low) / 2


@dataclass(frozen=True)
class Study:
    """The results of a mechanism at every setting.

    Attributes:
        mechanism: with its grid.
        trained: (repetitions, settings) models.
        outcomes: (repetitions, settings) attacks by view; the first view is the headline's.
    """

    mechanism: DefenseGrid
    trained: Sequence[Sequence[TrainedModel]]
    outcomes: Mapping[AttackedModel, Sequence[Sequence[AttackScores]]]

    @property
    def accuracies(self) -> FloatArray:
        """The accuracies (repetitions, settings)."""
        return np.array([[trained.value for trained in row] for row in self.trained])

    @property
    def reaches(self) -> FloatArray:
        """Half the widths of the accuracies' intervals, (repetitions, settings)."""
        return np.array([[trained.reach for trained in row] for row in self.trained])

    def of(self, view: AttackedModel, what: str) -> FloatArray | None:
        """Stack a field of the outcomes (repetitions, settings, batches); None where missing."""
        values = [[getattr(outcome, what) for outcome in row] for row in self.outcomes[view]]
        return None if any(value is None for row in values for value in row) else np.array(values)


def train(
    targets: Sequence[Target],
    records: Records,
    test: Records,
    options: TrainingOptions,
    chains: Sequence[Sequence[Defense[Any]]],
    seed: int,
    progress: Progress,
    jobs: int = 1,
) -> list[TrainedModel]:
    """Train every target with its defenses, and test its accuracy.

    The initial weights, which are the targets', are left as they are; ``test`` are other records.
    Trainings are shared out among ``jobs`` workers, where they need no device.

    Raises:
        AuditError: a training diverged.
        NotApplicable: a defense does not go with the model or the training, or the task has no
            accuracy.
        UsageError: an option does not go with another.
    """
    trainings = [
        FederatedTraining(target, records, options, defenses=chain, seed=seed)
        for target, chain in zip(targets, chains, strict=True)
    ]
    tasks = [partial(_weights, training, options.rounds) for training in trainings]
    jobs = jobs if all(target.device.type == "cpu" for target in targets) else 1
    with progress.task("training", options.rounds * len(tasks)) as advance:
        reached = shared_out(tasks, jobs, advance, patience=0)
    return [
        _tested(training.target, weights, test)
        for training, weights in zip(trainings, reached, strict=True)
    ]


def _tested(initial: Target, weights: dict[str, Tensor], test: Records) -> TrainedModel:
    model = copy.deepcopy(initial.model)
    model.load_state_dict({**model.state_dict(), **weights})
    done = replace(initial, model=model, checkpoint=None)
    accuracy = task_accuracy(done, test)
    if accuracy.metric != "accuracy":
        raise NotApplicable(
            "the labels and the loss define no accuracy, which is what privacy is weighed against"
        )
    return TrainedModel(initial, done, accuracy)


def _weights(training: FederatedTraining, rounds: int, advance: Advance) -> dict[str, Tensor]:
    """Train the model for a number of rounds, and return its weights with the private part."""
    for _ in range(rounds):
        training.advance()
        advance(1)
    reached = training.snapshot(scored=False)
    return {**reached.state, **reached.private}


def study(subject: Subject, mechanism: DefenseGrid, plan: StudyPlan, progress: Progress) -> Study:
    """Train with every setting of a mechanism, and attack the shared updates.

    Repetitions draw other splits, batches and noise; the initial weights are the target's.

    Raises:
        AuditError: a training diverged.
        NotApplicable: the mechanism, the method or the task does not go with the model.
        UsageError: there are too few records, or options contradict each other.
    """
    options = plan.options
    chains = [(*subject.defenses, *setting.defenses) for setting in mechanism.settings]
    for setting in mechanism.settings:
        expect_usable(subject, setting)
    trained: list[list[TrainedModel]] = []
    outcomes: dict[AttackedModel, list[list[AttackScores]]] = {}
    for number in range(options.repeats):
        drawn, test = _drawn(subject, options, number)
        targets = [defended_target(subject.target, chain, subject.seed) for chain in chains]
        models = train(
            targets,
            drawn.records,
            test,
            plan.training,
            chains,
            drawn.seed,
            progress,
            subject.jobs,
        )
        trained.append(models)
        secret = options.insider and has_secret(models[0].initial)
        views = product((False, True) if secret else (False,), options.weights, options.sizes)
        for insider, weights, size in views:
            view = AttackedModel(size, weights, insider)
            of_view = _attacked(view, models, chains, plan, drawn, progress)
            outcomes.setdefault(view, []).append(of_view)
    return Study(mechanism, trained, outcomes)


def expect_usable(subject: Subject, setting: DefenseSetting) -> None:
    """Raise an error where a setting's defenses cannot be applied to the model in this order.

    Raises:
        NotApplicable: one cannot be built into the model.
        UsageError: a glob matches no layer, or the order makes no sense.
    """
    chain = (*subject.defenses, *setting.defenses)
    target = defended_target(subject.target, chain, subject.seed)
    Chain(chain).check(shared_parameters(target.model, subject.hidden))


def _drawn(subject: Subject, options: TradeoffOptions, number: int) -> tuple[Subject, Records]:
    """Draw one repetition: its seed, the records to train on, and others to test on."""
    seed = subject.seed
    if number:
        seed = seed_of(seed, "tradeoff", "repetition", number)
    rows, tested = split(subject.records, options.test_share, seed)
    if not len(tested):
        raise UsageError("no record is left to test on; give --test-share a larger value")
    largest = max(options.sizes)
    if largest * options.batches > len(rows):
        raise UsageError(
            f"--batches {options.batches}: with --batch-size {largest} they take "
            f"{largest * options.batches} records, and {len(rows)} are trained on"
        )
    trained_on = replace(subject, records=subject.records.take(rows), seed=seed, samples=None)
    return trained_on, subject.records.take(tested)


def _attacked(
    view: AttackedModel,
    models: Sequence[TrainedModel],
    chains: Sequence[tuple[Defense[Any], ...]],
    plan: StudyPlan,
    drawn: Subject,
    progress: Progress,
) -> list[AttackScores]:
    batches = chosen_batches(drawn, Choice(view.batch_size, plan.options.batches))
    attack = replace(plan.attack, insider=view.insider)
    scores = []
    for model, chain in zip(models, chains, strict=True):
        target = model.initial if view.weights == "initial" else model.target
        sharing = SharingProtocol(chain)
        scores.append(attacked(target, sharing, batches, attack, drawn.seed, progress))
    return scores
