"""One mechanism under study: every setting trained with and attacked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.campaign import Choice, chosen_batches
from gradaudit.data.records import Records
from gradaudit.defenses.chain import Chain
from gradaudit.defenses.modules.target import defended_target
from gradaudit.errors import UsageError
from gradaudit.federation.partition import split
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Subject, Target, shared_parameters
from gradaudit.progress import Progress
from gradaudit.randomness import number as seed_of
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.tradeoff.attacking import Attack, Outcome, attacked, has_secret
from gradaudit.tradeoff.mechanisms import Mechanism, Setting
from gradaudit.tradeoff.scores import FloatArray
from gradaudit.tradeoff.training import Trained, train

"""Sets repetitions apart from other draws of the same seed."""

Weights = Literal["initial", "trained"]


@dataclass(frozen=True)
class View:
    """What is attacked, and by whom.

    Attributes:
        batch_size: records behind an update.
        weights: of the model before its training, or after it.
        insider: whether the attacker knows what clients keep private in the model.
    """

    batch_size: int
    weights: Weights
    insider: bool = False


@dataclass(frozen=True)
class Plan:
    """How a mechanism is studied.

    Attributes:
        training: how models are trained.
        test_share: of the records, see ``federation.partition.split``.
        attack: on every batch.
        batches: how many.
        batch_sizes: each attacked by itself.
        weights: which of the models are attacked.
        insider: whether an attacker plays who knows the private part, where there is one.
        repeats: how often all of it is done.
    """

    training: TrainingOptions
    test_share: float | None
    attack: Attack
    batches: int
    batch_sizes: tuple[int, ...]
    weights: tuple[Weights, ...]
    insider: bool
    repeats: int


@dataclass(frozen=True)
class Study:
    """What came of a mechanism.

    Attributes:
        mechanism: with its grid.
        trained: (repetitions, settings) models.
        outcomes: (repetitions, settings) attacks by view; the first view is the headline's.
    """

    mechanism: Mechanism
    trained: Sequence[Sequence[Trained]]
    outcomes: Mapping[View, Sequence[Sequence[Outcome]]]

    @property
    def accuracies(self) -> FloatArray:
        """(repetitions, settings)."""
        return np.array([[each.value for each in row] for row in self.trained])

    @property
    def reaches(self) -> FloatArray:
        """(repetitions, settings) half the widths of their intervals."""
        return np.array([[each.reach for each in row] for row in self.trained])

    def of(self, view: View, what: str) -> FloatArray | None:
        """(repetitions, settings, batches) of a field of the outcomes; None where it is missing."""
        found = [[getattr(each, what) for each in row] for row in self.outcomes[view]]
        if any(each is None for row in found for each in row):
            return None
        return np.array(found)

    def knowledge(self, view: View) -> dict[str, JsonValue]:
        """What the attacker was given at the first setting."""
        return self.outcomes[view][0][0].knowledge


def study(subject: Subject, mechanism: Mechanism, plan: Plan, progress: Progress) -> Study:
    """Train with every setting of a mechanism, and attack what is shared.

    Repetitions draw other splits, batches and noise; the initial weights are the target's.

    Raises:
        AuditError: a training diverged.
        NotApplicable: the mechanism, the method or the task does not go with the model.
        UsageError: there are too few records, or options contradict each other.
    """
    for setting in mechanism.settings:
        expect_usable(subject, setting)
    trained: list[list[Trained]] = []
    outcomes: dict[View, list[list[Outcome]]] = {}
    for number in range(plan.repeats):
        scene = _Scene.draw(subject, plan, number)
        row = [scene.trained(setting, progress) for setting in mechanism.settings]
        trained.append(row)
        for view in _views(plan, row[0].initial):
            found = [
                scene.attacked(view, setting, each, progress)
                for setting, each in zip(mechanism.settings, row, strict=True)
            ]
            outcomes.setdefault(view, []).append(found)
    return Study(mechanism, trained, outcomes)


def expect_usable(subject: Subject, setting: Setting) -> None:
    """Look whether the defenses of a setting can be applied to the model in this order.

    Raises:
        NotApplicable: one cannot be built into the model.
        UsageError: a glob matches no layer, or the order makes no sense.
    """
    chain = (*subject.defenses, *setting.defenses)
    target = defended_target(subject.target, chain, subject.seed)
    Chain(chain).check(shared_parameters(target.model, subject.hidden))


def repetition_seed(seed: int, number: int) -> int:
    """The seed of a repetition; that of the first is the run's."""
    if not number:
        return seed
    return seed_of(seed, "tradeoff", "repetition", number)


def _views(plan: Plan, target: Target) -> list[View]:
    insiders = (False, True) if plan.insider and has_secret(target) else (False,)
    return [
        View(size, weights, insider)
        for insider in insiders
        for weights in plan.weights
        for size in plan.batch_sizes
    ]


@dataclass(frozen=True)
class _Scene:
    """One repetition: its seed, who holds which records, and the batches to attack by size."""

    subject: Subject
    plan: Plan
    seed: int
    records: Records
    test: Records
    batches: Callable[[int], Sequence[Records]]

    @classmethod
    def draw(cls, subject: Subject, plan: Plan, number: int) -> "_Scene":
        seed = repetition_seed(subject.seed, number)
        rows, tested = split(subject.records, plan.test_share, seed)
        if not len(tested):
            raise UsageError("no record is left to test on; give --test-share a larger value")
        records = subject.records.take(rows)
        most = max(plan.batch_sizes) * plan.batches
        if most > len(records):
            raise UsageError(
                f"--batches {plan.batches}: with --batch-size {max(plan.batch_sizes)} they take "
                f"{most} records, and {len(records)} are trained on"
            )
        own = replace(subject, records=records, seed=seed, samples=None)
        return cls(
            subject,
            plan,
            seed,
            records,
            subject.records.take(tested),
            lambda size: chosen_batches(own, Choice(size, plan.batches)),
        )

    def trained(self, setting: Setting, progress: Progress) -> Trained:
        chain = (*self.subject.defenses, *setting.defenses)
        target = defended_target(self.subject.target, chain, self.subject.seed)
        return train(
            target, self.records, self.test, self.plan.training, chain, self.seed, progress
        )

    def attacked(
        self, view: View, setting: Setting, trained: Trained, progress: Progress
    ) -> Outcome:
        sharing = SharingProtocol((*self.subject.defenses, *setting.defenses))
        target = trained.initial if view.weights == "initial" else trained.target
        how = replace(self.plan.attack, insider=view.insider)
        return attacked(target, sharing, self.batches(view.batch_size), how, self.seed, progress)
