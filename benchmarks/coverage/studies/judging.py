"""Judging in three: how often a report holds a false verdict, alone and as a family."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np
from scipy import stats

from benchmarks.coverage.studies.base import Cell, Outcome, Settings, Study
from gradaudit.judging import Policy, gate
from gradaudit.report import LayerRecord, Measurement, Report, TargetRecord

CONFIDENCE = 0.95
REPETITIONS = 20
FAR = 8.0
HAIR = 1e-9


def play(settings: Settings, seed: int) -> Mapping[str, Outcome]:
    """One report of rows at their limit, among others far to both sides of theirs.

    Half of the rows at the limit are within it by a hair and half beyond, so that each has one
    false verdict; intervals are Student's over repetitions whose noise the rows share in part.
    """
    generator = np.random.default_rng(seed)
    rows, shared = int(settings["rows"]), float(settings["correlation"])
    effects = np.resize([HAIR, -HAIR], rows)
    effects[: int(rows * float(settings["settled"]))] *= FAR / HAIR
    noise = np.sqrt(shared) * generator.normal(size=(REPETITIONS, 1))
    noise = noise + np.sqrt(1 - shared) * generator.normal(size=(REPETITIONS, rows))
    means = effects + noise.mean(axis=0)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, REPETITIONS - 1)
    halves = quantile * noise.std(axis=0, ddof=1) / np.sqrt(REPETITIONS)
    report = _report(means, halves)
    return {
        "the first row alone": Outcome(_right(report, effects, "none")[0]),
        "family: holm": Outcome(all(_right(report, effects, "holm"))),
    }


def _right(report: Report, effects: np.ndarray, family: str) -> list[bool]:
    """Whether the verdict of each row is not false."""
    policy = Policy.model_validate({"rules": [{"metric": "a.b", "max": 0}], "family": family})
    findings = gate(report, policy).findings
    return [
        finding.outcome != ("passed" if effect > 0 else "failed")
        for finding, effect in zip(findings, effects, strict=True)
    ]


def _report(means: np.ndarray, halves: np.ndarray) -> Report:
    names = [f"layer{i}" for i in range(len(means))]
    measurements = [
        Measurement(
            audit="a",
            metric="b",
            layer=name,
            value=float(mean),
            interval=(float(mean - half), float(mean + half)),
            confidence=CONFIDENCE,
            n=REPETITIONS,
        )
        for name, mean, half in zip(names, means, halves, strict=True)
    ]
    layers = [LayerRecord(name=name, kind="Linear", parameters=1, position=0) for name in names]
    target = TargetRecord(model="", parameters=1, layers=layers, loss="", mode="eval")
    return Report(tool={}, target=target, data={}, provenance={}, measurements=measurements)


def _cells(*sizes: int) -> Iterator[Cell]:
    for rows, correlation, settled in product(sizes, (0.0, 0.5, 0.9), (0.0, 0.5)):
        settings: Settings = {"rows": rows, "correlation": correlation, "settled": settled}
        yield Cell(settings, partial(play, settings), nominal=(0.95, 1.0))


STUDY = Study(
    name="judging",
    says="Reports whose rows lie at their limits (a settled share far from them), judged by "
    "`gradaudit.judging.gate`; right is a report without any false verdict, shown or passed.",
    quick=lambda: _cells(10),
    full=lambda: _cells(1, 10, 40, 120),
    notes=("Each row has one false verdict here, and errs in 2.5 % of reports when judged alone.",),
)
