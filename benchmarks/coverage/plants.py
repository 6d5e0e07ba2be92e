"""Attributes that an independent attacker reads at .99 and more: how many ``--quick`` shows.

    python -m benchmarks.coverage.plants [--size quick] [--nulls 30] [--records 1000]
        [--data cnn,table,text] [--families '']

A plant is a fair coin for every record; the records on one side of the coin have their inputs
scaled, shifted, rotated or made sparser. Each is audited as in ``gradaudit scan --quick`` (another
size with ``--size``, other families with ``--families``) by the audits of an attribute, and counts
as shown where the default policy finds an error. The nulls are coins that change nothing: of those,
the share that is shown at any level must stay at 5 % or less. Each of the changes below was read at
.99 or more, from batches of 16, by scikit-learn's forests on gradients, on their magnitudes, or on
their norms and sorted normalised magnitudes.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import gradaudit
from benchmarks.harness import SAMPLES, arguments, data_file, epochs_of, fit, heading, line
from gradaudit.audits import audits
from gradaudit.data import load_records
from gradaudit.data.records import Attribute, Records
from gradaudit.models.building import load_model
from gradaudit.zoo import build

ASKED, LEVELS = ("vinfo", "attack property"), ("error", "warning")
Change = Callable[[Tensor], Tensor]
"""Inputs (records, …) to the changed inputs of the same shape."""


class Study(NamedTuple):
    """Clean records, a model of them, and what a plant does to the inputs."""

    records: Records
    model: nn.Module
    changes: Mapping[str, Change]


def sparser(kept: float) -> Change:
    """Entries set to zero, or words dropped, independently."""

    def change(inputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return inputs * (torch.rand(inputs.shape, generator=generator) < kept)

    return change


def turned(degrees: float) -> Change:
    """Neighbouring columns turned into one another: no column's mean and no norm changes much."""
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))

    def change(inputs: Tensor) -> Tensor:
        left, right = inputs[:, 0:-1:2], inputs[:, 1::2]
        turned = inputs.clone()
        turned[:, 0:-1:2] = cosine * left - sine * right
        turned[:, 1::2] = sine * left + cosine * right
        return turned

    return change


def trained(model: nn.Module, records: Records, epochs: int) -> nn.Module:
    """By Adam, from the weights that the model has."""
    torch.manual_seed(0)
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    batches = epochs_of(len(records), 32, epochs)
    return fit(model, records.inputs, records.labels, adam, batches)


@cache
def cnn(count: int) -> Study:
    records = load_records("digits").take(np.arange(count))
    checkpoint = SAMPLES / "digits" / "round-10.safetensors"
    model = load_model(f"{SAMPLES / 'models.py'}:digits_cnn").eval()
    model.load_state_dict(load_file(checkpoint))
    changes: dict[str, Change] = {
        "scaled to .2": lambda x: x * 0.2,
        "scaled to .35": lambda x: x * 0.35,
        "scaled to .1": lambda x: x * 0.1,
        "scaled to -1": lambda x: -x,
        "shifted by .6": lambda x: x + 0.6,
        "shifted by a pixel": lambda x: x.roll(1, 3),
        "rotated by 90°": lambda x: x.rot90(1, (2, 3)),
        "rotated by 180°": lambda x: x.rot90(2, (2, 3)),
        "sparser, .5": sparser(0.5),
        "sparser, .3": sparser(0.3),
    }
    return Study(records, model, changes)


@cache
def table(count: int) -> Study:
    records = load_records(f"csv:{data_file('german_credit.csv')}?label=class-label")
    records = replace(records.take(np.arange(count)), features=())
    width = records.inputs.shape[1]
    torch.manual_seed(0)
    model = trained(build("mlp", inputs=(width,), hidden=(64,), classes=2), records, 10)
    changes: dict[str, Change] = {
        "scaled to .5": lambda x: x * 0.5,
        "scaled to .3": lambda x: x * 0.3,
        "scaled to 2": lambda x: x * 2,
        "scaled to 4": lambda x: x * 4,
        "shifted by .3": lambda x: x + 0.3,
        "shifted by 1": lambda x: x + 1.0,
        "rotated by 45°": turned(45),
        "rotated by 180°": turned(180),
        "sparser, .5": sparser(0.5),
        "sparser, .4": sparser(0.4),
    }
    return Study(records, model, changes)


@cache
def text(count: int) -> Study:
    spec = "text=text&label=sentiment&length=64&vocabulary=2000"
    records = load_records(f"text:{data_file('imdb_16k.csv.gz')}?{spec}")
    records = records.take(np.random.default_rng(0).permutation(len(records))[:count])
    torch.manual_seed(0)
    plain = build("textclf", vocabulary=2000, embedding=16, length=64, classes=2)
    model = trained(plain, records, 5)
    changes: dict[str, Change] = {
        "scaled to half the length": lambda x: x * (torch.arange(64) < 32),
        "scaled to .8 of the length": lambda x: x * (torch.arange(64) < 51),
        "shifted by 16 words": lambda x: x.roll(16, 1),
        "shifted by a code": lambda x: (x + 1) % 2000,
        "rotated in eights": lambda x: x.view(len(x), -1, 8).flip(2).flatten(1),
        "rotated end to end": lambda x: x.flip(1),
        "sparser, .8": sparser(0.8),
        "sparser, .5": sparser(0.5),
    }
    return Study(records, model, changes)


STUDIES = {"cnn": cnn, "table": table, "text": text}


def planted(study: Study, change: Change, seed: int) -> Records:
    """The records of one side of a coin changed."""
    coins = np.random.default_rng(seed).integers(0, 2, len(study.records))
    inputs = study.records.inputs.clone()
    chosen = torch.from_numpy(coins == 1)
    inputs[chosen] = change(inputs[chosen]).to(inputs.dtype)
    attribute = Attribute(coins.astype(np.int64), ("plain", "changed"))
    return replace(study.records, inputs=inputs, attributes={"plant": attribute})


def audited(study: Study, records: Records, given: argparse.Namespace, seed: int) -> Any:
    """The judged report."""
    known = audits()
    options = {name: dict(getattr(known[name], given.size)) for name in ASKED}
    for of_audit in options.values():
        of_audit |= {"family": given.families.split(",")} if given.families else {}
    report = gradaudit.audit(
        study.model, records, audits=options, attributes=("plant",), samples=len(records), seed=seed
    )
    return gradaudit.gate(report)


def most(report: Any, metric: str) -> str:
    rows = [row for row in report.select(metric, variant={}) if row.value is not None]
    row = max(rows, key=lambda row: (row.interval or (row.value,))[0])
    low, high = row.interval
    return f"{row.value:.3f} [{low:.3f}, {high:.3f}] {row.layer or 'all'}"


def shown(report: Any, levels: tuple[str, ...]) -> bool:
    return any(each.outcome == "failed" and each.level in levels for each in report.findings)


def main() -> None:
    given = arguments(__doc__)
    heading("data", "plant", "shown", "vinfo.auroc", "gain")
    for name in given.data.split(","):
        study, found = STUDIES[name](given.records), []
        for seed, (what, change) in enumerate(study.changes.items()):
            report = audited(study, planted(study, change, seed), given, seed)
            found.append(shown(report, ("error",)))
            told = (most(report, metric) for metric in ("vinfo.auroc", "attack.auroc_gain"))
            line(name, what, "yes" if found[-1] else "MISSED", *told)
        nulls = [
            shown(audited(study, planted(study, lambda x: x, seed), given, seed), LEVELS)
            for seed in range(100, 100 + given.nulls)
        ]
        print(f"{name}: {sum(found)} of {len(found)} shown, {sum(nulls)} of {len(nulls)} coins")


if __name__ == "__main__":
    main()
