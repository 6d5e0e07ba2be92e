"""Rows behind an update of several local steps: in the first layer's span, ranked by the second's.

Every step's gradient of the first layer has its rows in the span of what comes in, so the span of
their sum holds, while the second layer's inputs move with the weights: what of a row's input at the
mean weights lies outside of the second span is small, and never nothing. Points of the first span
that are whole (one category a column) are ranked by it; as many as there are records are taken,
each linearly independent of those before. Nothing is certified: a combination of rows such as
x₁ − x₂ + x₃ may be whole as well.
"""

from dataclasses import replace

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.base import TableAnswer, TableSetting, guessed
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.search import ANNEALED, CandidateSearch, allowed, starts
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.progress import Advance, Progress

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
        generator = torch_rng(setting.seed, "starts")
        cells, misfit = _ranked(test, accept, batch, generator, advance)
    count = len(cells)
    answer.cells[:count], answer.named[:count], answer.certainty[:count] = cells, True, _LIKELY
    if second is not None and count:
        answer.labels[:count] = peeling.terms.nearest(test, cells).double()
    facts: dict[str, JsonValue] = {"ranks": [first.rank, None], "misfit": misfit.tolist()}
    return replace(answer, facts=facts)


def _ranked(
    test: SpanTest, accept: float, count: int, generator: torch.Generator, advance: Advance
) -> tuple[Tensor, Tensor]:
    """The rows that fit best.

    Args:
        test: of both layers, the second cut off at as many dimensions as there are records.
        accept: the residual up to which a row is in the first span.
        count: of rows to give at most.
        generator: of starts.
        advance: told of every round; every other round is drawn to the second span.

    Returns:
        (rows, cells), and (rows,) the shares of the second layer's inputs outside of its span.
    """
    layers, columns, second = test.layers, test.columns, test.second
    alone, place = replace(test, second=None), allowed(test.layers, test.columns, test.first)
    found = [columns.known[:0]]
    for number in range(_ROUNDS if place is not None else 0):
        assert place is not None
        z = starts(layers, columns, place, None if number % 4 == 3 else second, generator)
        guide = second if number % 2 else None
        cells = CandidateSearch(layers, place, guide, _SCALE).run(z, ANNEALED)[0]
        polished, residual = alone.polished(columns.rounded(cells))
        moved = test.polished(polished[residual < accept])[0]
        polished, residual = alone.polished(moved)
        found.append(polished[residual < accept])
        advance(1)
    cells = torch.cat(found)
    cells = cells[columns.first_of_each(cells)]
    misfit = cells.new_zeros(len(cells))
    if second is not None:
        hidden = layers.hidden(layers.entered(cells))
        misfit = torch.linalg.vector_norm(second.outside(hidden), dim=1)
    order = misfit.argsort()
    order = order[independent(layers.entered(cells[order]), count)]
    return cells[order], misfit[order]


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
