"""Attacks on tables take the view of an update and return rows, with a certainty for each cell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_table import TableOptions
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.progress import Progress

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView
    from gradaudit.attacks.reconstruction.observing import ThreatModel
    from gradaudit.data.records import Records

NO_PROOF = "behind noise rows are named, and none is proved"


@dataclass(frozen=True)
class TableAnswer:
    """The rows that an attack returns, as many as are behind the update and in no order.

    Rows without evidence are guessed.

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
    """The attacker's knowledge beside the update, and the audit's options.

    Attributes:
        columns: of the table, with the marginals of the attacker's records.
        seed: of all randomness.
        options: of the audit.
        batch: (rows, cells) the truth, which only tells that a decoy is none; None where unknown.
        others: the attacker's records with their labels; ``tableak`` asks for them.
        threat: how these would become an update that is seen; ``tableak`` asks for it.
    """

    columns: TableColumns
    seed: int
    options: TableOptions = field(default_factory=TableOptions)
    batch: Tensor | None = None
    others: Records | None = None
    threat: ThreatModel | None = None


class TableAttack(ABC):
    """One attack. The class docstring carries the method and the citation."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def run(self, view: AttackerView, setting: TableSetting, progress: Progress) -> TableAnswer:
        """Rebuild the rows behind an update from what the attacker has, without the truth.

        Raises:
            NotApplicable: the attack says nothing about this model or update.
        """


def guessed(columns: TableColumns, count: int) -> TableAnswer:
    """Guess the given number of rows without an update; they have no labels, and none is named.

    A cell is its column's most frequent value, and as certain as that is frequent.
    """
    known, shares = columns.known, []
    row = known.new_zeros(columns.cells_in_all)
    for feature, at in columns.placed:
        seen = known[:, at].argmax(dim=1) if feature.values else known[:, at.start]
        _, places, counts = torch.unique(seen, return_inverse=True, return_counts=True)
        most = places == counts.argmax()
        row[at] = known[most.nonzero()[0, 0], at]
        shares.append(float(counts.max()) / len(known))
    certainty = torch.tensor(shares, dtype=row.dtype).expand(count, -1).clone()
    nothing = torch.zeros(count, dtype=torch.bool)
    unknown = torch.full((count, len(columns.numeric)), torch.nan, dtype=torch.float64)
    labels = torch.full((count,), torch.nan, dtype=torch.float64)
    cells = row.expand(count, -1).clone()
    return TableAnswer(cells, labels, certainty, nothing, nothing.clone(), unknown)
