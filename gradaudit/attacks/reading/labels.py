"""Finds the labels' classes from the last layer's bias gradient."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reading.base import (
    LinearUpdate,
    Reading,
    ReadingUnit,
    ReadingValue,
    head_of,
    untold,
)
from gradaudit.sharing.named import NamedUpdate

_ROUNDINGS = 8.0
_SMOOTHED = (
    "labels are smoothed by {0:g}: an absent class's bias, too, may get a negative gradient, of up "
    "to {1:.3g} for each record, so that no class can be named with certainty"
)
_NO_HEAD = "no fully connected layer with a bias of two outputs or more, to name classes by"


class LabelReading(Reading):
    """Classes that were among the labels: those whose bias gradient in the last layer is negative.

    Of cross-entropy it is Σ_i p_ic − n_c over the records, and p_ic > 0, so a class with a negative
    one was there (Zhao et al. 2020, iDLG, section 3.1). Steps of SGD, also with momentum, and of
    Adam add such gradients with positive weights, so it holds of local training without weight
    decay too. Where the number of records k is known, n_c = k/C · (1 − g_c/max g) estimates the
    counts as if the model knew nothing and some class was absent.

    Labels smoothed by s leave Σ_i (p_ic − s/C) − (1 − s) n_c, which is negative of an absent class,
    too, that the model gives less than s/C. How far below 0 these reach grows with the records and
    steps that an update adds up, and the update does not hold these, so no class is named.
    """

    name: ClassVar[str] = "labels"
    summary: ClassVar[str] = "Classes of the batch, from the last layer's bias."
    priority: ClassVar[int] = 20

    def pieces(self, update: NamedUpdate) -> Iterator[ReadingUnit]:
        """Make a single unit of work."""
        head = head_of(update)
        if head is None or len(update.after[head[1].bias]) < 2:
            yield untold("labels_named", None, _NO_HEAD)
            return
        elements = len(update.after[head[1].bias])
        if update.smoothing:
            why = _SMOOTHED.format(update.smoothing, update.smoothing / elements)
            yield untold("labels_named", None, why)
            return
        yield ReadingUnit(("labels_named",), None, elements, partial(_named, update, *head))


def _named(
    update: NamedUpdate, layer: str, head: LinearUpdate, _share: float
) -> Iterator[ReadingValue]:
    gradient = update.change(head.bias).double().cpu()
    there = gradient < -_ROUNDINGS * update.rounding(head.bias)
    classes = [int(c) for c in there.nonzero()[:, 0]]
    details: dict[str, JsonValue] = {
        "layer": layer,
        "of_classes": len(gradient),
        "classes": list(classes),
        "assumes": "cross-entropy of hard labels on this layer's output, without weight decay",
    }
    if update.records is not None and classes:
        details["counts"] = list(estimated_counts(gradient, update.records))
    yield ReadingValue("labels_named", None, float(len(classes)), details=details)


def estimated_counts(gradient: Tensor, records: int) -> list[int]:
    """Estimate how often each class is among the labels; the counts sum to the records.

    Args:
        gradient: (classes,) of the last bias, up to a positive factor.
        records: how many there are.
    """
    most = float(gradient.max())
    if most <= 0:
        return [0] * len(gradient)
    exact = ((1 - gradient / most) * records / len(gradient)).clamp(min=0)
    exact = exact * records / exact.sum()
    counts = exact.floor()
    left = records - int(counts.sum())
    counts[(exact - counts).argsort(descending=True)[:left]] += 1
    return [int(count) for count in counts.to(torch.long)]
