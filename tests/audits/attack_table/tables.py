"""A small table of numbers and categories, models for it, and what an attacker sees of a batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from subjects import seeded
from torch import nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table.base import TableAnswer, TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.audits.attack_table.spans import GradientRowSpace, SpanTest
from gradaudit.audits.attack_table.structure import TwoLayers, two_layers
from gradaudit.audits.attack_table.table_scores import TableScores, scores_of
from gradaudit.data.records import Feature, Records
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

SIZES = (3, 4, 2, 6)
NUMBERS = 2
Seen = tuple[AttackerView, TableColumns, Records]
"""What an attacker sees of a batch, the columns by other records, and the batch."""


def table(
    rows: int = 300, seed: int = 0, *, coded: bool = False, raw: bool = False, classes: int = 2
) -> Records:
    """Two numeric columns, four categorical ones; labels that depend on them a little."""
    draws = np.random.default_rng(seed)
    numbers = draws.normal(size=(rows, NUMBERS)).round(2)
    if raw:
        numbers = numbers * [100.0, 3.0] + [5000.0, 40.0]
    codes = [draws.integers(0, size, rows) for size in SIZES]
    features = [
        Feature(f"number-{i}", (i,), (float(numbers[:, i].min()), float(numbers[:, i].max())))
        for i in range(NUMBERS)
    ]
    blocks: list[NDArray[Any]] = [numbers]
    place = NUMBERS
    for i, (size, code) in enumerate(zip(SIZES, codes, strict=True)):
        width = 1 if coded else size
        values = tuple(f"{i}-{value}" for value in range(size))
        places = tuple(range(place, place + width))
        features.append(Feature(f"category-{i}", places, values=values, coded=coded))
        blocks.append(code[:, None] if coded else np.eye(size)[code])
        place += width
    inputs = torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))
    labels = torch.from_numpy(draws.integers(0, classes, rows))
    names = tuple(map(str, range(classes)))
    return Records(inputs, labels, names, features=tuple(features), adapter="csv")


def chain(inputs: int, *widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Fully connected layers with an activation between them, drawn under one seed."""
    with seeded(0):
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            layers += [activation()] if i else []
            layers.append(nn.Linear(inputs, width))
            inputs = width
        return nn.Sequential(*layers).double()


def subject_of(records: Records, model: nn.Module, loss: Loss | None = None) -> Subject:
    """Table and model as an audit gets them."""
    target = Target(model, loss or CrossEntropy())
    return Subject((target,), records, target.layers)


def seen_of(
    records: Records,
    model: nn.Module,
    count: int,
    loss: Loss | None = None,
    sharing: SharingProtocol | None = None,
) -> Seen:
    """An update of the first records, the columns by the others, and the batch."""
    target = Target(model, loss or CrossEntropy())
    threat = ThreatModel(target, sharing or SharingProtocol(), target.layers)
    batch = records.take(np.arange(count))
    others = records.inputs[count:] if len(records) > count else records.inputs
    observed = threat.observed(batch, torch.Generator().manual_seed(0))
    return observed.view, TableColumns.of(records, others), batch


def layers_of(view: AttackerView, columns: TableColumns) -> TwoLayers:
    """What the model begins with."""
    return two_layers(view.model, columns, view.update)


def span_test(view: AttackerView, columns: TableColumns) -> SpanTest:
    """Both layers' spans of an exact update."""
    layers = layers_of(view, columns)
    first, second = layers.matrices(view.update)
    assert second is not None
    spaces = GradientRowSpace.of(first, 1e-12), GradientRowSpace.of(second, 1e-12)
    return SpanTest(layers, columns, *spaces)


def rebuilt(seen: Seen, tolerance: float = 1e-6) -> tuple[TableAnswer, TableScores]:
    """The rows that row spaces give, of which no decoy is certified, and their scores."""
    view, columns, batch = seen
    answer = RowSpaceAttack().run(view, TableSetting(columns, 0), Silent())
    assert answer.facts.get("decoys_certified", 0) == 0
    truth = columns.cells(batch.inputs)
    return answer, scores_of(columns, answer, truth, batch.labels, tolerance)


def expect_within_precision(answer: TableAnswer, seen: Seen) -> None:
    """Each number of the nearest row of the batch is as near as the answer says."""
    columns = seen[1]
    gap = (answer.cells[:, None] - columns.cells(seen[2].inputs)[None]).abs()
    nearest = gap.amax(dim=2).argmin(dim=1)
    off = gap[torch.arange(len(gap)), nearest][:, columns.numeric]
    assert bool((off <= answer.spread).all())


def blurred(seen: Seen, noise: float) -> Seen:
    """The same behind noise of so many times the update's rms."""
    view, columns, batch = seen
    draws = torch.Generator().manual_seed(0)
    rms = float(torch.cat([part.flatten() for part in view.update.values()]).square().mean().sqrt())
    update = {
        name: part + noise * rms * torch.randn(part.shape, generator=draws).double()
        for name, part in view.update.items()
    }
    return replace(view, update=update), columns, batch
