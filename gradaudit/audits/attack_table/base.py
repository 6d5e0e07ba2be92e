"""What an attack on a table is: a view of an update in, rows with a certainty of each cell out."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError
from gradaudit.progress import Progress

_NEIGHBOURS = 25
"""Records by which a column is imputed from others."""


@dataclass(frozen=True)
class TableAnswer:
    """As many rows as are behind the update, in no order; those without evidence are guessed.

    Attributes:
        cells: (rows, cells), one category a column.
        labels: (rows,) classes or targets.
        certainty: (rows, columns) the probability that the attacker gives each cell.
        named: (rows,) whether the attack found the row in the update.
        certified: (rows,) whether no decoy comes near.
        spread: (rows, numbers) how far numbers may be off, in deviations; NaN where unknown.
        facts: for the report.
    """

    cells: Tensor
    labels: Tensor
    certainty: Tensor
    named: Tensor
    certified: Tensor
    spread: Tensor
    facts: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class TableSetting:
    """What an attack is given beside the update.

    Attributes:
        columns: of the table, with the marginals of the attacker's records.
        seed: of all randomness.
        patience: rounds of starts without a new row after which a search stops.
        ensemble, steps: optimisations that are pooled, and the steps of each.
        tolerance: deviations by which a number may be off and count as right.
        decoys: rows that are not in the batch, on which certificates are tried.
        batch: (rows, cells) the truth, which only tells that a decoy is none; None where unknown.
    """

    columns: TableColumns
    seed: int
    patience: int = 12
    ensemble: int = 4
    steps: int = 1500
    decoys: int = 256
    tolerance: float = 0.02
    batch: Tensor | None = None


class TableAttack(ABC):
    """One attack. The class docstring carries the method and the citation."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def run(self, view: AttackerView, setting: TableSetting, progress: Progress) -> TableAnswer:
        """Rebuild the rows behind an update.

        Args:
            view: everything that the attacker has; the truth is not in it.
            setting: what else.
            progress: who is told how far the work is.

        Raises:
            NotApplicable: the attack says nothing about this model or update.
        """


def guessed(columns: TableColumns, count: int) -> TableAnswer:
    """So many rows guessed without an update: no label, and no row named.

    A cell is its column's most frequent value, and as certain as that is frequent.
    """
    row = columns.known.new_zeros(columns.cells_in_all)
    shares = []
    for feature, (start, stop) in columns.placed:
        block = columns.known[:, start:stop]
        most = int(block.sum(dim=0).argmax()) if feature.values else 0
        row[start + most] = 1 if feature.values else block[:, 0].mode().values
        shares.append(float((block[:, most] == row[start + most]).double().mean()))
    certainty = torch.tensor(shares, dtype=row.dtype).expand(count, -1).clone()
    nothing = torch.zeros(count, dtype=torch.bool)
    unknown = torch.full((count, len(columns.numeric)), torch.nan, dtype=torch.float64)
    labels = torch.full((count,), torch.nan, dtype=torch.float64)
    cells = row.expand(count, -1).clone()
    return TableAnswer(cells, labels, certainty, nothing, nothing.clone(), unknown)


def imputed(columns: TableColumns, rows: Tensor, names: Collection[str]) -> Tensor:
    """Rows of which some columns are known, the others guessed from the attacker's records.

    Each other cell is the most frequent category, or the median, of the nearest records by the
    columns that are known.

    Args:
        columns: of the table.
        rows: (rows, cells), of which the known columns alone are looked at.
        names: of the columns that are known.

    Raises:
        UsageError: there is no such column.
    """
    if missing := [name for name in names if name not in columns.names]:
        raise UsageError(
            f"--knows {missing[0]}: no such column{suggest(missing[0], columns.names)}"
        )
    told = torch.cat(
        [torch.arange(*ends) for feature, ends in columns.placed if feature.name in names]
    )
    distance = torch.cdist(rows[:, told], columns.known[:, told])
    near = columns.known[distance.topk(min(_NEIGHBOURS, len(columns.known)), largest=False).indices]
    guess = columns.rounded(near.mean(dim=1))
    guess[:, columns.numeric] = near[:, :, columns.numeric].median(dim=1).values
    guess[:, told] = rows[:, told]
    return guess
