"""Compares a model's accuracy on a table's number columns as they are and standardised.

No file of weights says which of the two its model was trained on, and a model that is given the
other runs all the same. ``gradaudit init`` tries both and writes down the one that fits.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

from gradaudit.accuracy import TaskAccuracy, task_accuracy
from gradaudit.config import SubjectSettings
from gradaudit.core.specs import parse_spec
from gradaudit.core.text import number
from gradaudit.data import adapters
from gradaudit.errors import AuditError
from gradaudit.run.opening import open_subject

_RANDOM = ("zoo:", "torchvision:")


@dataclass(frozen=True)
class ScalingTrial:
    """Accuracy of a model on a table's columns under one scaling.

    Attributes:
        scale: value of the data's option ``scale``.
        low: smallest number of the inputs.
        high: largest number of them.
        accuracy: accuracy on these inputs; None where the model cannot be run on them.
    """

    scale: str
    low: float
    high: float
    accuracy: TaskAccuracy | None

    @property
    def sentence(self) -> str:
        """The trial's result as a sentence."""
        columns = f"scale={self.scale}: columns from {number(self.low)} to {number(self.high)}"
        if self.accuracy is None:
            return f"{columns}, on which the model gives no finite outputs"
        if self.accuracy.value is None:
            return f"{columns}, with no accuracy to compare"
        what = "R²" if self.accuracy.metric == "r2" else "task accuracy"
        return f"{columns}, {what} {number(self.accuracy.value)}"


def scaling_trials(settings: SubjectSettings) -> list[ScalingTrial]:
    """Tries the model with each scaling; empty where the user chose one or only one exists.

    There is none to choose for data that is no table of numbers, and none that fits where no
    checkpoint was given for a model that comes without weights.

    Raises:
        UsageError, DataError, CheckpointError: the model or the data cannot be opened.
    """
    untrained = not settings.checkpoint and (settings.model or "").startswith(_RANDOM)
    if untrained or not _is_open(settings.data or ""):
        return []
    plain = _tried(settings, "none")  # None where the data is no table, which takes no other scale
    standard = _tried(settings, "standard") if plain else None
    return [trial for trial in (plain, standard) if trial]


def better(trials: Sequence[ScalingTrial]) -> str | None:
    """Returns the scaling with a clearly higher accuracy; None where neither has one.

    An accuracy is better where it lies above the other's interval.
    """
    known = [trial for trial in trials if trial.accuracy is not None]
    if len(known) == 1 < len(trials):
        return known[0].scale
    for one, other in (trials, trials[::-1]) if len(known) == 2 else ():
        if _above(one.accuracy, other.accuracy):
            return one.scale
    return None


def with_scale(spec: str, scale: str) -> str:
    """Returns the data's spec with that scaling."""
    return f"{spec}{'&' if '?' in spec else '?'}scale={scale}"


def _above(one: TaskAccuracy | None, other: TaskAccuracy | None) -> bool:
    if one is None or other is None or one.value is None or other.interval is None:
        return False
    return one.value > other.interval[1]


def _is_open(data: str) -> bool:
    """Whether the data's adapter can scale columns and its spec does not say how."""
    spec = parse_spec(data)
    adapter = adapters().get(spec.scheme or spec.name)
    takes = adapter is not None and "scale" in {field.name for field in fields(adapter)}
    return takes and not spec.values("scale")


def _tried(settings: SubjectSettings, scale: str) -> ScalingTrial | None:
    data = with_scale(settings.data or "", scale)
    subject = open_subject(settings.model_copy(update={"data": data}))
    if not any(feature.range for feature in subject.records.features):
        return None
    inputs = subject.records.inputs
    found = None
    with suppress(AuditError):
        found = task_accuracy(subject.target, subject.records)
    return ScalingTrial(scale, float(inputs.min()), float(inputs.max()), found)
