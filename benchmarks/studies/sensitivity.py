"""Intervals of sensitivities: means over records whose law is known, and shares of them."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.rows import Rows
from gradaudit.audits.sensitivity import Sensitivity
from gradaudit.audits.sensitivity.measure import rows_of
from gradaudit.config import SubjectSettings, settle
from gradaudit.gradients.norms import Norm
from gradaudit.gradients.sensitivity import Measured, Observed, Sample
from gradaudit.progress import Silent
from gradaudit.subject import open_subject
from studies.base import Cell, Outcome, Settings, Study, interval

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]

SAMPLES = Path(__file__).parents[2] / "sample_models"
RECORDS = (16, 64, 256)
PROBES = 16
"""Where there are any; the same for every record, of Jacobians of rank one."""
SMALLEST = ((2, 8), (4, 8))
"""Records and probes of the least sizes that a scan in little time takes."""


def lognormal(deviation: float) -> tuple[Draw, float]:
    """Values and their mean."""
    return (
        lambda generator, count: np.exp(deviation * generator.standard_normal(count)),
        float(np.exp(deviation**2 / 2)),
    )


@cache
def of_digits(round_number: int) -> tuple[Array, Array]:
    """Label sensitivities of all digits in conv1 and fc2 of the sample model after a round."""
    settings = {
        "model": f"{SAMPLES / 'models.py'}:digits_cnn",
        "checkpoint": (SAMPLES / "digits" / f"round-{round_number:02}.safetensors",),
        "data": "digits",
        "device": "cpu",
    }
    subject = open_subject(settle(SubjectSettings, settings, {}))
    observed = Observed.of(subject.target, subject.layers, subject.records, 0)
    measured = observed.measure("target", 0, seed=0, memory=1 << 30, progress=Silent())
    first, last = (measured.bounded[layer]["f"].values for layer in ("conv1", "fc2"))
    return first, last


def outcomes(
    values: Mapping[str, Array], truths: Mapping[str, float], seed: int, probes: Array | None
) -> Mapping[str, Outcome]:
    """The audit's own rows of these records' norms, (records,) by layer, against their means."""
    records = len(next(iter(values.values())))
    defined = np.ones(records, dtype=bool)
    samples: dict[str, dict[Norm, Sample]] = {}
    for layer, each in values.items():
        parts = each[:, None] if probes is None else np.outer(each, probes) ** 2
        samples[layer] = {"f": Sample(parts, defined, probes is not None)}
    measured = Measured({}, samples, "", 0 if probes is None else len(probes))
    rows = rows_of(Rows(Sensitivity), "label", list(values), measured, seed)
    total = sum(truths.values())
    found = {}
    for row in rows:
        if row.status == "measured" and row.layer == "first" and row.interval is not None:
            share = row.metric.endswith("share")
            truth = truths["first"] / (total if share else 1.0)
            imprecise = bool(row.details.get("imprecise"))
            found["share" if share else "mean"] = interval(
                *row.interval, truth, imprecise=imprecise
            )
    return found


def play(seed: int, *, law: str, records: int, probes: int) -> Mapping[str, Outcome]:
    """Records whose norms in two layers go together, but for a factor of their own."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal(probes) if probes else None
    if law.startswith("digits"):
        both = of_digits(int(law.split()[-1]))
        at = generator.integers(0, len(both[0]), records)
        values = {"first": both[0][at], "last": both[1][at]}
        truths = {"first": float(both[0].mean()), "last": float(both[1].mean())}
        return outcomes(values, truths, seed, directions)
    draw, mean = LAWS[law]
    first = draw(generator, records)
    values = {"first": first, "last": 3 * first * generator.uniform(0.5, 1.5, records)}
    return outcomes(values, {"first": mean, "last": 3 * mean}, seed, directions)


LAWS: dict[str, tuple[Draw, float]] = {
    "near 1": (lambda generator, count: 1 + 0.1 * generator.standard_normal(count), 1.0),
    "gamma 4": (lambda generator, count: generator.gamma(4.0, size=count), 4.0),
    "exponential": (lambda generator, count: generator.exponential(size=count), 1.0),
    **{f"lognormal {s}": lognormal(s) for s in (1.0, 1.5, 2.0, 2.5)},
}
DIGITS = tuple(f"digits, round {number}" for number in (1, 3, 10))


def cell(law: str, records: int, probes: int = 0) -> Cell:
    settings: Settings = {"law": law, "records": records, **({"probes": probes} if probes else {})}
    return Cell(settings, partial(play, law=law, records=records, probes=probes))


def quick() -> Iterator[Cell]:
    for law in ("gamma 4", "lognormal 1.5", "lognormal 2.5"):
        for records in (16, 64):
            yield cell(law, records)


def full() -> Iterator[Cell]:
    for law in (*LAWS, *DIGITS):
        for records in RECORDS:
            yield cell(law, records)
    for law in ("gamma 4", "lognormal 1.0"):
        for records in RECORDS:
            yield cell(law, records, PROBES)
    for law in ("near 1", "gamma 4", "lognormal 1.0", "lognormal 2.0"):
        for records, probes in SMALLEST:
            yield cell(law, records, probes)


STUDY = Study(
    name="sensitivity",
    says="Means over records of norms, and a layer's share in two, by `audits.sensitivity.rows` "
    "and `statistics.bootstrap`; the truth is the law's mean, or the mean of all 1,797 digits of "
    "which records are drawn with replacement. Inputs look like the first laws, labels like the "
    "others.",
    quick=quick,
    full=full,
    notes=("Where few records carry the mean, no interval covers it, and the row is imprecise.",),
)
