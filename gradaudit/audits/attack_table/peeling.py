"""Rows named one by one and taken out of the gradient, until nothing is left of it.

What is found is subtracted from every layer, after which fewer rows are in the way of the rest;
nothing left proves that all rows are named.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.search import ANNEALED, PLAIN, CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision, SpanTest, limit_of
from gradaudit.audits.attack_table.structure import TwoLayers, bias_of
from gradaudit.audits.attack_table.terms import GradientTerms, is_gradient
from gradaudit.progress import Advance

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView, Update


_PATIENCE = 12
"""Rounds of 64 starts without a new row after which the search stops."""
_EASY = 1.3
"""Equations at the second layer over dimensions at the first, from which on no pull is needed."""
_ALIKE = 100.0
"""Residuals over the least up to which candidates are made decoys of: a worse one with a category
swapped may be a row of the batch."""

_LAW = 4.0
"""Variances of noise that the mean square outside a span may have for a row to be named. Of 32 rows
of Adult behind noise of 1e-3 of the rms it is .7 to 4 for the batch's, and beyond 49 for 95 % of
decoys at the second layer."""


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


@dataclass
class Peeling:
    """An update from which found rows are subtracted one after the other.

    Attributes:
        layers, columns: what the model begins with, and the table's.
        terms: gives rows' labels and gradients.
        precision: of the update.
        update: what is left.
        batch: records behind the whole update.
        rounds: those that named rows.
        searched: starts so far.
    """

    layers: TwoLayers
    columns: TableColumns
    terms: GradientTerms
    precision: Precision
    update: Update
    batch: int
    rounds: list[PeelingRound] = field(default_factory=list)
    searched: int = 0

    @classmethod
    def of(cls, view: AttackerView, layers: TwoLayers, columns: TableColumns) -> Self:
        """Begin with the whole update, of which no row is named yet."""
        one, two = layers.matrices(view.update)
        alone = two if is_gradient(view) else None
        precision = Precision.of(view.update, (one, alone), view.batch)
        terms = GradientTerms(view, columns, precision.whole)
        return cls(layers, columns, terms, precision, dict(view.update), view.batch)

    def all_of(self, name: str) -> Tensor:
        """An attribute of the rows of all rounds, of which there is one or more."""
        return torch.cat([getattr(done, name) for done in self.rounds])

    @property
    def named(self) -> Tensor:
        """(rows, cells) of all rounds."""
        return self.all_of("cells") if self.rounds else self.columns.known[:0]

    @property
    def left(self) -> int:
        """Records that are not named."""
        return self.batch - int(sum(float(done.times.sum()) for done in self.rounds))

    def unnamed(self) -> dict[str, JsonValue]:
        """How many rows are not named, and why, for the report.

        Rows that no singular value of either layer stands for lie below the noise, or below the
        precision of the numbers; the others are there, but were not found.
        """
        seen = min(self.left, max(self._ranks(self.update)))
        below = "below_noise" if self.precision.noisy else "below_precision"
        return {"not_found": seen, below: self.left - seen}

    def test(self) -> SpanTest:
        """Returns both layers' row spaces of the update without the rows found so far."""
        pairs = zip(self.layers.matrices(self.update), self.precision.edges, strict=True)
        first, second = (
            None if matrix is None else GradientRowSpace.of(matrix, edge) for matrix, edge in pairs
        )
        assert first is not None
        return SpanTest(self.layers, self.columns, first, second)

    def run(self, generator: torch.Generator, advance: Advance) -> None:
        """Search and peel until nothing is left, or too many rounds in a row name no row."""
        stale = 0
        while self.left > 0 and stale < _PATIENCE:
            test = self.test()
            if test.first.rank == 0 or (test.second is not None and test.second.rank == 0):
                break
            done = self._round(test, generator, stale)
            stale = stale + 1 if done is None else 0
            if done is not None:
                self.rounds.append(done)
                advance(int(done.times.sum()))

    def passing(self, test: SpanTest, decoys: Tensor) -> int:
        """How many decoys stand for a term of the gradient as well.

        After several local steps all do: the rows' own terms are known.
        """
        if not is_gradient(self.terms.view):
            return len(decoys)
        return len(self.terms.of(test, decoys)[0]) if len(decoys) else 0

    def _round(self, test: SpanTest, generator: torch.Generator, stale: int) -> PeelingRound | None:
        """The rows that one batch of starts names, after so many that named none.

        Every other of these tests with the first layer alone where that tells more rows apart.
        """
        alone = test.second is not None and test.first.rank > test.second.rank
        if stale % 2 and alone and not self.precision.noisy:
            test = replace(test, second=None)
        place = allowed(self.layers, self.columns, test.first)
        if place is None:
            return None
        z = starts(test, place, generator)
        found = place.at(z), z.new_zeros(len(z))
        if test.second is not None:
            easy = stale < 2 and len(test.second.rest) > _EASY * test.first.rank
            search = CandidateSearch(self.layers, place, test.second)
            found = search.run(z, PLAIN if easy else ANNEALED)
        rough = test.candidates(*found)
        self.searched += len(z)
        polished, residual = test.polished(rough)
        done = self._named(test, polished, residual, generator)
        if done is None and stale and self.precision.exact and len(polished):
            return self._unlocking(test, polished)
        return done

    def _named(
        self, test: SpanTest, cells: Tensor, residual: Tensor, generator: torch.Generator
    ) -> PeelingRound | None:
        """The rows that pass the test of both spans and stand for a term of the gradient."""
        order = residual.argsort()
        order = order[residual[order] < self.precision.accept]
        order = order[self.columns.first_of_each(cells[order])]
        cells, residual = cells[order], residual[order]
        if self.precision.noisy:
            cells = cells[test.misfit(cells, self.precision.noise) < _LAW]
        elif not self.precision.exact and len(cells):
            limit = limit_of(test, cells[residual <= _ALIKE * residual[0]], generator)
            cells = cells[(residual < limit) & self._apart(test, cells)]
        rows, labels, times = self.terms.of(test, cells)
        fits = times.cumsum(dim=0) <= self.left
        return self._taken(test, cells[rows[fits]], labels[fits], times[fits])

    def _apart(self, test: SpanTest, cells: Tensor) -> Tensor:
        """Whether rows, the best first, cannot be one that is named or better, (rows,).

        A row that was taken out with numbers that are a little off, or that is not polished to its
        end, may seem to be there once more: its numbers then lie within both rows' precision.
        """
        spread = test.spreads(cells)
        spreads = torch.cat([*(done.spread for done in self.rounds), spread])
        room = spread[:, None] + spreads[None]
        same = self.columns.alike(cells, torch.cat([self.named, cells]), room)
        return ~same.tril(len(self.named) - 1).any(dim=1)

    def _unlocking(self, test: SpanTest, cells: Tensor) -> PeelingRound | None:
        """The row without which other rows pass the test.

        Where the δ of some rows are linearly dependent, none of these rows lies in the second row
        space, but all come near. Without one of them the others lie in it exactly.
        """
        space = test.second
        if space is None or not self.terms.view.classes:
            return None
        cells = self.columns.as_known(cells)
        cells = cells[self.columns.first_of_each(cells)]
        targets, name = self.terms.targets, bias_of(str(self.layers.second))
        labels = targets.repeat(len(cells))
        rows = torch.arange(len(cells)).repeat_interleave(len(targets))
        deltas = self.terms.gradients(cells[rows], labels, (name,))[name]
        fits = space.outside_columns(deltas) < self.precision.accept
        rows, labels = rows[fits], labels[fits]
        if not len(rows):
            return None
        hidden = self.layers.hidden(cells)
        near = space.outside(hidden).norm(dim=1) >= self.precision.accept
        others = rows[:, None] != torch.arange(len(cells))
        share = self.terms.shares(labels, torch.ones(len(labels)))
        missed = space.outside_without(hidden, rows, share[:, None] * deltas[fits])
        count = ((missed < self.precision.accept) & near & others).sum(dim=1)
        best = count.argmax(dim=0, keepdim=True)
        once = torch.ones(1, dtype=torch.float64)
        return self._taken(test, cells[rows[best]], labels[best], once) if count[best] else None

    def _taken(
        self, test: SpanTest, cells: Tensor, labels: Tensor, times: Tensor
    ) -> PeelingRound | None:
        """Subtract found rows from the update, but for those that blend two rows into one.

        Two rows of equal categories and alike numbers may look like one row twice. Then the rank
        of the second layer does not fall by one with it.
        """
        if not len(cells):
            return None
        terms = self.terms.gradients(cells, labels, tuple(self.update))
        shares, kept = self.terms.shares(labels, times), list[int]()
        last = 0 if self.layers.second is None else 1
        for row, count in enumerate(times.tolist()):
            after = {n: self.update[n] - shares[row] * part[row] for n, part in terms.items()}
            if count == 1 or self._ranks(after)[last] == self._ranks(self.update)[last] - 1:
                self.update = after
                kept.append(row)
        cells = cells[kept]
        rest = test.residuals(cells), test.spreads(cells)
        return PeelingRound(test, cells, labels[kept], times[kept], *rest) if kept else None

    def _ranks(self, update: Update) -> tuple[int, int]:
        """Count the singular values of both layers above rounding and noise."""
        counts = [
            0 if matrix is None else int((torch.linalg.svdvals(matrix) > edge).sum())
            for matrix, edge in zip(self.layers.matrices(update), self.precision.edges, strict=True)
        ]
        return counts[0], counts[1]
