"""AUROCs of records' presence in updates, over new records, updates and attackers."""

from collections.abc import Iterator, Mapping
from functools import cache, partial

import numpy as np
import torch
from torch import nn

import gradaudit
from benchmarks.coverage.studies.base import Cell, Outcome, Settings, Study, interval
from gradaudit.data.records import Records
from gradaudit.report import Measurement

WIDTH, CLASSES, BATCH = 8, 3, 8
PRESET = {"batch_size": BATCH, "updates": 24, "shadow": 100, "candidates": 32, "repeats": 5}
NEEDED = 196
"""Records in the sets of one game of this preset."""
OTHERS = 100
"""Other samples whose mean is the truth."""


def scored(records: int, tail: float, seed: int) -> Measurement:
    """The row of a linear layer, of records whose lengths are lognormal."""
    draws = np.random.default_rng([records, seed])
    lengths = np.exp(tail * draws.normal(size=(records, 1)))
    inputs = torch.from_numpy(lengths * draws.normal(size=(records, WIDTH))).float()
    labels = torch.from_numpy(draws.integers(0, CLASSES, records))
    sample = Records(inputs, labels, ("a", "b", "c"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES)).eval()
    report = gradaudit.audit(model, sample, audits={"attack record": PRESET}, seed=seed)
    (row,) = report.select("attack.record_auroc", layer="0", variant={})
    return row


@cache
def truth(records: int, tail: float) -> float:
    values = [scored(records, tail, 10**6 + seed).value or 0.0 for seed in range(OTHERS)]
    return float(np.mean(values))


def play(records: int, tail: float, seed: int) -> Mapping[str, Outcome]:
    row = scored(records, tail, seed)
    assert row.interval is not None
    return {"record_auroc": interval(*row.interval, truth(records, tail))}


def _cells(sizes: tuple[int, ...]) -> Iterator[Cell]:
    for tail in (0.0, 1.0):
        for records in sizes:
            settings: Settings = {"records": records, "tail": tail}
            yield Cell(settings, partial(play, records, tail), (0.93, 1.0))


STUDY = Study(
    "presence",
    f"Whether a record is behind an update of {BATCH}, by a linear layer's gradient, of Gaussian "
    f"records with lognormal lengths; the truth is the mean over {OTHERS} other samples. A game "
    f"takes {NEEDED} records, so that smaller samples are dealt out whole in every game.",
    quick=partial(_cells, (120,)),
    full=partial(_cells, (120, 400, 2000)),
)
