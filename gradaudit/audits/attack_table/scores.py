"""How right an answer is: cells, rows, and whether its certainty is what it says."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradaudit.audits.attack_table.base import TableAnswer
from gradaudit.audits.attack_table.columns import TableColumns

_BINS = 10


@dataclass(frozen=True)
class TableScores:
    """An answer beside the truth.

    Attributes:
        right: (rows, columns) whether the cell of each of the batch's rows is right.
        certainty: (rows, columns) what the attacker said of it.
        labels: (rows,) whether the label is right.
        certified: (rows,) whether the row is right in all categories and certified.
        named, false: how many rows the attacker names, and how many of these are none of the batch.
        false_certified: how many of these are certified.
    """

    right: NDArray[np.bool_]
    certainty: NDArray[np.float64]
    labels: NDArray[np.bool_]
    certified: NDArray[np.bool_]
    named: int
    false: int
    false_certified: int

    @property
    def rows(self) -> NDArray[np.bool_]:
        """(rows,) whether every cell and the label are right."""
        return np.asarray(self.right.all(axis=1) & self.labels)


def scores_of(
    columns: TableColumns, answer: TableAnswer, truth: Tensor, labels: Tensor, tolerance: float
) -> TableScores:
    """Score an answer.

    Args:
        columns: of the table.
        answer: of an attack.
        truth: (rows, cells) of the batch.
        labels: (rows,).
        tolerance: deviations that a number may be off.
    """
    hits = right_cells(columns, answer.cells, truth, tolerance)
    there = hits.all(dim=2) | _within_spread(columns, answer, truth)
    told = (answer.labels[:, None] == labels[None].double()).double()
    worth = hits.double().sum(dim=2) + 0.5 * told + 100 * (there & answer.named[:, None])
    rows, matched = linear_sum_assignment(-worth.numpy())
    order = torch.from_numpy(rows[np.argsort(matched)])
    truths = torch.arange(len(truth))
    found = torch.zeros(len(answer.cells), dtype=torch.bool)
    found[order] = there[order, truths]
    false = answer.named & ~found
    return TableScores(
        right=hits[order, truths].numpy(),
        certainty=answer.certainty[order].numpy(),
        labels=(told[order, truths] > 0).numpy(),
        certified=(answer.certified & found)[order].numpy(),
        named=int(answer.named.sum()),
        false=int(false.sum()),
        false_certified=int((false & answer.certified).sum()),
    )


def right_cells(columns: TableColumns, cells: Tensor, truth: Tensor, tolerance: float) -> Tensor:
    """Whether each cell of rows would be right for each true row, (rows, truths, columns)."""
    hits = []
    for feature, (start, stop) in columns.placed:
        one, other = cells[:, None, start:stop], truth[None, :, start:stop]
        if feature.values:
            hits.append(one.argmax(dim=2) == other.argmax(dim=2))
        else:
            hits.append((one - other).abs()[:, :, 0] <= tolerance)
    return torch.stack(hits, dim=2)


def _within_spread(columns: TableColumns, answer: TableAnswer, truth: Tensor) -> Tensor:
    """Whether rows have the categories of true rows, and numbers within their own precision."""
    same = (columns.codes(answer.cells)[:, None] == columns.codes(truth)[None]).all(dim=2)
    gap = (answer.cells[:, None, columns.numeric] - truth[None, :, columns.numeric]).abs()
    return same & (gap <= answer.spread[:, None]).all(dim=2)


def calibration_error(certainty: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Mean distance of certainty and accuracy over ten bins of certainty, weighted by cells.

    (The expected calibration error of Guo et al. 2017, equation 3.)
    """
    places = np.minimum((certainty * _BINS).astype(int), _BINS - 1)
    counts = np.bincount(places, minlength=_BINS)
    gaps = np.bincount(places, certainty - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / counts.sum())
