"""Score a reconstruction of rows: cell accuracy, row accuracy, calibration; and its table."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradaudit.audits.attack_table.base import TableAnswer
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.core.files import write_atomically

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

    def counted(self, metric: str) -> NDArray[np.bool_]:
        """Of each cell or row, whether it counts for a metric's share."""
        if metric == "cell_accuracy":
            return self.right.ravel()
        return self.rows if metric == "row_accuracy" else self.certified


def scores_of(
    columns: TableColumns, answer: TableAnswer, truth: Tensor, labels: Tensor, tolerance: float
) -> TableScores:
    """Score an answer by a batch's cells (rows, cells) and labels (rows,).

    A number or a real target may be off by ``tolerance`` deviations.
    """
    hits = right_cells(columns, answer.cells, truth, tolerance)
    there = hits.all(dim=2) | columns.alike(answer.cells, truth, answer.spread[:, None])
    off = (answer.labels[:, None] - labels[None].double().reshape(1, -1)).abs()
    named = (off <= _label_room(labels, tolerance)).double()
    worth = hits.double().sum(dim=2) + 0.5 * named + 100 * (there & answer.named[:, None])
    rows, matched = linear_sum_assignment(-worth.numpy())
    order = torch.from_numpy(rows[np.argsort(matched)])
    truths = torch.arange(len(truth))
    found = torch.zeros(len(answer.cells), dtype=torch.bool)
    found[order] = there[order, truths]
    false = answer.named & ~found
    return TableScores(
        right=hits[order, truths].numpy(),
        certainty=answer.certainty[order].numpy(),
        labels=(named[order, truths] > 0).numpy(),
        certified=(answer.certified & found)[order].numpy(),
        named=int(answer.named.sum()),
        false=int(false.sum()),
        false_certified=int((false & answer.certified).sum()),
    )


def _label_room(labels: Tensor, tolerance: float) -> float:
    """How far a label may be off: nothing of a class, of a real target as a number of a column."""
    if not labels.is_floating_point():
        return 0.0
    spread = float(labels.double().std(correction=0))
    return tolerance * (spread or float(labels.abs().max()))


def right_cells(columns: TableColumns, cells: Tensor, truth: Tensor, tolerance: float) -> Tensor:
    """Whether each cell of rows would be right for each true row, (rows, truths, columns)."""
    hits = []
    for feature, at in columns.placed:
        one, other = cells[:, None, at], truth[None, :, at]
        if feature.values:
            hits.append(one.argmax(dim=2) == other.argmax(dim=2))
        else:
            hits.append((one - other).abs()[:, :, 0] <= tolerance)
    return torch.stack(hits, dim=2)


def calibration_error(certainty: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Mean distance of certainty and accuracy over ten bins of certainty, weighted by cells.

    (The expected calibration error of Guo et al. 2017, equation 3.)
    """
    places = np.minimum((certainty * _BINS).astype(int), _BINS - 1)
    counts = np.bincount(places, minlength=_BINS)
    gaps = np.bincount(places, certainty - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / counts.sum())


def write_cells(
    folder: Path, name: str, columns: TableColumns, answer: TableAnswer, *, reveal: bool
) -> None:
    """Write ``NAME.csv``: the answer's rows, with values where asked, else the cells' certainty."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*columns.names, "named", "certified"])
    values = columns.spelled(answer.cells)
    for row, cells in enumerate(values):
        shown = cells if reveal else [f"{part:.2f}" for part in answer.certainty[row].tolist()]
        lines.writerow([*shown, bool(answer.named[row]), bool(answer.certified[row])])
    write_atomically(folder / f"{name}.csv", text.getvalue().encode())
