"""Certificates of named rows, set and tried by decoys.

A row is certified where its residual is less than a tenth of the least of decoys' in the spans that
it was found in, and its multiplicity is a whole number; of a rounded or noisy update this number
is one where there are numeric columns, for two rows of alike numbers look like one that is there
twice. Behind noise the named rows must also leave nothing but noise of the whole update, or none is
certified: the gradient of a row that is not found moves the numbers of those that are. Fresh decoys
then take the whole test; with none of n certified, the false rate is at most 1 − .025^(1/n)
(Clopper and Pearson 1934).
"""

import torch
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.spans import SpanTest

_TENTH = 0.1
_DECOYS = 128
"""Decoys that set a limit."""


def limit_of(
    test: SpanTest, rows: Tensor, generator: torch.Generator, named: Tensor | None = None
) -> float:
    """A tenth of the least residual of decoys of rows (rows, cells); 0 without any."""
    residual = decoys_of(test, rows, rows if named is None else named, _DECOYS, generator)[1]
    return _TENTH * float(residual.min()) if len(residual) else 0.0


def decoys_of(
    test: SpanTest, rows: Tensor, named: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """At most so many polished decoys (decoys, cells) and their residuals (decoys,).

    Three of four are rows with a category swapped, the others records of the attacker's own; their
    numbers are polished as a candidate's are. None comes to be a named row (named, cells), which
    is in the batch as far as anybody knows.
    """
    columns = test.columns
    others = torch.randint(len(columns.known), (-(-count // 4),), generator=generator)
    drawn = swapped(columns, rows, count - len(others), generator)
    cells, residual = test.polished(torch.cat([drawn, columns.known[others]]))
    kept = ~columns.alike(cells, named).any(dim=1)
    return cells[kept], residual[kept]


def swapped(columns: TableColumns, cells: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows with one category swapped for another of its column, (decoys, cells)."""
    several = [group for group in columns.groups if len(group) > 1]
    if not several or not len(cells):
        return cells[:0]
    decoys = cells[torch.randint(len(cells), (count,), generator=generator)].clone()
    which = torch.randint(len(several), (count,), generator=generator)
    for place, group in enumerate(several):
        rows = (which == place).nonzero()[:, 0]
        step = torch.randint(1, len(group), (len(rows),), generator=generator)
        other = (decoys[rows][:, group].argmax(dim=1) + step) % len(group)
        decoys[rows[:, None], group] = 0
        decoys[rows, group[other]] = 1
    return decoys
