"""Accuracy of the model on the records, and a warning where it is lower than it should be.

An accuracy no better than chance, or below the one that the model is known to have, may come of
records unlike those that it was trained on.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.special import ndtri
from torch import Tensor

from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.intervals import clustered, wilson
from gradaudit.core.statistics.laws import binomial_at_least
from gradaudit.core.text import listed
from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import flops
from gradaudit.models.losses import CrossEntropy, Loss, classes_second
from gradaudit.models.target import Target

PROBABLY = "the preprocessing is then probably not the one the model was trained with"
MOST_RECORDS = 10_000
FEWEST_RECORDS = 8
"""Fewest records that are run where a forward pass is costly."""
FLOPS = 1e11
"""Largest number of floating-point operations for the accuracy: some seconds on one core."""

FEWEST = 30
"""Number of records below which a chance level of one half is rarely distinguished from .8."""
_MARGIN = 0.05
"""Tolerance by which an accuracy may lie below the expected one, as the records are others."""
_RESAMPLES = 1000
_RANDOM = ("zoo:", "torchvision:", "hf:")
"""Prefixes of model specs that come without trained weights."""
_LEVEL = 0.05
_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class TaskAccuracy:
    """The model's accuracy, or R² for real targets, on ``n`` records.

    Attributes:
        metric: ``accuracy``, ``r2``, or ``none`` where the loss and the labels define neither.
        value: the share of right predictions, or 1 − (squared error) / (variance of the targets).
        interval: Wilson's, or the bootstrap percentiles of R², at ``confidence``.
        chance: the share of the largest class among these labels, or R² of the mean, 0.
        n: how many records were looked at.
        at_chance: whether chance explains the value: by a binomial test at 5 %, of R² where the
            interval reaches down to 0. None where all labels are the same.
        warning: sentence for the user of a model that does not do what it should.
    """

    metric: Literal["accuracy", "r2", "none"]
    value: float | None
    interval: tuple[float, float] | None
    chance: float | None
    n: int
    confidence: float = CONFIDENCE
    at_chance: bool | None = None
    warning: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The fields as JSON values."""
        return {**asdict(self), "interval": list(self.interval) if self.interval else None}


def task_accuracy(
    target: Target,
    records: Records,
    *,
    batch: int = 256,
    expected: float | None = None,
    operations: float = FLOPS,
) -> TaskAccuracy:
    """Returns the accuracy of a model in evaluation mode; the model's own mode is restored.

    With class labels it is the share of records whose largest output (or the sign of a single
    logit, or for a squared error the nearer of 0 and 1) is the label; with labels of positions the
    share of those that have one; with probabilities of the classes the share whose largest output
    is the likeliest class; with real targets R². Beyond ``affordable`` records, so many drawn
    with a fixed seed are looked at.

    Args:
        target: model and loss.
        records: the data.
        batch: records a call of the model takes.
        expected: the accuracy that the model is known to have.
        operations: floating-point operations that it may take.

    Raises:
        AuditError: the model cannot be run on these inputs, the labels do not fit its outputs and
            its loss, or an output is not finite.
    """
    if len(records) > (most := affordable(target, records, operations)):
        drawn = np.random.default_rng(0).permutation(len(records))[:most]
        records = records.take(np.sort(drawn).astype(np.int64))
    outputs = torch.cat(list(_outputs(target, records, batch)))
    broken = int((~outputs.isfinite()).any(dim=1).sum())
    if broken:
        raise AuditError(
            f"the model's outputs are NaN or infinite for {broken} of {len(records)} records; "
            "check its weights and the preprocessing of the data"
        )
    judged = _judged(outputs, records.labels, target.loss)
    doubts = (doubt(target, judged, records, expected), _other_classes(outputs, records))
    return replace(judged, warning="; ".join(filter(None, doubts)) or None)


def affordable(target: Target, records: Records, operations: float = FLOPS) -> int:
    """Number of records to run the model on: 8 to 10,000, and at most so many operations.

    It depends on the model and the records' shape alone, not on the machine. Of a model whose
    operations cannot be counted it is 10,000.
    """
    if len(records) <= FEWEST_RECORDS:
        return len(records)
    model = _evaluated(target)
    inputs, labels = model.cast(records.inputs[:1]), model.cast(records.labels[:1])
    try:
        of_a_record = max(flops(lambda: model.check(inputs, labels)), 1)
    except Exception:  # of a model that cannot be counted, or that cannot be run at all
        return MOST_RECORDS
    return min(MOST_RECORDS, max(FEWEST_RECORDS, int(operations / of_a_record)))


def _evaluated(target: Target) -> FunctionalModel:
    dtype = next(target.model.parameters()).dtype
    return FunctionalModel.of(replace(target, mode="eval"), dtype=dtype)


def _outputs(target: Target, records: Records, batch: int) -> Iterator[Tensor]:
    """Yields outputs batch by batch, each flat: (batch, outputs); of positions the predicted class.

    NaN stands for the class of a position whose outputs are not all finite.
    """
    model = _evaluated(target)
    for start in range(0, len(records), batch):
        inputs = model.cast(records.inputs[start : start + batch])
        labels = model.cast(records.labels[start : start + batch])
        outputs = target.loss.predictions(model.check(inputs, labels))
        if _of_positions(outputs, labels):
            outputs = classes_second(outputs, labels)
            whole = outputs.isfinite().all(dim=1)
            outputs = torch.where(whole, outputs.argmax(dim=1).double(), torch.nan)
        yield outputs.reshape(len(outputs), -1).double().cpu()


def _of_positions(outputs: Tensor, labels: Tensor) -> bool:
    """Whether a record has several labels, and the model several outputs for each of them."""
    several = labels.dim() > 1 and not labels.is_floating_point()
    positions = labels.shape[1:]
    fitting = positions in (outputs.shape[2:], outputs.shape[1:-1])
    return several and fitting and outputs.numel() > labels.numel()


def _judged(outputs: Tensor, labels: Tensor, loss: Loss) -> TaskAccuracy:
    """Returns the accuracy or R² of outputs (records, outputs), whichever the labels allow."""
    if not labels.is_floating_point() and (labels.dim() > 1 or _are_classes(outputs, labels, loss)):
        known = (labels != loss.ignored) & (labels >= 0)
        if not known.any():
            return TaskAccuracy("none", None, None, None, 0)
        if labels.dim() > 1:
            each = len(labels), -1
            if outputs.shape != labels.reshape(each).shape:  # letters of a sound, say
                return TaskAccuracy("none", None, None, None, len(labels))
            return _accuracy_of_positions(outputs, labels.reshape(each), known.reshape(each))
        several = outputs.shape[1] > 1
        guesses = outputs.argmax(dim=1) if several else outputs[:, 0] > loss.threshold
        return _accuracy((guesses == labels)[known], labels[known])
    targets = labels.double().reshape(len(labels), -1)
    if isinstance(loss, CrossEntropy) and targets.shape == outputs.shape:
        classes = targets.argmax(dim=1)  # of soft labels the likeliest
        return _accuracy(outputs.argmax(dim=1) == classes, classes)
    if targets.shape != outputs.shape:
        return TaskAccuracy("none", None, None, None, len(labels))
    if loss.yes_or_no:
        right = (outputs > 0) == (targets > 0.5)
        return _accuracy(right.flatten(), (targets > 0.5).flatten().long())
    return _r2(outputs.numpy(), targets.numpy())


def _are_classes(outputs: Tensor, labels: Tensor, loss: Loss) -> bool:
    """Whether whole numbers (records,) are classes; with a single output only 0 and 1 are."""
    binary = (labels == 0) | (labels == 1) | (labels == loss.ignored)
    return outputs.shape[1] > 1 or bool(binary.all())


def _accuracy(right: Tensor, labels: Tensor) -> TaskAccuracy:
    n = len(labels)
    value = int(right.sum()) / n
    chance = int(labels.bincount().max()) / n
    interval = wilson(value, n, _QUANTILE)
    at_chance = None
    if chance < 1:
        at_chance = binomial_at_least(int(right.sum()), n, chance) > _LEVEL
    return TaskAccuracy("accuracy", value, interval, chance, n, at_chance=at_chance)


def _accuracy_of_positions(predicted: Tensor, labels: Tensor, known: Tensor) -> TaskAccuracy:
    """Accuracy over (records, positions) with a known class, with an interval over records."""
    counts = known.sum(dim=1)
    right = ((predicted == labels) & known).sum(dim=1)[counts > 0].double()
    counts = counts[counts > 0]
    value, interval = clustered((right / counts).numpy(), counts.double().numpy())
    chance = int(labels[known].bincount().max()) / int(counts.sum())
    at_chance = interval[0] <= chance if chance < 1 else None
    return TaskAccuracy("accuracy", value, interval, chance, len(counts), at_chance=at_chance)


def _r2(outputs: NDArray[np.float64], targets: NDArray[np.float64]) -> TaskAccuracy:
    """R² over all outputs together; (records, outputs) each."""
    n = len(targets)
    centred = targets - targets.mean(axis=0)
    total = float(np.square(centred).sum())
    if total == 0:
        return TaskAccuracy("none", None, None, None, n)
    errors = np.square(outputs - targets).sum(axis=1)
    value = 1 - float(errors.sum()) / total
    interval = _bootstrapped(errors, centred)
    at_chance = interval is not None and interval[0] <= 0
    return TaskAccuracy("r2", value, interval, 0.0, n, at_chance=at_chance)


def _bootstrapped(
    errors: NDArray[np.float64], centred: NDArray[np.float64]
) -> tuple[float, float] | None:
    """Percentiles of R² when records are redrawn; a redraw is kept as a count for each record.

    Squared errors are (records,), the targets less their mean (records, outputs).
    """
    generator = np.random.default_rng(0)
    n, squares, redrawn = len(errors), np.square(centred).sum(axis=1), []
    for _ in range(_RESAMPLES):
        counts = np.bincount(generator.integers(0, n, n), minlength=n).astype(np.float64)
        total = counts @ squares - np.square(counts @ centred).sum() / n
        if total > 0:
            redrawn.append(1 - counts @ errors / total)
    if not redrawn:
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(redrawn, [tail, 100 - tail])
    return float(low), float(high)


def doubt(
    target: Target,
    found: TaskAccuracy,
    records: Records,
    expected: float | None,
) -> str | None:
    """The report's warning on a model with lower accuracy than expected on these records."""
    if target.checkpoint is None and target.description.startswith(_RANDOM):
        return (
            "the weights are random: no checkpoint was given (--checkpoint), and every number is "
            "about an untrained model"
        )
    if target.checkpoint is not None and target.checkpoint.random:
        return (
            f"the checkpoint is partial: {listed(target.checkpoint.random, 20)} are random, and "
            "every number of them is about untrained weights"
        )
    if expected is not None and found.interval is not None:
        if found.interval[1] >= expected - _MARGIN:
            return None
        return (
            f"the model reaches {found.value:.3f} on these records, and {expected:.3f} by "
            f"--expected-accuracy: {PROBABLY}{_preparing(records)}, or these are other records"
        )
    if found.at_chance and _shown_to_be_poor(found):
        levels = f"({found.value:.3f}, chance {found.chance:.3f})"
        poor = f"the model is no better than chance on these records {levels}: "
        if target.checkpoint is None:
            poor += "no checkpoint was given (--checkpoint), so its weights may be random; if not, "
        return f"{poor}{PROBABLY}{_preparing(records)}"
    return None


def _shown_to_be_poor(found: TaskAccuracy) -> bool:
    """Whether the interval lies below the middle between chance and perfect accuracy.

    That chance explains a value is no sign of a poor model where few records explain all.
    """
    if found.interval is None or found.chance is None:
        return False
    return found.interval[1] < (1 + found.chance) / 2


def _other_classes(outputs: Tensor, records: Records) -> str | None:
    """A remark where the model has more outputs (records, outputs) than the data has classes."""
    wide, classes = outputs.shape[1], len(records.classes)
    if records.labels.dim() > 1 or not 1 < classes < wide:
        return None
    return (
        f"the model has {wide} outputs and the data {classes} classes: the numbers hold only if "
        f"these are the model's first {classes} classes, in this order"
    )


def _preparing(records: Records) -> str:
    """Names what the user may prepare differently: the scale of columns, or pictures as bytes."""
    other = {"none": "standard", "standard": "none"}.get(str(records.notes.get("scale")))
    if other and any(feature.range for feature in records.features):
        now = "as the file has them" if other == "standard" else "standardised"
        return f" (the columns are {now}; say scale={other} in --data for the other way)"
    return _bytes(records)


def _bytes(records: Records) -> str:
    """A remark on inputs that run from 0 to 255, as pictures do before they are scaled."""
    if records.discrete or records.inputs.dim() < 3:
        return ""
    low, high = float(records.inputs.min()), float(records.inputs.max())
    return f" (the inputs run from 0 to {high:g}, as bytes do)" if low >= 0 and high > 2 else ""
