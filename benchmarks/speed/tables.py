"""Rows of three tables that `attack table` rebuilds and proves, cell by cell of a grid.

    python -m benchmarks.speed.tables [--batches 10] [--first 0] [--only '']

Each line is a cell: batches of so many rows, one model a batch (two hidden layers of 100 ReLUs but
where it says otherwise; as drawn, or after 300 steps of SGD), its gradient in float64 or float32,
with noise of so many times the gradient's root mean square. Printed are the shares of exact and of
certified rows, false rows (no row of the batch has the categories, and the numbers within their
stated precision), decoys that were certified of those tried, the share of stated precisions that
hold, and CPU seconds. Batches are drawn by the seeds from ``--first`` on; constants of the attacks
were chosen on some below 100.
"""

import time
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.harness import arguments, blurred, data_file, drawn, fit, heading, line
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table import TableOptions
from gradaudit.audits.attack_table.base import TableAttack, TableSetting, guessed
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.row_space import RowSpaceAttack
from gradaudit.audits.attack_table.table_scores import TableScores, calibration_error, scores_of
from gradaudit.audits.attack_table.tableak import TabLeak
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

SPECS = {
    "Adult": "adult.csv?label=income&drop=fnlwgt&drop=education-num&scale=standard",
    "German": "german_credit.csv?label=class-label&scale=standard",
}


@dataclass(frozen=True)
class Cell:
    """One cell of the grid."""

    name: str
    rows: int
    data: str = "Adult"
    width: int = 100
    layers: int = 2
    trained: bool = False
    dtype: str = "float64"
    noise: float = 0.0
    averaged: bool = False
    method: str = "row-space"
    ensemble: int = 4
    known_labels: bool = False
    batches: int | None = None


GRID = [
    *(Cell("initial", rows) for rows in (1, 8, 32, 64, 80, 92)),
    *(Cell("initial", rows, "German") for rows in (8, 32, 64, 80)),
    *(Cell("initial", round(0.8 * width), width=width) for width in (50, 200)),
    *(Cell("initial", rows, width=50) for rows in (20, 30, 35)),
    *(Cell("initial", rows, dtype="float32") for rows in (32, 80)),
    *(
        Cell("initial", rows, data, layers=1)
        for data in ("Adult", "German")
        for rows in (8, 16, 24)
    ),
    *(Cell("initial", rows, layers=3) for rows in (8, 32, 50)),
    *(Cell("trained", rows, trained=True) for rows in (32, 64, 80)),
    *(Cell("trained", rows, trained=True, dtype="float32") for rows in (8, 32, 64, 80)),
    *(Cell("trained", rows, "German", trained=True, dtype="float32") for rows in (32, 64)),
    *(Cell("noise", rows, noise=n) for n in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1) for rows in (8, 32)),
    *(Cell("fedavg", rows, averaged=True) for rows in (16, 24)),
    *(
        Cell("tableak", rows, data, method="tableak", known_labels=known, batches=5)
        for data in (*SPECS, "Diabetes")
        for rows in (8, 32)
        for known in (True, False)
    ),
    *(Cell("tableak", 32, data, method="tableak", ensemble=30) for data in (*SPECS, "Diabetes")),
    Cell("refused", 128, method="tableak", batches=2),
    Cell("refused", 128, method="tableak", ensemble=30, batches=1),
]


@cache
def records_of(data: str) -> Records:
    """A table, encoded."""
    if data == "Diabetes":
        records = load_records("diabetes")
        return replace(records, inputs=records.inputs / records.inputs.std(dim=0))
    name, options = SPECS[data].split("?")
    return load_records(f"csv:{data_file(name)}?{options}")


def model_of(records: Records, cell: Cell, seed: int) -> nn.Module:
    """Some hidden layers, perhaps trained."""
    torch.manual_seed(seed)
    sizes = records.inputs.shape[1], *[cell.width] * cell.layers
    hidden = [part for size in pairwise(sizes) for part in (nn.Linear(*size), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(cell.width, 2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = drawn(len(records), 64, 300 if cell.trained else 0)
    return fit(model, records.inputs, records.labels, sgd, batches)


class Result(NamedTuple):
    """One batch's scores, and counts: decoys tried and certified, precisions told and held."""

    scores: TableScores
    guess: float
    decoys: int
    certified_decoys: int
    precisions: int
    held: int
    seconds: float


def attacked(cell: Cell, seed: int) -> Result | str:
    """Attack one batch; the reason where the attack is refused."""
    records = records_of(cell.data)
    draws = np.random.default_rng([cell.rows, seed])
    order = draws.permutation(len(records.inputs))
    batch, others = records.take(order[: cell.rows]), records.take(order[cell.rows :][:5000])
    precision = torch.float64 if cell.dtype == "float64" else torch.float32
    target = Target(model_of(records, cell, seed), CrossEntropy(), precision=precision)
    sharing = SharingProtocol()
    if cell.averaged:
        sharing = SharingProtocol(algorithm="fedavg", epochs=4, local_batch=4, rate=0.1)
    threat = ThreatModel(target, sharing, target.layers, cell.known_labels)
    view = threat.observed(batch, torch.Generator().manual_seed(seed)).view
    if cell.noise:
        exact, noise = view.in_precision(torch.float64), torch.Generator().manual_seed(seed)
        view = blurred(exact, cell.noise, noise)
    columns = TableColumns.of(records, others.inputs)
    tolerance = 0.319 if cell.method == "tableak" else 0.02
    truth = columns.cells(batch.inputs)
    options = TableOptions(ensemble=cell.ensemble, iterations=1500, tolerance=tolerance)
    setting = TableSetting(columns, seed, options, truth, others, threat)
    method: TableAttack = TabLeak() if cell.method == "tableak" else RowSpaceAttack()
    begun = time.process_time()
    try:
        answer = method.run(view, setting, Silent())
    except NotApplicable as why:
        return str(why)
    seconds = time.process_time() - begun
    scores = scores_of(columns, answer, truth, batch.labels, tolerance)
    guess = guessed(columns, cell.rows).cells
    mode = float((columns.codes(guess)[:, None] == columns.codes(truth)[None]).double().mean())
    facts = answer.facts
    tried, false = (int(str(facts.get(name, 0))) for name in ("decoys", "decoys_certified"))
    there = columns.alike(answer.cells, truth, 1.0)
    gap = (answer.cells[:, None, columns.numeric] - truth[None, :, columns.numeric]).abs()
    gap = gap.masked_fill(~there[:, :, None], torch.inf).amin(dim=1)
    said = answer.certified[:, None] & gap.isfinite() & answer.spread.isfinite()
    held = said & (gap <= answer.spread.clamp(min=1e-6))
    return Result(scores, mode, tried, false, int(said.sum()), int(held.sum()), seconds)


def show(cell: Cell, done: list[Result]) -> None:
    """Print the line of a cell."""
    scores = [result.scores for result in done]
    usual = Cell(cell.name, cell.rows)
    names = ("width", "layers", "dtype", "noise", "ensemble", "known_labels")
    details = (f"{n} {getattr(cell, n)}" for n in names if getattr(cell, n) != getattr(usual, n))
    certainty = np.concatenate([s.certainty.ravel() for s in scores])
    right = np.concatenate([s.right.ravel() for s in scores])
    sure, calibrated = certainty >= 0.9, ""
    if cell.method == "tableak":
        said, share = (x[sure].mean() if sure.any() else float("nan") for x in (certainty, right))
        error = calibration_error(certainty, right)
        calibrated = (
            f"{int(sure.sum())} cells {said:.3f} sure, {share:.3f} right; error {error:.3f}"
        )
    line(
        " ".join([cell.name, *details]),
        cell.data,
        cell.rows,
        f"{np.mean([s.rows.mean() for s in scores]):.3f}",
        f"{right.mean():.3f} (mode {np.mean([r.guess for r in done]):.2f})",
        f"{np.mean([s.certified.mean() for s in scores]):.3f}",
        f"{sum(s.false for s in scores)} ({sum(s.false_certified for s in scores)})",
        f"{sum(r.certified_decoys for r in done)} of {sum(r.decoys for r in done)}",
        f"{sum(r.held for r in done)} of {sum(r.precisions for r in done)}",
        f"{np.mean([r.seconds for r in done]):.1f}, most {max(r.seconds for r in done):.1f}",
        calibrated,
    )


def main() -> None:
    given = arguments(__doc__)
    shares = ("exact", "cells", "certified", "false rows (certified)", "decoys", "±", "s", "sure")
    heading("cell", "data", "rows", *shares)
    for cell in GRID:
        if given.only and given.only != cell.name:
            continue
        seeds = range(given.first, given.first + (cell.batches or given.batches))
        results = [attacked(cell, seed) for seed in seeds]
        reasons = [result for result in results if isinstance(result, str)]
        if len(reasons) < len(results):
            show(cell, [result for result in results if isinstance(result, Result)])
        if reasons:
            print(f"  {cell}: {len(reasons)} refused: {reasons[0]}")


if __name__ == "__main__":
    main()
