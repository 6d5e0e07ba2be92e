"""Rows behind an update of several local steps, of which the first layer's row space holds.

The first layer's part of an update is M = [dW₁ | db₁] = Σᵢ Dᵢ [xᵢ; 1]ᵀ, after several local steps
too: Dᵢ is the sum over steps of what record i sent back. A ReLU that is off for a record in every
step sends nothing back, which makes Dᵢ sparse. Of the units that are off at xᵢ M has the other
records' part, whose rank is lower by one, and the one direction w that these units take to nothing
is dual to xᵢ: [xⱼ; 1]ᵀw = 0 for j ≠ i, and Mw = Dᵢ (the sparsity that SPEAR uses: Dimitrov et al.
2024, section 3). It is the same for all points that leave about these units off, so that
the attacker's own records tell many. With a direction of every record the records themselves are
the inverse of the matrix of directions, to the precision of the update.

Behind other activations points of the span that are whole (one category a column) are ranked by the
second layer, whose inputs move with the weights: what of a row's input at the mean weights lies
outside of its span is small, and never nothing. Of these none is certified: a combination of rows
such as x₁ − x₂ + x₃ may be whole as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradaudit.audits.attack_table.peeling import Peeling, PeelingRound
from gradaudit.audits.attack_table.search import CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace, SpanTest, with_one
from gradaudit.audits.attack_table.structure import TwoLayers, bias_of, two_layers
from gradaudit.audits.attack_table.terms import local_steps
from gradaudit.errors import NotApplicable
from gradaudit.progress import Advance

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView


_ROUNDS, _PATIENCE = 48, 12
_EXACT, _ROUNDED = 1e-8, 1e-3
"""Residuals at the first layer up to which a row is in its span."""
_SCALE = 4.0
"""The second layer's weight, which is less than of a gradient, as its span is only about right."""
_FEW = 2
"""Records without a direction up to which those are named that the other directions leave."""
_BLURRED, _TOLD = 30.0, 0.02
"""Over rounding of the directions, what numbers may be off at most for it: rows of equal categories
blend without a trace. Deviations beyond which a number is not told."""
_INDEPENDENT = 1e-6
_ALONG = 0.9
"""Cosine between what a row sent back, if the rows are right, and its gradient, from which on it is
named behind other activations. Of eight batches of 16 rows of Adult behind tanh and GELU 4 of 118
named rows are false, and 12 of 126 without this."""
_SPARE = 4, 8, 16, 24
"""Units beyond the rank that are taken to be off, those that are so most surely."""
_TRIES = 256
_CLOSE = 1e-9
_APART = 30.0
"""Over rounding, what the other directions must at least be taken to."""
_DECIMALS = 4
_ALONE = 0.999
"""Leverage of one unit, from which on it alone tells a direction from others."""
_DEPENDENT = 1e-3
_OFF, _AWAY = 3.0, 0.2
"""Changes of a unit's input by which it is off surely, and the share of these units that a record
may have sent something back through (the worst of 16 records after 16 steps at rate .3: three)."""


def after_steps(view: AttackerView, steps: float) -> AttackerView:
    """The view with a model whose weights are those after a share of the update, in local steps."""
    assert view.training is not None
    share = view.training.rate * steps / local_steps(view)
    parameters = {
        name: weight - share * view.update[name] if name in view.update else weight
        for name, weight in view.model.parameters.items()
    }
    return replace(view, model=replace(view.model, parameters=parameters))


def between_steps(view: AttackerView) -> AttackerView:
    """The view with a model whose weights are the mean of those at which gradients were computed.

    The second layer's inputs at these weights are the mean over local steps to the first order.
    """
    return after_steps(view, (local_steps(view) - 1) / 2)


@dataclass(frozen=True)
class InactiveUnits:
    """The first layer's units, and the row space of its update.

    Attributes:
        ends: the layers before and after the local steps.
        space: of the first layer's update.
        edge: the largest singular value of rounding or noise.
    """

    ends: tuple[TwoLayers, TwoLayers]
    space: GradientRowSpace
    edge: float

    @cached_property
    def live(self) -> Tensor:
        """The units that some record sent something back through."""
        sent = (self.space.left * self.space.values).norm(dim=1)
        live: Tensor = (sent > self.edge).nonzero()[:, 0]
        return live

    @cached_property
    def left(self) -> Tensor:
        """The left singular vectors by unit, (live, rank)."""
        return self.space.left[self.live]

    def off(self, cells: Tensor) -> Tensor:
        """How surely units are off at points: their input over its change, negative where off.

        (points, live); it is the larger of both ends.
        """
        before, after = (layers.before(cells)[:, self.live] for layers in self.ends)
        return torch.maximum(before, after) / ((before - after).abs() + _CLOSE)

    def directions(self, cells: Tensor, draws: torch.Generator | None = None) -> Tensor:
        """Find directions w that silent units of one record determine, from points (points, cells).

        At each point the units that are surely off are taken for those of one record, and the
        direction that they take to nothing is kept if it is the only one. Directions (found, rank)
        are in coordinates in which M is ``space.left``. A direction that rests on a single unit is
        left out, as two records whose Dᵢ are in proportion at the other units share it. With
        ``draws`` random subsets of the units are tried, some of which avoid units that were on in
        between.
        """
        off = self.off(cells)
        if draws is not None:
            off = off.repeat_interleave(_TRIES, dim=0)
            off = off * torch.rand(off.shape, generator=draws).to(off)
        order, found = off.argsort(dim=1), [self.left[:0]]
        for spare in _SPARE:
            units = order[:, : self.space.rank + spare]
            if units.shape[1] < self.space.rank + spare:
                break
            units = units[off.gather(1, units).amax(dim=1) < 0].sort(dim=1).values
            units = torch.unique(units, dim=0)
            values, right = torch.linalg.svd(self.left[units], full_matrices=False)[1:]
            last = right[:, -1]
            found.append(last[self._is_single(values, last)])
        every = torch.cat(found)
        sign = every.gather(1, every.abs().argmax(dim=1, keepdim=True)).sign()
        keys = (every * sign).round(decimals=_DECIMALS).tolist()
        every = every[[*{tuple(key): place for place, key in enumerate(keys)}.values()]]
        return self.basis(every[[self._holds(direction) for direction in every]])

    def rounding(self, directions: Tensor) -> Tensor:
        """Bound what rounding or noise makes of a product Mw that should be zero, (directions,)."""
        length: Tensor = (directions / self.space.values).norm(dim=-1)
        return self.edge * length

    def basis(self, directions: Tensor) -> Tensor:
        """The sparsest directions of which none depends linearly on those before, (found, rank)."""
        order = self._zeros(directions).sum(dim=1).argsort(descending=True)
        return directions[order[independent(directions[order], self.space.rank, _DEPENDENT)]]

    def dual(self, directions: Tensor) -> GradientRowSpace:
        """Compute the span of the other records, which all of these directions take to zero."""
        rows = self.space.rows
        if len(directions):
            rows = torch.linalg.svd(directions / self.space.values)[2][len(directions) :] @ rows
        return GradientRowSpace.of(rows, 0.5)

    def along(self, direction: Tensor, entered: Tensor) -> Tensor:
        """Compute the product of points (points, inputs) with a direction, (points,)."""
        return (with_one(entered) @ self.space.rows.T / self.space.values) @ direction

    def term(self, direction: Tensor, entered: Tensor) -> GradientRowSpace:
        """Compute the row space of Dᵢ [xᵢ; 1]ᵀ by its direction (rank,) and input (1, inputs)."""
        sent = self.space.left @ direction / self.along(direction, entered)
        matrix = torch.outer(sent, with_one(entered)[0])
        return GradientRowSpace.of(matrix, float(matrix.norm()) / 2)

    def agrees(self, direction: Tensor, cells: Tensor) -> bool:
        """Whether units that are surely off at a row (cells,) are those that sent nothing back."""
        off = self.off(cells[None])[0] < -_OFF
        sent = ~self._zeros(direction[None])[0]
        return int((sent & off).sum()) <= _AWAY * int(off.sum())

    def _zeros(self, directions: Tensor) -> Tensor:
        """Tell which units send nothing back along each direction, (directions, live)."""
        return (directions @ self.left.T).abs() < self.rounding(directions)[:, None]

    def _is_single(self, values: Tensor, last: Tensor) -> Tensor:
        """Whether one direction, and no other, is taken to nothing, by falling singular values."""
        rounding = self.rounding(last)
        return (values[..., -1] < rounding) & (values[..., -2] > _APART * rounding)

    def _holds(self, direction: Tensor) -> bool:
        """Whether a direction's silent units determine it, even without any one of them."""
        units = self.left[self._zeros(direction[None])[0]]
        left, values, right = torch.linalg.svd(units, full_matrices=False)
        if len(left) < self.space.rank or not self._is_single(values, right[-1]):
            return False
        return float(left[:, : self.space.rank - 1].square().sum(dim=1).max()) < _ALONE


@dataclass(frozen=True)
class LocalRows:
    """The rows behind an update of several local steps, found in its first row space.

    Attributes:
        peeling: of the view between the steps; named rows go to its rounds.
        test: the first row space, and the second's that is about right.
        accept: the residual at the first layer up to which a row is in its span.
        draws: of all randomness.
    """

    peeling: Peeling
    test: SpanTest
    accept: float
    draws: torch.Generator

    @classmethod
    def of(cls, peeling: Peeling, draws: torch.Generator) -> LocalRows:
        """The row spaces of an update.

        Raises:
            NotApplicable: the first layer's span has fewer dimensions than there are rows.
        """
        layers, batch = peeling.layers, peeling.batch
        one, two = layers.matrices(peeling.update)
        first, second = GradientRowSpace.of(one, peeling.precision.edges[0]), None
        if first.rank < batch:
            raise NotApplicable(
                f"the span of {layers.first} has {first.rank} dimensions for {batch} rows of "
                "several local steps; attack smaller batches, or try --method tableak"
            )
        if two is not None:
            values = torch.linalg.svdvals(two)
            second = GradientRowSpace.of(two, float(values[min(batch, len(values) - 1)]))
        test = SpanTest(layers, peeling.columns, first, second)
        return cls(peeling, test, _EXACT if peeling.precision.exact else _ROUNDED, draws)

    def found(self, view: AttackerView, advance: Advance) -> list[PeelingRound]:
        """The rows, each as a round of its own; the view is that of the update."""
        if self.test.layers.activation != "relu":
            return self._ranked(advance)
        one, two = (
            two_layers(after_steps(view, steps).model, self.test.columns, view.update)
            for steps in (0, local_steps(view))
        )
        units = InactiveUnits((one, two), self.test.first, self.peeling.precision.edges[0])
        return list(self._told_apart(units, self._directions(units, advance)))

    def _directions(self, units: InactiveUnits, advance: Advance) -> Tensor:
        """A direction of each record (found, rank), searched where those known leave records."""
        columns, stale = self.test.columns, 0
        known = units.directions(columns.known)
        while len(known) < units.space.rank and stale < _PATIENCE:
            cells = self._points(units.dual(known), guided=stale % 2 == 0)
            more = units.directions(torch.cat([cells, columns.rounded(cells)]))
            if stale % 2:
                whole = self._whole(units.dual(known), guided=True)
                more = torch.cat([more, units.directions(whole, self.draws)])
            grown = units.basis(torch.cat([known, more]))
            stale = 0 if len(grown) > len(known) else stale + 1
            known = grown
            advance(1)
        return known

    def _points(self, space: GradientRowSpace, *, guided: bool) -> Tensor:
        """Points of a part of the first row space: its corners, or drawn to the second."""
        test = replace(self.test, first=space, second=self.test.second if guided else None)
        place = allowed(test.layers, test.columns, space)
        if place is None or not len(place.cells_step):
            return test.columns.known[:0] if place is None else place.cells[None]
        z = starts(test, place, self.draws)
        if test.second is None:
            return place.at(z)
        return CandidateSearch(test.layers, place, test.second, _SCALE).run(z)[0]

    def _whole(self, space: GradientRowSpace, *, guided: bool = False) -> Tensor:
        """The different whole rows in a part of the first row space (rows, cells), the best first.

        Numbers that the first layer leaves free are such that the second's misfit is least.
        """
        alone, both = (replace(self.test, first=space, second=s) for s in (None, self.test.second))
        cells, residual = alone.polished(alone.columns.rounded(self._points(space, guided=guided)))
        cells, residual = alone.polished(both.polished(cells[residual < self.accept])[0])
        cells = cells[residual < self.accept]
        cells = cells[both.residuals(cells).argsort()]
        return cells[alone.columns.first_of_each(cells)]

    def _told_apart(self, units: InactiveUnits, known: Tensor) -> Iterator[PeelingRound]:
        """Yield each direction's row, and the few rows for which no direction was found.

        A direction's row lies where all other directions are zero. It is named if it is the only
        whole row there, and if the units that sent nothing back are off for it.
        """
        every, missing = torch.arange(len(known)), units.space.rank - len(known)
        entered = self.test.layers.entered
        blurred = _BLURRED * float(units.rounding(known).amax()) if len(known) else 0.0
        for place, direction in enumerate(known):
            space = units.dual(known[every != place])
            cells = self._whole(space)
            cells = cells[units.along(direction, entered(cells)).abs() > self.accept]
            codes = self.test.columns.codes(cells)
            if len(cells) and bool((codes == codes[0]).all()) and units.agrees(direction, cells[0]):
                term = units.term(direction, entered(cells[:1]))
                yield self._round(space, term, cells[:1], blurred, certain=missing == 0)
        space = units.dual(known)
        rest = self._whole(space) if 0 < missing <= _FEW else known[:0]
        if 0 < len(rest) <= missing:
            yield self._round(space, self.test.first, rest, blurred, certain=False)

    def _round(
        self,
        space: GradientRowSpace,
        term: GradientRowSpace,
        cells: Tensor,
        blurred: float,
        *,
        certain: bool,
    ) -> PeelingRound:
        """Make the round of rows in a part of the row space, with labels and numbers' precision.

        Labels are read off the term. Numbers have no precision if two other rows of equal
        categories are not told apart.
        """
        test = replace(self.test, first=term, second=None)
        inside = replace(test, first=space)
        spread = inside.spreads(cells) + blurred
        spread = torch.where(spread < _TOLD, spread, torch.inf)
        labels = self.peeling.terms.nearest(test, cells).double()
        once = cells.new_ones(len(cells))
        residual = inside.residuals(cells) if certain else torch.full_like(once, torch.inf)
        return PeelingRound(inside, cells, labels, once, residual, spread)

    def _ranked(self, advance: Advance) -> list[PeelingRound]:
        """Rank the whole rows of the first span by their misfit at the second layer.

        As many are taken as there are records. Each is affinely independent of those before, and
        what it must have sent back, if these are the rows, lies along its gradient.
        """
        test, terms = self.test, self.peeling.terms
        cells = [test.columns.known[:0]]
        for number in range(_ROUNDS):
            cells.append(self._whole(test.first, guided=bool(number % 2)))
            advance(1)
        every = torch.cat(cells)
        every = every[test.columns.first_of_each(every)]
        if test.second is not None:
            every = every[test.second.outside(test.layers.hidden(every)).norm(dim=1).argsort()]
        every = every[independent(with_one(test.layers.entered(every)), self.peeling.batch)]
        if not len(every):
            return []
        labels = terms.nearest(test, every)
        name = bias_of(test.layers.first)
        wanted = terms.gradients(every, labels, (name,))[name]
        one = test.layers.matrices(self.peeling.update)[0]
        sent = one @ torch.linalg.pinv(with_one(test.layers.entered(every)))
        near = torch.cosine_similarity(sent.T, wanted) > _ALONG
        every, labels = every[near], labels[near].double()
        once = every.new_ones(len(every))
        named = PeelingRound(test, every, labels, once, once / 0, test.spreads(every))
        return [named] if len(every) else []


def independent(vectors: Tensor, count: int, share: float = _INDEPENDENT) -> Tensor:
    """Places of the first vectors (rows, size) that are linearly independent of those before.

    There are at most ``count``, and of each as large a share lies outside the others' span.
    """
    kept, basis = list[int](), vectors[:0]
    for place, vector in enumerate(vectors):
        rest = vector - vector @ basis.T @ basis
        rest = rest - rest @ basis.T @ basis
        if float(rest.norm()) > share * float(vector.norm()) and len(kept) < count:
            basis = torch.cat([basis, (rest / rest.norm())[None]])
            kept.append(place)
    return torch.tensor(kept, dtype=torch.long)
