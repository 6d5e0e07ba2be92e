"""Verdicts of whole scans: a random attribute is shown nowhere, a strong one is shown high."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

import gradaudit
from benchmarks.coverage.studies.base import Cell, Outcome, Settings, Study
from benchmarks.harness import SAMPLES
from gradaudit.audits import audits
from gradaudit.data import load_records
from gradaudit.data.records import Attribute, Records
from gradaudit.judging import fails
from gradaudit.report import Report

MODEL = f"{SAMPLES / 'models.py'}:digits_cnn"
CHECKPOINT = SAMPLES / "digits" / "round-10.safetensors"
ASKED = ("vinfo", "subspace", "attack property")
"""The audits of an attribute that take part in a plain scan of the sample."""
FLIPPED = 0.1
"""Share of records whose planted value is drawn anew: the strong plant is no certainty."""


@cache
def digits() -> Records:
    return load_records("digits")


def with_attribute(plant: str, seed: int) -> Records:
    """The digits with an attribute that is a coin, or that follows from the digit."""
    records, generator = digits(), np.random.default_rng(seed)
    codes = generator.integers(0, 2, len(records))
    if plant == "strong":
        planted = (records.labels.numpy() < 5).astype(np.int64)
        codes = np.where(generator.random(len(records)) < FLIPPED, codes, planted)
    return replace(records, attributes={"private": Attribute(codes, ("no", "yes"))})


def scanned(plant: str, records: int, seed: int) -> Report:
    known = audits()
    return gradaudit.audit(
        MODEL,
        with_attribute(plant, seed),
        audits={name: known[name].plain for name in ASKED},
        checkpoints=(CHECKPOINT,),
        attributes=("private",),
        samples=records,
        seed=seed,
    )


def play(plant: str, records: int, seed: int) -> Mapping[str, Outcome]:
    """Whether the verdict is right; of the strong plant only where the attack really is strong."""
    report = gradaudit.gate(scanned(plant, records, seed))
    shown = [finding for finding in report.findings if finding.outcome == "failed"]
    if plant == "random":
        return {"no level shown": Outcome(not shown), "the gate passes": Outcome(not fails(report))}
    rows = report.select("attack.auroc")
    strong = any((row.value or 0) >= 0.9 for row in rows if not row.variant)
    high = any(finding.level == "error" for finding in shown)
    return {"shown high": Outcome(high if strong else None)}


def _cells(records: tuple[int, ...]) -> Iterator[Cell]:
    for plant, least in (("random", 0.95), ("strong", 0.90)):
        for count in records:
            if plant == "random" or count >= 1000:
                settings: Settings = {"attribute": plant, "records": count}
                yield Cell(settings, partial(play, plant, count), (least, 1.0))


STUDY = Study(
    "scan",
    "The sample model and digits, the audits of an attribute as in a plain scan, judged by "
    "the default policy: a fair coin for every record may be shown at no level; whether a digit is "
    "below five (one record in ten flipped by a coin) is a strong plant, to be shown high.",
    quick=partial(_cells, (200,)),
    full=partial(_cells, (200, 1000, 1800)),
)
