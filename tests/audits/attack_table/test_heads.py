"""Batches of models with other heads, losses and first layers come back whole."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_table.tables import SIZES, chain, layers_of, seen_of, table
from subjects import seeded
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.base import TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.audits.attack_table.spans import GradientRowSpace, SpanTest
from gradaudit.audits.attack_table.table_scores import TableScores, scores_of
from gradaudit.audits.attack_table.terms import GradientTerms
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import BinaryCrossEntropy, Loss, MeanSquaredError
from gradaudit.models.torch_losses import WeightedCrossEntropy
from gradaudit.progress import Silent

COUNT = 12
WEIGHTS = (0.3, 0.7, 2.0)


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


def attacked(
    records: Records, model: nn.Module, loss: Loss | None = None, count: int = COUNT
) -> TableScores:
    view, columns, batch = seen_of(records, model, count, loss)
    answer = RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())
    assert answer.facts["decoys_certified"] == 0
    return scores_of(columns, answer, columns.cells(batch.inputs), batch.labels, 1e-6)


CASES: dict[str, Callable[[], TableScores]] = {
    "one logit": lambda: attacked(table(), chain(17, 40, 40, 1), BinaryCrossEntropy()),
    "regression": lambda: attacked(real(table()), chain(17, 40, 40, 1), MeanSquaredError()),
    "two weights": lambda: attacked(table(), chain(17, 40, 40, 2), weighted(2)),
    "three weights": lambda: attacked(table(classes=3), chain(17, 40, 40, 3), weighted(3)),
    "three layers, ten classes": lambda: attacked(table(classes=10), chain(17, 40, 40, 40, 10)),
    "codes in embeddings": lambda: attacked(table(coded=True), Lookups().double()),
    "one layer": lambda: attacked(table(), chain(17, 40, 2), count=4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_batch_comes_back_whole_and_certified(case: str) -> None:
    scores = CASES[case]()
    assert bool(scores.rows.all())
    assert bool(scores.certified.all())
    assert scores.false == 0


def test_records_without_categories_come_back_as_well() -> None:
    draws = np.random.default_rng(0)
    inputs = torch.from_numpy(draws.normal(size=(100, 1, 3, 4)).astype(np.float32))
    records = Records(inputs, torch.from_numpy(draws.integers(0, 2, 100)), ("0", "1"))
    model = nn.Sequential(nn.Flatten(), chain(12, 40, 40, 2))
    view, columns, batch = seen_of(records, model, 6)
    answer = RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())
    scores = scores_of(columns, answer, columns.cells(batch.inputs), batch.labels, 1e-6)
    assert bool(scores.rows.all())


def test_what_a_weighted_batch_weighs_is_read_off_its_rows() -> None:
    """Σw is that of the labels, and rows' shares are w/Σw, as autograd of the batch has them."""
    view, columns, batch = seen_of(table(classes=3), chain(17, 30, 30, 3), COUNT, weighted(3))
    test = _test_of(view, columns)
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
        attacked(real(table()), chain(17, 40, 40, 1), AbsoluteError())


def _test_of(view: AttackerView, columns: TableColumns) -> SpanTest:
    layers = layers_of(view, columns)
    first, second = layers.matrices(view.update)
    assert second is not None
    spaces = GradientRowSpace.of(first, 1e-12), GradientRowSpace.of(second, 1e-12)
    return SpanTest(layers, columns, *spaces)
