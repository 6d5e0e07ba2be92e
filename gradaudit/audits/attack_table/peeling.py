"""Rows named one by one and taken out of the gradient, until nothing is left of it.

What is found is subtracted from every layer, after which fewer rows are in the way of the rest;
nothing left proves that all rows are named.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.polishing import SpanTest, limit_of
from gradaudit.audits.attack_table.search import ANNEALED, PLAIN, CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision
from gradaudit.audits.attack_table.structure import TwoLayers, bias_of
from gradaudit.audits.attack_table.terms import GradientTerms, joint_fit
from gradaudit.progress import Advance

_SLACK = 1.1
"""The largest singular value of noise is taken to be at most so many times that of its law."""
_ALIKE = 100.0
"""Residuals over the least up to which candidates are made decoys of: a worse one with a category
swapped may be a row of the batch."""
_PLAINLY = 2
"""Rounds without a row up to which the pull may be left out."""
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
        terms: gives rows' labels and gradients.
        precision: of the update.
        update: what is left.
        batch: records behind the whole update.
        rounds: those that named rows.
        searched: starts so far.
        explained: whether the rows' gradients are the update but for its noise.
    """

    layers: TwoLayers
    columns: TableColumns
    terms: GradientTerms
    precision: Precision
    update: Update
    batch: int
    rounds: list[PeelingRound] = field(default_factory=list)
    searched: int = 0
    explained: bool = False

    @classmethod
    def of(cls, view: AttackerView, layers: TwoLayers, columns: TableColumns) -> Self:
        """The whole update."""
        precision = Precision.of(view.update, layers.matrices(view.update), view.batch)
        terms = GradientTerms(view, columns, precision.whole)
        return cls(layers, columns, terms, precision, dict(view.update), view.batch)

    def refine(self) -> None:
        """Fit the numbers of all rows at once, where that leaves nothing but noise."""
        if not self.rounds:
            return
        cells, labels, times = (
            torch.cat([getattr(done, name) for done in self.rounds])
            for name in ("cells", "labels", "times")
        )
        fit = joint_fit(self.terms, dict(self.terms.view.update), cells, labels, times)
        self.explained = fit is not None and self.left == 0 and self._is_noise(fit.left)
        if fit is not None and self.explained:
            self.update = fit.left
            sizes = [len(done.cells) for done in self.rounds]
            refined = torch.split(fit.cells, sizes), torch.split(fit.spread, sizes)
            parts = zip(self.rounds, *refined, strict=True)
            self.rounds = [replace(done, cells=c, spread=s) for done, c, s in parts]

    def replaces(self, row: Tensor, label: Tensor) -> bool:
        """Whether a row (cells,) in the place of a named one leaves nothing but noise as well."""
        named = [(done.cells, done.labels) for done in self.rounds]
        cells = torch.cat([row[None], *(cells for cells, _ in named)])
        labels = torch.cat([label[None], *(labels for _, labels in named)])
        parts = self.terms.gradients(cells, labels, tuple(self.update))
        share = self.terms.shares(labels, torch.ones(len(labels)))
        for number in range(1, len(cells)):
            changed = {
                name: self.update[name] + share[number] * part[number] - share[0] * part[0]
                for name, part in parts.items()
            }
            if self._is_noise(changed):
                return True
        return False

    def _is_noise(self, update: Update) -> bool:
        """Whether no singular value of both layers is above what noise of their rms makes."""
        for name in filter(None, (self.layers.first, self.layers.second)):
            matrix = torch.cat([update[name], update[bias_of(name)][:, None]], dim=1)
            outputs, inputs = matrix.shape
            law = float(matrix.square().mean().sqrt()) * (outputs**0.5 + inputs**0.5)
            if float(torch.linalg.matrix_norm(matrix, 2)) > _SLACK * law:
                return False
        return True

    def unnamed(self) -> dict[str, JsonValue]:
        """How many rows are not named, and why, for the report.

        Rows that no singular value of either layer stands for lie below the noise, or below the
        precision of the numbers; the others are there, but were not found.
        """
        seen = min(self.left, max(self._ranks(self.update)))
        below = "below_noise" if self.precision.noisy else "below_precision"
        return {"not_found": seen, below: self.left - seen}

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
            done = self._round(test, generator, stale)
            stale = stale + 1 if done is None else 0
            if done is not None:
                self.rounds.append(done)
                advance(int(done.times.sum()))

    def _round(self, test: SpanTest, generator: torch.Generator, stale: int) -> PeelingRound | None:
        """The rows that one batch of starts names, after so many that named none.

        Every other of these tests with the first layer alone where that tells more rows apart.
        """
        second = test.second
        if stale % 2 and second is not None and test.first.rank > second.rank:
            test = replace(test, second=None)
        place = allowed(self.layers, self.columns, test.first)
        if place is None:
            return None
        z = starts(self.layers, self.columns, place, test.second, generator)
        easy = test.second is not None and len(test.second.rest) > _EASY * test.first.rank
        schedule = PLAIN if easy and stale < _PLAINLY else ANNEALED
        rough = test.candidates(*CandidateSearch(self.layers, place, test.second).run(z, schedule))
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
        if not self.precision.exact and len(cells):
            limit = limit_of(test, cells[residual <= _ALIKE * residual[0]], generator)
            good = (residual < limit) & (self._apart(test, cells) | self.precision.noisy)
            cells, residual = cells[good], residual[good]
        if not len(cells):
            return None
        rows, labels, times = self.terms.of(test, cells)
        fits = times.cumsum(dim=0) <= self.left
        rows, labels, times = rows[fits], labels[fits], times[fits]
        if not len(rows):
            return None
        terms = cells[rows], labels, times, residual[rows]
        return self._taken(PeelingRound(test, *terms, test.spreads(cells[rows])))

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
        space, name = test.second, str(self.layers.second)
        if space is None or not self.terms.view.classes:
            return None
        cells = self.columns.as_known(cells)
        cells = cells[self.columns.first_of_each(cells)]
        hidden = self.layers.hidden(self.layers.entered(cells))
        extended = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
        extended = extended / extended.norm(dim=1, keepdim=True)
        near = torch.linalg.vector_norm(extended @ space.rest.T, dim=1) >= self.precision.accept
        targets = self.terms.targets
        labels, rows = targets.repeat(len(cells)), torch.arange(len(cells))
        rows = rows.repeat_interleave(len(targets))
        parts = self.terms.gradients(cells[rows], labels, (name, bias_of(name)))
        term = torch.cat([parts[name], parts[bias_of(name)][:, :, None]], dim=2)
        share = self.terms.shares(labels, torch.ones(len(labels)))[:, None, None]
        whole = self.layers.matrices(self.update)[1]
        assert whole is not None
        _, values, right = torch.linalg.svd(whole - share * term)
        missed = torch.linalg.vector_norm(extended @ right[:, space.rank :].mT, dim=2)
        fitting = (
            (missed < self.precision.accept) & near & (rows[:, None] != torch.arange(len(cells)))
        )
        count = fitting.sum(dim=1)
        count[values[:, space.rank] > self.precision.edges[1]] = 0
        best = count.argmax(dim=0, keepdim=True)
        if not int(count[best]):
            return None
        row = cells[rows[best]]
        residual, once = test.residuals(row), torch.ones(1, dtype=torch.float64)
        return self._taken(PeelingRound(test, row, labels[best], once, residual, test.spreads(row)))

    def _taken(self, found: PeelingRound) -> PeelingRound | None:
        """The rows, taken out of the update; without those of which the rank tells that they blend.

        Two rows of equal categories and alike numbers may look like one row twice. Then the rank
        of the second layer does not fall by one with it.
        """
        terms = self.terms.gradients(found.cells, found.labels, tuple(self.update))
        shares, kept = self.terms.shares(found.labels, found.times), list[int]()
        last = 0 if self.layers.second is None else 1
        for row, times in enumerate(found.times.tolist()):
            after = {n: self.update[n] - shares[row] * part[row] for n, part in terms.items()}
            if times == 1 or self._ranks(after)[last] == self._ranks(self.update)[last] - 1:
                self.update = after
                kept.append(row)
        return found.only(torch.tensor(kept)) if kept else None

    def _ranks(self, update: Update) -> tuple[int, int]:
        """Singular values of both layers above rounding and noise."""
        counts = [
            0 if matrix is None else int((torch.linalg.svdvals(matrix) > edge).sum())
            for matrix, edge in zip(self.layers.matrices(update), self.precision.edges, strict=True)
        ]
        return counts[0], counts[1]
