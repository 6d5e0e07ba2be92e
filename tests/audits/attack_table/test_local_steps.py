"""Rows behind several local steps: units that rows leave off, and rows that are ranked."""

from dataclasses import replace

import pytest
import torch
from audits.attack_table.tables import (
    Seen,
    chain,
    expect_within_precision,
    layers_of,
    rebuilt,
    seen_of,
    table,
)
from torch import Tensor, nn

from gradaudit.audits.attack_table import averaged
from gradaudit.audits.attack_table.averaged import InactiveUnits, after_steps, between_steps
from gradaudit.audits.attack_table.spans import GradientRowSpace, with_one
from gradaudit.audits.attack_table.terms import local_steps
from gradaudit.sharing.protocol import SharingProtocol


def directions_of(rate: float = 0.05) -> tuple[InactiveUnits, Tensor, Tensor, Tensor]:
    """Units behind local steps, the true rows, their inputs with a one, and the true directions."""
    view, columns, batch = stepped(chain(17, 40, 40, 2), 6, rate)
    layers = layers_of(view, columns)
    after = layers_of(after_steps(view, local_steps(view)), columns)
    matrix = layers.matrices(view.update)[0]
    edge = 1e-12 * float(torch.linalg.matrix_norm(matrix, 2))
    space = GradientRowSpace.of(matrix, edge)
    cells = columns.cells(batch.inputs)
    extended = with_one(layers.entered(cells))
    dual = torch.linalg.pinv(extended @ space.rows.T / space.values)
    return InactiveUnits((layers, after), space, edge), cells, extended, dual.T


def test_units_that_are_off_tell_a_direction_that_takes_all_other_rows_to_nothing() -> None:
    """Against the pseudo-inverse of the true rows, which is dense."""
    units, cells, extended, dual = directions_of()
    told = units.directions(cells)
    assert len(told) == len(cells)
    cosine = (told @ (dual / dual.norm(dim=1, keepdim=True)).T).abs()
    torch.testing.assert_close(cosine.amax(dim=0), torch.ones(6).double(), rtol=0, atol=1e-9)
    for direction, place in zip(told, cosine.argmax(dim=1).tolist(), strict=True):
        along = units.along(direction, extended[:, :-1]).abs()
        assert float(along[torch.arange(6) != place].max()) < 1e-9 * float(along[place])
        assert units.agrees(direction, cells[place])
        assert not units.agrees(direction, cells[(place + 1) % 6])
        space = units.dual(told[cosine.argmax(dim=1) != place])
        assert float(space.outside(extended[place : place + 1, :-1]).norm()) < 1e-9


def test_a_direction_of_two_rows_is_none_where_both_are_told() -> None:
    """It sends something back through the units of both, so that it is less sparse."""
    units, cells, _, _ = directions_of()
    told = units.directions(cells)
    mixed = told[0] + told[1]
    basis = units.basis(torch.cat([(mixed / mixed.norm())[None], told]))
    torch.testing.assert_close(basis @ basis.T, told @ told.T)
    assert not units._holds(mixed / mixed.norm())


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
def test_rows_of_several_local_steps_come_back_certified(double: bool) -> None:
    """Minibatches of 3 and two epochs, in double and in single precision."""
    view, *rest = stepped(chain(17, 40, 40, 2), 6, 0.05)
    if not double:
        view = replace(view, update={n: p.float().double() for n, p in view.update.items()})
    answer, scores = rebuilt((view, *rest), 1e-3)
    assert bool(scores.rows.all())
    assert bool(answer.certified.all())
    assert scores.false == 0
    expect_within_precision(answer, (view, *rest))


@pytest.mark.slow
def test_rows_of_several_local_steps_without_relu_are_ranked_and_none_is_certified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(averaged, "_ROUNDS", 8)
    answer, scores = rebuilt(stepped(chain(17, 40, 40, 2, activation=nn.Tanh), 6, 0.05), 0.02)
    assert bool(scores.rows.all())
    assert not bool(answer.certified.any())


def stepped(model: nn.Module, count: int, rate: float, **training: int) -> Seen:
    """What is seen of two epochs in minibatches of 3, in double precision."""
    how = {"epochs": 2, "local_batch": 3, **training}
    sharing = SharingProtocol(algorithm="fedavg", rate=rate, **how)  # type: ignore[arg-type]
    view, *rest = seen_of(table(seed=1), model, count, sharing=sharing)
    return view.in_precision(torch.float64), *rest


def test_at_the_mean_of_the_steps_weights_the_misfit_is_of_the_second_order() -> None:
    """With half the rate it is a quarter; at the weights that were shared it is a half."""
    large, small = _misfits(0.05), _misfits(0.025)
    assert small[0] / large[0] == pytest.approx(0.5, abs=0.05)
    assert small[1] / large[1] == pytest.approx(0.25, abs=0.05)


def _misfits(rate: float) -> tuple[float, float]:
    """How far rows lie outside the second span at the shared and at the mean weights."""
    model = chain(17, 40, 40, 2, activation=nn.Tanh)
    view, columns, batch = stepped(model, 8, rate, epochs=3, local_batch=8)
    cells, misfits = columns.cells(batch.inputs), []
    for seen in (view, between_steps(view)):
        layers = layers_of(seen, columns)
        _, matrix = layers.matrices(view.update)
        assert matrix is not None
        space = GradientRowSpace.of(matrix, float(torch.linalg.svdvals(matrix)[8]))
        hidden = layers.hidden(cells)
        misfits.append(float(space.outside(hidden).norm(dim=1).mean()))
    return misfits[0], misfits[1]
