"""A model trained with a defense, and how well it does its task."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradaudit.accuracy import TaskAccuracy, task_accuracy
from gradaudit.data.records import Records
from gradaudit.defenses import Defense
from gradaudit.errors import NotApplicable
from gradaudit.federation.server import Training
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Target
from gradaudit.progress import Progress


@dataclass(frozen=True)
class Trained:
    """What a training with a defense ended in.

    Attributes:
        initial: the defended model before it.
        target: the defended model after it.
        accuracy: on the test records.
    """

    initial: Target
    target: Target
    accuracy: TaskAccuracy

    @property
    def value(self) -> float:
        """The accuracy."""
        return self.accuracy.value or 0.0

    @property
    def reach(self) -> float:
        """Half the width of its interval."""
        low, high = self.accuracy.interval or (0.0, 0.0)
        return (high - low) / 2


def train(
    target: Target,
    records: Records,
    test: Records,
    options: TrainingOptions,
    defenses: Sequence[Defense[Any]],
    seed: int,
    progress: Progress,
) -> Trained:
    """Train with these defenses and test.

    Args:
        target: initial weights; left as they are.
        records: what the clients hold together.
        test: others.
        options: how to train.
        defenses: applied to every client's update or built into its model, in order.
        seed: root of all draws.
        progress: told of every round.

    Raises:
        AuditError: the training diverged.
        NotApplicable: a defense does not go with the model or the training, or the task has no
            accuracy.
        UsageError: an option does not go with another.
    """
    training = Training(target, records, options, defenses=defenses, seed=seed)
    with progress.task("training", options.rounds) as advance:
        for _ in range(options.rounds):
            training.advance()
            advance(1)
    model = copy.deepcopy(training.target.model)
    reached = training.snapshot(scored=False)
    model.load_state_dict({**reached.state, **reached.private})
    done = replace(training.target, model=model, checkpoint=None)
    accuracy = task_accuracy(done, test)
    if accuracy.metric != "accuracy":
        raise NotApplicable(
            "the labels and the loss define no accuracy, which is what privacy is weighed against"
        )
    return Trained(training.target, done, accuracy)
