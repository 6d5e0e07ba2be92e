"""Intervals of the information that activations hold of a record, on normal activations."""

from collections.abc import Iterator, Mapping
from functools import cache, partial

import numpy as np

from benchmarks.coverage.studies.base import Cell, Outcome, Study, interval
from gradaudit.audits.forward import Forward
from gradaudit.audits.forward.measure import Pairs, rows_of
from gradaudit.audits.rows import Rows
from gradaudit.report import Measurement

SAMPLES = 2000
"""Of the independent simulation of the truth."""
LAYERS = {"dense": (1, 0.1), "sparse": (4, 0.3), "wide": (64, 8.0)}
"""Elements of a layer, and the variance of the noise."""


def rows(layer: str, records: int, generator: np.random.Generator) -> dict[str, Measurement]:
    """The audit's own rows of so many records, by metric."""
    dimensions, sigma2 = LAYERS[layer]
    pairs = Pairs(records)
    pairs.add(generator.normal(size=(records, dimensions)))
    made = rows_of("layer", pairs.squared_distances(), Rows(Forward), sigma2)
    return {row.metric: row for row in made if row.metric.startswith("information")}


@cache
def truth(layer: str, records: int) -> Mapping[str, float]:
    """What as many other records give on average."""
    generator = np.random.default_rng(1)
    found = [rows(layer, records, generator) for _ in range(SAMPLES)]
    return {metric: float(np.mean([each[metric].value for each in found])) for metric in found[0]}


def play(layer: str, records: int, seed: int) -> Mapping[str, Outcome]:
    right = truth(layer, records)
    found = rows(layer, records, np.random.default_rng([seed, records]))
    return {
        metric: interval(*row.interval, right[metric])
        for metric, row in found.items()
        if row.interval is not None
    }


def _cells(counts: tuple[int, ...]) -> Iterator[Cell]:
    for layer in LAYERS:
        for records in counts:
            yield Cell({"layer": layer, "records": records}, partial(play, layer, records))


STUDY = Study(
    name="forward",
    says="Both bounds on normal activations, by `information.activations`, as the audit tells "
    f"them; the truth is what as many other records give on average ({SAMPLES:,} samples).",
    quick=partial(_cells, (16,)),
    full=partial(_cells, (16, 60, 200)),
)
