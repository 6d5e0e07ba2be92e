"""Compares a model's accuracy on a table's number columns as they are and standardised.

No file of weights says which of the two its model was trained on, and a model that is given the
other runs all the same. ``gradaudit init`` tries both and writes down the one that fits.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

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
        layer: the first layer that the model calls; empty where the model cannot be run.
        spread: root mean square of that layer's outputs.
        accuracy: accuracy on these inputs; None where the model cannot be run on them.
    """

    scale: str
    low: float
    high: float
    layer: str
    spread: float
    accuracy: TaskAccuracy | None

    @property
    def sentence(self) -> str:
        """The trial's result as a sentence."""
        columns = f"scale={self.scale}: columns from {number(self.low)} to {number(self.high)}"
        if self.accuracy is None:
            return f"{columns}, on which the model gives no finite outputs"
        layer = f"outputs of layer {self.layer} with root mean square {number(self.spread)}"
        if self.accuracy.value is None:
            return f"{columns}, {layer}, with no accuracy to compare"
        what = "R²" if self.accuracy.metric == "r2" else "task accuracy"
        return f"{columns}, {layer}, {what} {number(self.accuracy.value)}"


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
    low, high = float(inputs.min()), float(inputs.max())
    with _first_layer(subject.target.model) as first:
        try:
            found = task_accuracy(subject.target, subject.records)
        except AuditError:
            return ScalingTrial(scale, low, high, "", 0.0, None)
    return ScalingTrial(scale, low, high, first.name, first.spread, found)


class _FirstLayer:
    """Name of the first layer that is called, and the root mean square of its outputs."""

    def __init__(self) -> None:
        self.name = ""
        self.squares = 0.0
        self.count = 0

    def add(self, name: str, outputs: Any) -> None:
        if name == (self.name or name) and isinstance(outputs, Tensor):
            self.name = name
            self.squares += float(outputs.detach().double().square().sum())
            self.count += outputs.numel()

    @property
    def spread(self) -> float:
        return math.sqrt(self.squares / max(self.count, 1))


@contextmanager
def _first_layer(model: nn.Module) -> Iterator[_FirstLayer]:
    first = _FirstLayer()
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: first.add(name, out))
        for name, module in model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            yield first
    finally:
        for handle in handles:
            handle.remove()
