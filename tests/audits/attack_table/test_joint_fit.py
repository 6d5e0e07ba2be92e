"""Rows behind noise: the law of what lies outside a span, and the fit of all rows at once."""

from dataclasses import replace

import pytest
import torch
from audits.attack_table.tables import blurred, chain, layers_of, seen_of, table
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.joint_fit import JointFit
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.spans import GradientRowSpace
from gradaudit.audits.attack_table.terms import GradientTerms

COUNT = 12
NOISE = 1e-4


def true_rows() -> tuple[AttackerView, TableColumns, Tensor, Tensor]:
    """The view behind noise, the columns, and the batch's cells and labels."""
    view, columns, batch = blurred(seen_of(table(), chain(17, 40, 40, 2), COUNT), NOISE)
    return view, columns, columns.cells(batch.inputs), batch.labels


def fit_of(view: AttackerView, columns: TableColumns, cells: Tensor, labels: Tensor) -> JointFit:
    terms = GradientTerms(view, columns, 0.3)
    return JointFit.of(layers_of(view, columns), terms, cells, labels, torch.ones(COUNT).double())


def test_what_lies_outside_a_span_has_the_variance_that_noise_gives_it() -> None:
    """Over 40 draws of noise the mean of the misfit is 1 for each row, with an error of 1 %."""
    view, columns, batch = seen_of(table(), chain(17, 40, 40, 2), COUNT)
    layers = layers_of(view, columns)
    hidden = layers.hidden(columns.cells(batch.inputs))
    matrix = layers.matrices(view.update)[1]
    assert matrix is not None
    level = 1e-4 * float(matrix.square().mean().sqrt())
    draws, seen = torch.Generator().manual_seed(0), []
    for _ in range(40):
        noisy = matrix + level * torch.randn(matrix.shape, generator=draws).double()
        edge = float(torch.linalg.svdvals(noisy)[COUNT - 1]) * 0.999
        seen.append(GradientRowSpace.of(noisy, edge).misfit(hidden, level))
    mean = torch.stack(seen).mean(dim=0)
    assert float((mean - 1).abs().max()) < 0.15
    assert float((mean.mean() - 1).abs()) < 0.03


@pytest.mark.slow
def test_how_squares_grow_is_what_a_dense_fit_of_the_numbers_says() -> None:
    """Another row, its numbers moved along finite differences, against autograd's gradients."""
    view, columns, cells, labels = true_rows()
    fit = fit_of(view, columns, cells, labels)
    swaps = columns.every_swap(cells[3])
    assert len(swaps) == sum(len(group) - 1 for group in columns.groups)
    assert not bool(columns.alike(swaps, cells[3:4], 9.0).any())
    grown = fit.growth(3, swaps, labels[3].expand(len(swaps)))

    def share(row: Tensor) -> Tensor:
        parts = fit.terms.gradients(row[None], labels[3:4], tuple(fit.update))
        return torch.cat([part.flatten() for part in parts.values()]) / COUNT

    step, slopes = 1e-7, []
    for number in columns.numeric.tolist():
        moved = cells[3].clone()
        moved[number] += step
        slopes.append((share(moved) - share(cells[3])) / step)
    matrix, rest = torch.stack(slopes, dim=1), fit.residual
    for swap, value in zip(swaps, grown, strict=True):
        after = rest + share(cells[3]) - share(swap)
        change = share(swap) - share(cells[3])
        best = torch.linalg.lstsq(matrix, change[:, None]).solution[:, 0]
        after = after + matrix @ best
        dense = (after.square().sum() - rest.square().sum()) / fit.variance
        torch.testing.assert_close(value, dense, rtol=1e-3, atol=1.0)
    assert all(fit.proves(row) for row in range(COUNT))


def test_a_row_whose_place_another_takes_as_well_is_not_proved() -> None:
    """The gradient of a row that weighs next to nothing says nothing of it."""
    view, columns, cells, labels = true_rows()
    fit = fit_of(view, columns, cells, labels)
    times = fit.times.clone()
    times[3] = 1e-6
    small = JointFit.of(fit.layers, fit.terms, cells, labels, times)
    small = replace(small, update={n: p + small.parts.new_zeros(1) for n, p in fit.update.items()})
    assert not small.proves(3)


@pytest.mark.slow
def test_numbers_jump_where_the_descent_stops_beside_units_that_go_on_or_off() -> None:
    view, columns, cells, labels = true_rows()
    tried = (moved(cells, row, columns, by) for row in range(COUNT) for by in (0.8, -0.8, 1.2))
    fits = (fit_of(view, columns, rows, labels) for rows in tried)
    fit = next(fit for fit in fits if not fit._descended()[0].is_noise)
    level = NOISE * float(fit.parts.sum(dim=0).square().mean().sqrt())
    settled, spread = fit.settled(1e4 * level)
    assert settled.is_noise
    gap = (settled.cells - cells)[:, columns.numeric].abs()
    assert bool((gap <= spread.clamp(min=1e-9)).all())


def moved(cells: Tensor, row: int, columns: TableColumns, by: float) -> Tensor:
    """Rows of which one has both numbers elsewhere."""
    rows = cells.clone()
    rows[row, columns.numeric] += by
    return rows


def test_a_row_named_twice_for_its_trace_is_named_once_after_a_repair() -> None:
    """A number was a little off as the row was taken out, and what that left was named too."""
    view, columns, cells, labels = true_rows()
    peeling = Peeling.of(view, layers_of(view, columns), columns)
    named, targets = cells[:2].clone(), labels[:2].clone()
    named[0, columns.numeric[0]] += 0.1
    named[1] = named[0]
    test, ones = peeling.test(), torch.ones(2).double()
    taken = peeling._taken(test, named, targets, ones)
    assert taken is not None
    peeling.rounds.append(taken)
    peeling._repaired(torch.Generator().manual_seed(0))
    assert peeling.left == COUNT - 1
    gap = (peeling.named - cells[:1])[:, columns.numeric].abs()
    assert float(gap.max()) < 0.02


def test_numbers_are_told_where_each_parameter_has_left_what_noise_leaves() -> None:
    """Of 400 draws of noise about as many fail as the chi-square law says; a trace in one fails."""
    view, columns, cells, labels = true_rows()
    fit = fit_of(view, columns, cells, labels)
    draws, failed = torch.Generator().manual_seed(0), 0
    zero = fit.parts.sum(dim=0)
    sizes = [part.numel() for part in fit.update.values()]
    for _ in range(400):
        noisy = torch.split(zero + torch.randn(len(zero), generator=draws).double(), sizes)
        pairs = zip(fit.update.items(), noisy, strict=True)
        drawn = replace(fit, update={n: v.reshape(p.shape) for (n, p), v in pairs})
        failed += not drawn.tells_numbers
    assert failed <= 9  # six parameters, each with a chance of a thousandth: 2.4 on average
    name = "4.weight"
    assert drawn.tells_numbers
    assert not replace(drawn, update={**drawn.update, name: drawn.update[name] + 1.0}).tells_numbers
