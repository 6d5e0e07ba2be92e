"""Rows from row spaces: the parts against dense computations, and whole batches back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_table.tables import chain, layers_of, seen_of, table
from torch import nn

from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table.base import TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.peeling import Peeling, PeelingRound
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.audits.attack_table.search import ANNEALED, CandidateSearch, allowed
from gradaudit.audits.attack_table.spans import (
    GradientRowSpace,
    SpanTest,
    rounding,
    with_one,
)
from gradaudit.audits.attack_table.structure import bias_of
from gradaudit.audits.attack_table.table_scores import scores_of
from gradaudit.audits.attack_table.terms import GradientTerms
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

COUNT = 12


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_cells_are_the_records_in_other_coordinates(coded: bool, raw: bool) -> None:
    records = table(coded=coded, raw=raw)
    columns = TableColumns.of(records, records.inputs)
    cells = columns.cells(records.inputs)
    torch.testing.assert_close(columns.inputs(cells).float(), records.inputs)
    assert bool((columns.known[:, columns.numeric].std(dim=0, correction=0) - 1 < 1e-9).all())
    for group in columns.groups:
        assert bool((cells[:, group].sum(dim=1) == 1).all())


def test_what_comes_in_is_affine_in_cells_and_the_gradient_is_its_sum_of_products() -> None:
    """Against gradients of single records by autograd, in raw numbers."""
    records = table(raw=True)
    view, columns, batch = seen_of(records, chain(17, 20, 20, 2), COUNT)
    layers = layers_of(view, columns)
    cells = columns.cells(batch.inputs)
    entered = layers.entered(cells)
    raw = entered * layers.scale + layers.centre
    torch.testing.assert_close(raw, batch.inputs.double(), rtol=1e-9, atol=1e-9)
    deltas = GradientTerms(view, columns, 1e-6).gradients(cells, batch.labels, ("0.bias", "2.bias"))
    first, second = layers.matrices(view.update)
    ones = torch.ones(COUNT, 1).double()
    made = deltas["0.bias"].T @ torch.cat([entered, ones], dim=1) / COUNT
    torch.testing.assert_close(first, made, rtol=1e-6, atol=1e-10)
    hidden = layers.hidden(cells)
    made = deltas["2.bias"].T @ torch.cat([hidden, ones], dim=1) / COUNT
    torch.testing.assert_close(second, made, rtol=1e-6, atol=1e-12)


def test_a_step_of_the_search_lowers_what_it_should() -> None:
    """A start at a true record stays there, and starts near it come back to it."""
    view, columns, batch = seen_of(table(), chain(17, 30, 30, 2), COUNT)
    layers = layers_of(view, columns)
    first, second = layers.matrices(view.update)
    assert second is not None
    spaces = GradientRowSpace.of(first, 1e-12), GradientRowSpace.of(second, 1e-12)
    place = allowed(layers, columns, spaces[0])
    assert place is not None
    truth = columns.cells(batch.inputs)
    z = place.nearest(layers, truth)
    cells, residual = CandidateSearch(layers, place, spaces[1]).run(z, ANNEALED)
    assert float(residual.max()) < 1e-10
    torch.testing.assert_close(cells, truth, rtol=0, atol=1e-7)


def test_polishing_finds_numbers_and_tells_their_precision() -> None:
    view, columns, batch = seen_of(table(), chain(17, 30, 30, 2), COUNT)
    layers = layers_of(view, columns)
    first, second = layers.matrices(view.update)
    assert second is not None
    test = SpanTest(
        layers, columns, GradientRowSpace.of(first, 1e-12), GradientRowSpace.of(second, 1e-12)
    )
    truth = columns.cells(batch.inputs)
    moved = truth.clone()
    moved[:, columns.numeric] += 0.05
    polished, residual = test.polished(moved)
    torch.testing.assert_close(polished, truth, rtol=0, atol=1e-9)
    assert float(residual.max()) < 1e-9
    step = 1e-6
    shifted = truth.clone()
    shifted[:, columns.numeric[0]] += step
    change = (test._outside(shifted)[0] - test._outside(truth)[0]) / step
    torch.testing.assert_close(test._outside(truth)[1][:, :, 0], change, rtol=1e-3, atol=1e-5)


def test_labels_and_multiplicities_are_those_of_the_batch() -> None:
    records = table(classes=5)
    order = np.r_[0, 0, 0, 1, 2, 2, 3:9]
    records = replace(records, inputs=records.inputs[order], labels=records.labels[order])
    view, columns, batch = seen_of(records, chain(17, 30, 30, 5), len(order))
    layers = layers_of(view, columns)
    first, second = layers.matrices(view.update)
    assert second is not None
    test = SpanTest(
        layers, columns, GradientRowSpace.of(first, 1e-12), GradientRowSpace.of(second, 1e-12)
    )
    rows, labels, times = GradientTerms(view, columns, 1e-6).of(test, columns.cells(batch.inputs))
    assert rows.tolist() == list(range(len(order)))
    assert labels.tolist() == batch.labels.tolist()
    assert times.tolist() == [3, 3, 3, 1, 2, 2, *[1] * 6]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU])
def test_a_batch_comes_back_whole_and_certified(activation: type[nn.Module]) -> None:
    model = chain(17, 40, 40, 2, activation=activation)
    view, columns, batch = seen_of(table(), model, COUNT)
    answer = RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())
    scores = scores_of(columns, answer, columns.cells(batch.inputs), batch.labels, 1e-6)
    assert bool(scores.rows.all())
    assert bool(scores.certified.all())
    assert (scores.named, scores.false) == (COUNT, 0)
    assert answer.facts["complete"] is True
    assert answer.facts["decoys_certified"] == 0


def test_a_batch_that_fills_the_second_layer_is_refused() -> None:
    view, columns, _ = seen_of(table(), chain(17, 20, 30, 2, activation=nn.Tanh), 24)
    with pytest.raises(NotApplicable, match="a test of a row takes"):
        RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())


def test_rounding_is_read_off_the_numbers() -> None:
    update = {"a": torch.randn(5, 5).double()}
    assert rounding(update) == 2e-7
    assert rounding({"a": torch.randn(5, 5, dtype=torch.float64)}) == 1e-13
    assert rounding({"a": torch.randn(5, 5).bfloat16().double()}) == 1e-2


def test_rows_whose_deltas_are_linearly_dependent_are_found_all_the_same() -> None:
    """Two rows that activate the same units of a second layer of few have one δ between them."""
    records = table()
    model = chain(17, 40, 14, 2)
    truth = TableColumns.of(records, records.inputs).cells(records.inputs)
    second = torch.relu(model[0](records.inputs.double()))  # type: ignore[index]
    masks = (model[2](second) > 0).int().tolist()  # type: ignore[index]
    pairs = [
        (i, j)
        for i in range(len(masks))
        for j in range(i)
        if masks[i] == masks[j] and records.labels[i] == records.labels[j]
    ]
    one, other = next((i, j) for i, j in pairs if not torch.equal(truth[i], truth[j]))
    order = np.r_[one, other, np.setdiff1d(np.arange(8), [one, other])]
    records = records.take(np.r_[order, 8 : len(records)])
    view, columns, batch = seen_of(records, model, len(order))
    layers = layers_of(view, columns)
    _, matrix = layers.matrices(view.update)
    assert matrix is not None
    space = GradientRowSpace.of(matrix, 1e-12)
    cells = columns.cells(batch.inputs)
    hidden = layers.hidden(cells)
    outside = space.outside(hidden).norm(dim=1)
    assert float(outside[:2].min()) > 1e-6
    terms = GradientTerms(view, columns, 1e-6).gradients(cells, batch.labels, tuple(view.update))
    name = str(layers.second)
    shares = torch.rand(len(cells), 1, generator=torch.Generator().manual_seed(0)).double()
    deltas = terms[bias_of(name)] * shares
    without = space.outside_without(hidden, torch.arange(2), deltas[:2])
    for taken, delta in enumerate(deltas[:2]):
        rest = matrix - torch.outer(delta, with_one(hidden)[taken])
        dense = GradientRowSpace.of(rest, 1e-12)
        assert dense.rank == space.rank
        assert torch.allclose(without[taken], dense.outside(hidden).norm(dim=1), atol=1e-11)
    answer = RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())
    scores = scores_of(columns, answer, cells, batch.labels, 1e-6)
    assert bool(scores.rows.all())


@pytest.mark.parametrize("noise", [1e-6, 1e-4])
def test_numbers_behind_noise_lie_within_their_precision(noise: float) -> None:
    """Named rows are refined together; each number of a certified row is as near as it says."""
    view, columns, batch = seen_of(table(), chain(17, 40, 40, 2), COUNT)
    draws = torch.Generator().manual_seed(0)
    rms = float(torch.cat([part.flatten() for part in view.update.values()]).square().mean().sqrt())
    update = {
        name: part + noise * rms * torch.randn(part.shape, generator=draws).double()
        for name, part in view.update.items()
    }
    answer = RowSpaceAttack().run(replace(view, update=update), TableSetting(columns, 0), Silent())
    truth = columns.cells(batch.inputs)
    gap = (answer.cells[:, None] - truth[None]).abs()
    nearest = gap.amax(dim=2).argmin(dim=1)
    assert answer.facts["explained"] is True
    assert bool(answer.certified.all())
    off = gap[torch.arange(COUNT), nearest][:, columns.numeric]
    assert bool((off <= answer.spread).all())
    assert float(answer.spread.max()) < 100 * noise


def test_a_batch_norm_in_training_is_refused_by_name() -> None:
    model = nn.Sequential(
        nn.Linear(17, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU()
    ).append(nn.Linear(30, 2))
    target = Target(model.double(), CrossEntropy(), mode="train")
    records = table()
    threat = ThreatModel(target, SharingProtocol(), target.layers)
    batch = records.take(np.arange(COUNT))
    view = threat.observed(batch, torch.Generator().manual_seed(0)).view
    columns = TableColumns.of(records, records.inputs[COUNT:])
    with pytest.raises(NotApplicable, match="the batch norm 1 mixes the rows"):
        RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())


def test_a_row_whose_gradient_single_precision_hides_is_named_as_such() -> None:
    """The gradients of one row are 1e-9 of the others': its label is all but certain."""
    records, model = table(), chain(17, 40, 40, 2)
    view, columns, batch = seen_of(records, model, COUNT)
    terms = GradientTerms(view, columns, 1e-6).gradients(
        columns.cells(batch.inputs[:1]), batch.labels[:1], tuple(view.update)
    )
    update = {
        name: (part - (1 - 1e-9) / COUNT * terms[name][0]).float().double()
        for name, part in view.update.items()
    }
    answer = RowSpaceAttack().run(replace(view, update=update), TableSetting(columns, 0), Silent())
    assert answer.facts["below_precision"] == 1
    assert answer.facts["not_found"] == 0
    assert int(answer.named.sum()) == COUNT - 1


def test_a_row_that_may_be_one_named_before_is_not_named_again() -> None:
    """Numbers within both rows' precision and equal categories, of rounds before or of a better."""
    view, columns, batch = seen_of(table(), chain(17, 40, 40, 2), COUNT)
    peeling = Peeling.of(view, layers_of(view, columns), columns)
    test, truth = peeling.test(), columns.cells(batch.inputs)
    rows = truth[[0, 0, 1, 2]].clone()
    rows[1, columns.numeric[0]] += 0.01
    close = test.spreads(rows)[1, 0] >= 0.01
    assert peeling._apart(test, rows).tolist() == [True, not close, True, True]
    rows[1] = rows[0]
    assert peeling._apart(test, rows).tolist() == [True, False, True, True]
    wide = torch.full((1, 2), 0.5)
    named = truth[1:2].clone()
    named[0, columns.numeric] += 0.4
    once = torch.ones(1).double()
    peeling.rounds.append(PeelingRound(test, named, once, once, once, wide))
    assert peeling._apart(test, rows).tolist() == [True, False, False, True]
