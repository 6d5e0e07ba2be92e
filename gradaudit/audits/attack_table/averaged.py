"""Rows behind an update of several local steps: in the first layer's span, ranked by the second's.

Every step's gradient of the first layer has its rows in the span of what comes in, so the span of
their sum holds, while the second layer's inputs move with the weights: what of a row's input at the
weights that were shared lies outside of the second span is small, and never nothing. Points of the
first span that are whole (one category a column) are ranked by it; as many as there are records are
taken, each linearly independent of those before. Nothing is certified: a combination of rows such
as x₁ − x₂ + x₃ may be whole as well.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.labels import RankOneLabels
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.search import ANNEALED, CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace
from gradaudit.audits.attack_table.structure import TwoLayers
from gradaudit.progress import Advance

_SCALE = 4.0
"""The second layer's weight, which is less than of a gradient, as its span is only about right."""
_INDEPENDENT = 1e-6


@dataclass(frozen=True)
class Ranked:
    """Rows in the order of their rank.

    Attributes:
        cells: (rows, cells).
        labels: (rows,).
        misfit: (rows,) the share of the second layer's input that lies outside its span.
    """

    cells: Tensor
    labels: Tensor
    misfit: Tensor


def ranked_rows(
    layers: TwoLayers,
    columns: TableColumns,
    labels: RankOneLabels,
    spaces: tuple[GradientRowSpace, GradientRowSpace | None],
    accept: float,
    count: int,
    rounds: int,
    generator: torch.Generator,
    advance: Advance,
) -> Ranked:
    """The rows that fit best.

    Args:
        layers: what the model begins with.
        columns: of the table.
        labels: tells labels by the second layer.
        spaces: of both layers, the second cut off at as many dimensions as there are records.
        accept: the residual up to which a row is in the first span.
        count: of rows to give at most.
        rounds: of starts, of which every other one is drawn to the second span.
        generator: of starts.
        advance: told of every round.
    """
    first, second = spaces
    test, both = (SpanTest(layers, columns, first, span) for span in (None, second))
    place, found = allowed(layers, columns, first), [columns.known[:0]]
    for number in range(rounds if place is not None else 0):
        assert place is not None
        z = starts(layers, columns, place, None if number % 4 == 3 else second, generator)
        guide = second if number % 2 else None
        cells = CandidateSearch(layers, place, guide, _SCALE).run(z, ANNEALED)[0]
        polished, residual = test.polished(columns.rounded(cells))
        moved = both.polished(polished[residual < accept])[0]
        polished, residual = test.polished(moved)
        found.append(polished[residual < accept])
        advance(1)
    cells = torch.cat(found)
    cells = cells[columns.first_of_each(cells)]
    misfit = cells.new_zeros(len(cells))
    if second is not None:
        misfit = torch.linalg.vector_norm(
            second.outside(layers.hidden(layers.entered(cells))), dim=1
        )
    order = misfit.argsort()
    order = order[independent(layers.entered(cells[order]), count)]
    cells, misfit = cells[order], misfit[order]
    told = torch.full((len(cells),), torch.nan).double()
    if second is not None and len(cells):
        told = labels.nearest(SpanTest(layers, columns, first, second), cells).double()
    return Ranked(cells, told, misfit)


def independent(vectors: Tensor, count: int) -> Tensor:
    """Places of the first vectors that are affinely independent of those before, at most so many.

    Args:
        vectors: (rows, inputs).
        count: how many there are at most.
    """
    kept: list[int] = []
    basis = vectors.new_zeros(0, vectors.shape[1] + 1)
    for place, vector in enumerate(vectors):
        extended = torch.cat([vector, vector.new_ones(1)])
        rest = extended - extended @ basis.T @ basis
        rest = rest - rest @ basis.T @ basis
        if float(rest.norm()) > _INDEPENDENT * float(extended.norm()) and len(kept) < count:
            basis = torch.cat([basis, (rest / rest.norm())[None]])
            kept.append(place)
    return torch.tensor(kept, dtype=torch.long)
