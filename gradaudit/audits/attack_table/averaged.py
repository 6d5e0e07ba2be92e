"""Rows behind an update of several local steps: in the first layer's span, ranked by the second's.

Every step's gradient of the first layer has its rows in the span of what comes in, so the span of
their sum holds, while the second layer's inputs move with the weights: what of a row's input at the
mean weights lies outside of the second span is small, and never nothing. Points of the first span
that are whole (one category a column) are ranked by it; as many as there are records are taken,
each linearly independent of those before. Nothing is certified: a combination of rows such as
x₁ − x₂ + x₃ may be whole as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradaudit.audits.attack_table.base import TableAnswer, TableSetting, guessed
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.search import CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision, SpanTest, with_one
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.progress import Advance, Progress

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView


_LIKELY = 0.9
"""The certainty of a cell of a row that is ranked and not tested."""
_ROUNDS = 48
_EXACT, _ROUNDED = 1e-8, 1e-3
"""Residuals at the first layer up to which a row is in its span."""
_SCALE = 4.0
"""The second layer's weight, which is less than of a gradient, as its span is only about right."""
_INDEPENDENT = 1e-6


def between_steps(view: AttackerView) -> AttackerView:
    """The view with a model whose weights are the mean of those at which gradients were computed.

    The second layer's inputs at these weights are the mean over local steps to the first order.
    """
    assert view.training is not None
    steps = len(view.training.batches(view.batch))
    share = view.training.rate * (steps - 1) / (2 * steps)
    parameters = {
        name: weight - share * view.update[name] if name in view.update else weight
        for name, weight in view.model.parameters.items()
    }
    return replace(view, model=replace(view.model, parameters=parameters))


def of_several_steps(peeling: Peeling, setting: TableSetting, progress: Progress) -> TableAnswer:
    """The answer for an update of several local steps, of which nothing is certified.

    Raises:
        NotApplicable: the first layer's span has fewer dimensions than there are rows.
    """
    columns, batch, layers = peeling.columns, peeling.batch, peeling.layers
    one, two = layers.matrices(peeling.update)
    precision = Precision.of(peeling.update, (one, None), batch)
    first, second = GradientRowSpace.of(one, precision.edges[0]), None
    if first.rank < batch:
        raise NotApplicable(
            f"the span of {layers.first} has {first.rank} dimensions for {batch} rows of several "
            "local steps; attack smaller batches, or try --method tableak"
        )
    if two is not None:
        values = torch.linalg.svdvals(two)
        second = GradientRowSpace.of(two, float(values[min(batch, len(values) - 1)]))
    test, answer = SpanTest(layers, columns, first, second), guessed(columns, batch)
    with progress.task("attack table", _ROUNDS) as advance:
        accept = _EXACT if precision.exact else _ROUNDED
        cells = _whole(test, accept, torch_rng(setting.seed, "starts"), advance)
    if second is not None:
        misfit = second.outside(layers.hidden(cells)).norm(dim=1)
        cells = cells[misfit.argsort()]
    cells = cells[independent(layers.entered(cells), batch)]
    count = len(cells)
    answer.cells[:count], answer.named[:count], answer.certainty[:count] = cells, True, _LIKELY
    if second is not None and count:
        answer.labels[:count] = peeling.terms.nearest(test, cells).double()
    return replace(answer, facts={"ranks": [first.rank, None]})


def _whole(test: SpanTest, accept: float, draws: torch.Generator, advance: Advance) -> Tensor:
    """Rows (rows, cells) of the first span whose residual there is less than ``accept``.

    Every other round is drawn to the second span, which is cut off at as many dimensions as there
    are records.
    """
    alone, place = replace(test, second=None), allowed(test.layers, test.columns, test.first)
    found = [test.columns.known[:0]]
    for number in range(_ROUNDS if place is not None else 0):
        assert place is not None
        z = starts(alone if number % 4 == 3 else test, place, draws)
        guide = test.second if number % 2 else None
        cells = CandidateSearch(test.layers, place, guide, _SCALE).run(z)[0]
        polished, residual = alone.polished(test.columns.rounded(cells))
        moved = test.polished(polished[residual < accept])[0]
        polished, residual = alone.polished(moved)
        found.append(polished[residual < accept])
        advance(1)
    cells = torch.cat(found)
    return cells[test.columns.first_of_each(cells)]


def independent(vectors: Tensor, count: int) -> Tensor:
    """Places of the first vectors (rows, inputs) that are affinely independent of those before.

    There are at most ``count``.
    """
    kept: list[int] = []
    basis = vectors.new_zeros(0, vectors.shape[1] + 1)
    for place, vector in enumerate(with_one(vectors)):
        rest = vector - vector @ basis.T @ basis
        rest = rest - rest @ basis.T @ basis
        if float(rest.norm()) > _INDEPENDENT * float(vector.norm()) and len(kept) < count:
            basis = torch.cat([basis, (rest / rest.norm())[None]])
            kept.append(place)
    return torch.tensor(kept, dtype=torch.long)
