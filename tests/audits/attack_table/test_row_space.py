"""Rows from row spaces: the parts against dense computations, and batches of many models back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_table.tables import (
    SIZES,
    blurred,
    chain,
    layers_of,
    rebuilt,
    seen_of,
    span_test,
    table,
)
from subjects import seeded
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table.base import TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.peeling import Peeling, PeelingRound
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.audits.attack_table.search import ANNEALED, CandidateSearch, allowed
from gradaudit.audits.attack_table.spans import GradientRowSpace, rounding, with_one
from gradaudit.audits.attack_table.structure import bias_of
from gradaudit.audits.attack_table.terms import GradientTerms
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.target import Target
from gradaudit.models.torch_losses import WeightedCrossEntropy
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

COUNT = 12
WEIGHTS = (0.3, 0.7, 2.0)


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
    pairs = ("0.bias", entered, first), ("2.bias", layers.hidden(cells), second)
    for name, came, matrix in pairs:
        made = deltas[name].T @ torch.cat([came, ones], dim=1) / COUNT
        torch.testing.assert_close(matrix, made, rtol=1e-6, atol=1e-10)


def test_a_step_of_the_search_lowers_what_it_should() -> None:
    """A start at a true record stays there."""
    view, columns, batch = seen_of(table(), chain(17, 30, 30, 2), COUNT)
    test, truth = span_test(view, columns), columns.cells(batch.inputs)
    assert test.second is not None
    place = allowed(test.layers, columns, test.first)
    assert place is not None
    z = place.nearest(test.layers, truth)
    cells, residual = CandidateSearch(test.layers, place, test.second).run(z, ANNEALED)
    assert float(residual.max()) < 1e-10
    torch.testing.assert_close(cells, truth, rtol=0, atol=1e-7)


def test_polishing_finds_numbers_and_tells_their_precision() -> None:
    view, columns, batch = seen_of(table(), chain(17, 30, 30, 2), COUNT)
    test = span_test(view, columns)
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
    test = span_test(view, columns)
    rows, labels, times = GradientTerms(view, columns, 1e-6).of(test, columns.cells(batch.inputs))
    assert rows.tolist() == list(range(len(order)))
    assert labels.tolist() == batch.labels.tolist()
    assert times.tolist() == [3, 3, 3, 1, 2, 2, *[1] * 6]


class Lookups(nn.Module):
    """Embeddings of codes with numbers beside them, and a chain behind; inputs pass ``float32``."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.tables = nn.ModuleList(nn.Embedding(size, 5) for size in SIZES)
        self.body = chain(2 + 5 * len(SIZES), 40, 40, 2)

    def forward(self, records: Tensor) -> Tensor:
        read = [one(records[:, 2 + i].long()) for i, one in enumerate(self.tables)]
        joined: Tensor = self.body(torch.cat([records[:, :2].float().double(), *read], dim=1))
        return joined


def real(records: Records) -> Records:
    """The table with a real target that depends on all columns."""
    inputs = records.inputs.double()
    return replace(records, labels=(inputs @ torch.linspace(-1, 1, inputs.shape[1]).double()))


def weighted(classes: int) -> Loss:
    return WeightedCrossEntropy(nn.CrossEntropyLoss(torch.tensor(WEIGHTS[:classes])), "weighted")


CASES: dict[str, tuple[Records, nn.Module, Loss, int]] = {
    "one logit": (table(), chain(17, 40, 40, 1), BinaryCrossEntropy(), COUNT),
    "regression": (real(table()), chain(17, 40, 40, 1), MeanSquaredError(), COUNT),
    "two weights": (table(), chain(17, 40, 40, 2), weighted(2), COUNT),
    "three weights": (table(classes=3), chain(17, 40, 40, 3), weighted(3), COUNT),
    "three layers": (table(classes=10), chain(17, 40, 40, 40, 10), CrossEntropy(), COUNT),
    "codes in embeddings": (table(coded=True), Lookups().double(), CrossEntropy(), COUNT),
    "one layer": (table(), chain(17, 40, 2), CrossEntropy(), 4),
}
for kind in (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU):
    layers = chain(17, 40, 40, 2, activation=kind)
    CASES[kind.__name__] = table(), layers, CrossEntropy(), COUNT


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_batch_comes_back_whole_and_certified(case: str) -> None:
    records, model, loss, count = CASES[case]
    answer, scores = rebuilt(seen_of(records, model, count, loss))
    assert bool(scores.rows.all())
    assert bool(scores.certified.all())
    assert (scores.named, scores.false) == (count, 0)
    assert answer.facts["complete"] is True


def test_records_without_categories_come_back_as_well() -> None:
    draws = np.random.default_rng(0)
    inputs = torch.from_numpy(draws.normal(size=(100, 1, 3, 4)).astype(np.float32))
    records = Records(inputs, torch.from_numpy(draws.integers(0, 2, 100)), ("0", "1"))
    model = nn.Sequential(nn.Flatten(), chain(12, 40, 40, 2))
    assert bool(rebuilt(seen_of(records, model, 6))[1].rows.all())


def test_what_a_weighted_batch_weighs_is_read_off_its_rows() -> None:
    """Σw is that of the labels, and rows' shares are w/Σw, as autograd of the batch has them."""
    view, columns, batch = seen_of(table(classes=3), chain(17, 30, 30, 3), COUNT, weighted(3))
    test = span_test(view, columns)
    terms = GradientTerms(view, columns, 1e-6)
    cells = columns.cells(batch.inputs)
    rows, labels, times = terms.of(test, cells)
    weights = torch.tensor(WEIGHTS).double()[batch.labels]
    assert terms.total == pytest.approx(float(weights.sum()))
    assert (rows.tolist(), labels.tolist()) == (list(range(COUNT)), batch.labels.tolist())
    assert bool((times == 1).all())
    one = terms.gradients(cells, labels, ("4.weight",))["4.weight"]
    whole = (terms.shares(labels, times)[:, None, None] * one).sum(dim=0)
    torch.testing.assert_close(whole, view.update["4.weight"], rtol=1e-9, atol=1e-12)


def test_real_targets_of_an_absolute_error_are_refused() -> None:
    class AbsoluteError(MeanSquaredError):
        def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs[:, 0] - targets).abs()

    with pytest.raises(NotApplicable, match="read off squared errors alone"):
        rebuilt(seen_of(real(table()), chain(17, 40, 40, 1), COUNT, AbsoluteError()))


def test_a_batch_that_fills_the_second_layer_is_refused() -> None:
    with pytest.raises(NotApplicable, match="a test of a row takes"):
        rebuilt(seen_of(table(), chain(17, 20, 30, 2, activation=nn.Tanh), 24))


def test_rounding_is_read_off_the_numbers() -> None:
    update = {"a": torch.randn(5, 5).double()}
    assert rounding(update) == 2e-7
    assert rounding({"a": torch.randn(5, 5, dtype=torch.float64)}) == 1e-13
    assert rounding({"a": torch.randn(5, 5).bfloat16().double()}) == 1e-2


@pytest.mark.slow
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
    seen = view, columns, batch = seen_of(records, model, len(order))
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
    assert bool(rebuilt(seen)[1].rows.all())


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-6, 1e-4])
def test_rows_behind_noise_are_named_and_none_is_certified(noise: float) -> None:
    answer, scores = rebuilt(blurred(seen_of(table(), chain(17, 40, 40, 2), COUNT), noise))
    assert int(answer.named.sum()) >= COUNT - 1
    assert scores.false <= 1
    assert not bool(answer.certified.any())
    assert "decoys" not in answer.facts


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
    answer, _ = rebuilt((replace(view, update=update), columns, batch))
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


def test_what_lies_outside_a_span_has_the_variance_that_noise_gives_it() -> None:
    """Over 40 draws of noise the mean of the misfit is 1 for each row, with an error of 1 %."""
    view, columns, batch = seen_of(table(), chain(17, 40, 40, 2), 12)
    layers = layers_of(view, columns)
    hidden = layers.hidden(columns.cells(batch.inputs))
    matrix = layers.matrices(view.update)[1]
    assert matrix is not None
    level = 1e-4 * float(matrix.square().mean().sqrt())
    draws, seen = torch.Generator().manual_seed(0), []
    for _ in range(40):
        noisy = matrix + level * torch.randn(matrix.shape, generator=draws).double()
        edge = float(torch.linalg.svdvals(noisy)[12 - 1]) * 0.999
        seen.append(GradientRowSpace.of(noisy, edge).misfit(hidden, level))
    mean = torch.stack(seen).mean(dim=0)
    assert float((mean - 1).abs().max()) < 0.15
    assert float((mean.mean() - 1).abs()) < 0.03
