"""Rows named one by one and taken out of the gradient, until nothing is left of it.

What is found is subtracted from every layer, after which fewer rows are in the way of the rest;
nothing left proves that all rows are named.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.decoys import limit_of
from gradaudit.audits.attack_table.labels import RankOneLabels
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.search import ANNEALED, PLAIN, CandidateSearch, allowed
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision
from gradaudit.audits.attack_table.structure import TwoLayers
from gradaudit.progress import Advance

_STARTS = 64
_EASY = 1.3
"""Equations at the second layer over dimensions at the first, from which on no pull is needed."""


@dataclass(frozen=True)
class PeelingRound:
    """Rows that one batch of starts named.

    Attributes:
        test: the spans that they were found in.
        cells: (rows, cells), one category a column.
        labels: (rows,).
        times: (rows,) how often each is in the batch.
        residual: (rows,) outside both spans, relative.
        spread: (rows, numbers) how far numbers may be off, in deviations.
    """

    test: SpanTest
    cells: Tensor
    labels: Tensor
    times: Tensor
    residual: Tensor
    spread: Tensor

    def only(self, rows: Tensor) -> Self:
        """Some of the rows."""
        names = "cells", "labels", "times", "residual", "spread"
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass
class Peeling:
    """What is left of an update while rows are taken out of it.

    Attributes:
        layers, columns: what the model begins with, and the table's.
        labels: tells labels.
        precision: of the update.
        update: what is left.
        batch: records behind the whole update.
        rounds: those that named rows.
        searched: starts so far.
    """

    layers: TwoLayers
    columns: TableColumns
    labels: RankOneLabels
    precision: Precision
    update: Update
    batch: int
    rounds: list[PeelingRound] = field(default_factory=list)
    searched: int = 0

    @classmethod
    def of(cls, view: AttackerView, layers: TwoLayers, columns: TableColumns) -> Self:
        """The whole update."""
        precision = Precision.of(view.update, layers.matrices(view.update), view.batch)
        labels = RankOneLabels(view, columns, precision.whole)
        return cls(layers, columns, labels, precision, dict(view.update), view.batch)

    @property
    def left(self) -> int:
        """Records that are not named."""
        return self.batch - int(sum(float(done.times.sum()) for done in self.rounds))

    @property
    def named(self) -> Tensor:
        """(rows, cells) of all rounds."""
        return torch.cat([self.columns.known[:0], *(done.cells for done in self.rounds)])

    def test(self) -> SpanTest:
        """Both row spaces of what is left."""
        first, second = (
            None if matrix is None else GradientRowSpace.of(matrix, edge)
            for matrix, edge in zip(
                self.layers.matrices(self.update), self.precision.edges, strict=True
            )
        )
        assert first is not None
        return SpanTest(self.layers, self.columns, first, second)

    def run(self, generator: torch.Generator, patience: int, advance: Advance) -> None:
        """Search and peel until nothing is left, or so many rounds in a row name no row."""
        stale = 0
        while self.left > 0 and stale < patience:
            test = self.test()
            if test.first.rank == 0 or (test.second is not None and test.second.rank == 0):
                break
            done = self._round(test, generator, plainly=stale < 2)
            stale = stale + 1 if done is None else 0
            if done is not None:
                self.rounds.append(done)
                advance(int(done.times.sum()))

    def _round(
        self, test: SpanTest, generator: torch.Generator, *, plainly: bool
    ) -> PeelingRound | None:
        """The rows that one batch of starts names."""
        place = allowed(self.layers, self.columns, test.first)
        if place is None:
            return None
        z = place.nearest(self.layers.entered(self.columns.drawn(_STARTS, generator)))
        easy = test.second is not None and len(test.second.rest) > _EASY * test.first.rank
        schedule = PLAIN if easy and plainly else ANNEALED
        found = test.candidates(*CandidateSearch(self.layers, place, test.second).run(z, schedule))
        self.searched += _STARTS
        cells, residual = test.polished(found)
        order = residual.argsort()
        order = order[residual[order] < self.precision.accept]
        order = order[self.columns.first_of_each(cells[order])]
        cells, residual = cells[order], residual[order]
        if not self.precision.exact and len(cells):
            good = residual < limit_of(test, cells, generator)
            cells, residual = cells[good], residual[good]
        if not len(cells):
            return None
        labels, times = self.labels.of(test, cells)
        good = (times > 0) & (times.cumsum(dim=0) <= self.left)
        if not bool(good.any()):
            return None
        parts = cells[good], labels[good], times[good], residual[good]
        return self._taken(PeelingRound(test, *parts, test.spreads(cells[good])))

    def _taken(self, found: PeelingRound) -> PeelingRound | None:
        """The rows, taken out of the update; without those of which the rank tells that they blend.

        Two rows of equal categories and alike numbers may look like one row twice. Then the rank
        of the second layer does not fall by one with it.
        """
        terms = self.labels.gradients(found.cells, found.labels, tuple(self.update))
        shares, kept = found.times / self.batch, list[int]()
        for row, times in enumerate(found.times.tolist()):
            after = {n: self.update[n] - shares[row] * part[row] for n, part in terms.items()}
            if times == 1 or self._rank(after) == self._rank(self.update) - 1:
                self.update = after
                kept.append(row)
        return found.only(torch.tensor(kept)) if kept else None

    def _rank(self, update: Update) -> int:
        first, second = self.layers.matrices(update)
        matrix, edge = (first, 0) if second is None else (second, 1)
        return int((torch.linalg.svdvals(matrix) > self.precision.edges[edge]).sum())
