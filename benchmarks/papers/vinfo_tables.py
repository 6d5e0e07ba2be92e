"""Mo et al. 2021, table 1 and figures 2-3: information and sensitivity against attack AUROC.

    python -m benchmarks.papers.vinfo_tables [--models alexnet-mo21,fcnet,vgg11net]
        [--attributes white,older,black] [--epochs 8] [--train 2000] [--repeats 6] [--batches 48]
        [--batch-size 32] [--reduce maxpool:10] [--family forest,logistic]

The paper trains AlexNet, VGG11Net and FCNet on LFW, CelebA and PubFig (gender, glasses, gender) and
asks about a property (race: black; gender: female; race: black). Here the faces are UTKFace at
32 × 32, the task is gender, and the properties are races against the rest and ages above the median
(29). Some records train the networks (SGD in batches of 32, with momentum and weights drawn as He
et al. 2015 do, without which nine layers of 32 units do not train in so few epochs); the others are
the audit's, a third of them the independent attack's, who is of another family (extra-trees). Every
layer of every network and attribute is a point. Gradients are max-pooled before a classifier sees
them, as in the paper.

The repetitions are those of ``gradaudit vinfo``, but both readings of the information are of the
same gradients: ``vinfo``, of calibrated members, and ``--paper``, the softmax of a forest's votes.
Printed: both with Student's interval and the attack's AUROC of every layer (the paper's information
is largest in the first fully connected one). After every attribute, for each network and pooled:
Pearson's R of the information and of the label sensitivity (F) with that AUROC, the paper's beside
it, Spearman's, and Pearson's with the AUROC as nats, those of two Gaussian classes that have this
AUROC, since information rises with its square near one half.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import nn

from benchmarks.coverage.planted_nats import information
from benchmarks.harness import arguments, data_file, epochs_of, fit, heading, line
from gradaudit.accuracy import task_accuracy
from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
from gradaudit.audits.vinfo import VinfoOptions
from gradaudit.audits.vinfo.cases import AttributeCase, drawn_cases
from gradaudit.audits.vinfo.repetitions import Repetition
from gradaudit.audits.vinfo.v_information import Estimator, UsableInformation
from gradaudit.audits.vinfo.v_information import estimate as of_repetition
from gradaudit.core.statistics.correlation import pearson
from gradaudit.core.statistics.intervals import student
from gradaudit.data import load_records
from gradaudit.data.records import Attribute, Records
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.subject import Subject

OLDER = "older"
RATE, MOMENTUM = 0.01, 0.9
MEMORY = 3 << 30
PAPER = {
    "alexnet-mo21": (0.959, 0.707),
    "vgg11net": (0.952, 0.686),
    "fcnet": (0.965, -0.144),
    "all": (0.951, 0.304),
}
"""R of the information and of the sensitivity, by network."""


class Point(NamedTuple):
    """Of one layer."""

    information: float
    paper: float
    sensitivity: float
    auroc: float


def faces(asked: list[str], count: int) -> tuple[Records, Records]:
    """The records that train and the audit's, with a binary attribute for every name asked.

    That is whether a face is of a race, or older than the median age.
    """
    records = load_records(
        f"npz:{data_file('utkface_32.npz')}?inputs=images&label=gender&attribute=race&attribute=age",
        attributes=("race", "age"),
    )
    race, older = records.attributes["race"], records.attributes["age"].codes == 1
    having = {
        name: older if name == OLDER else race.codes == race.values.index(name) for name in asked
    }
    attributes = {
        name: Attribute(of.astype(np.int64), ("no", "yes")) for name, of in having.items()
    }
    records = replace(records, attributes=attributes)
    order = np.random.default_rng(0).permutation(len(records))
    return records.take(order[:count]), records.take(order[count:])


def train(model: nn.Module, records: Records, epochs: int) -> nn.Module:
    """The trained model."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        else:
            nn.init.zeros_(parameter)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    batches = epochs_of(len(records), 32, epochs, generator)
    return fit(model, records.inputs, records.labels, sgd, batches)


def points_of(
    name: str, training: Records, own: Records, given: argparse.Namespace
) -> Iterator[list[Point]]:
    """The points of a network, attribute by attribute."""
    model = train(load_model(f"zoo:{name}?classes=2", seed=0), training, given.epochs)
    target = Target(model, CrossEntropy())
    right = [task_accuracy(target, records).value for records in (training, own)]
    print(
        f"\n{name}: task accuracy {right[0]:.3f} on the training records, {right[1]:.3f} on others"
    )
    sensitivity = sensitivities(Subject((target,), own, target.layers))
    options = VinfoOptions(
        batch_size=given.batch_size, batches=given.batches, repeats=given.repeats
    )
    cases, refused = drawn_cases(own, options, 0, keep=True)
    for why in refused.values():
        print(f"skipped: {why}")
    for case in cases:
        yield of_case(target, own, case, given, sensitivity)


def sensitivities(subject: Subject) -> dict[str, float]:
    """The label sensitivity (F) by layer."""
    found = Sensitivity(SensitivityOptions(probes=16)).run(replace(subject, samples=32), Silent())
    return {
        str(row.layer): row.value
        for row in found
        if row.metric == "label_f" and row.value is not None
    }


def of_case(
    target: Target,
    own: Records,
    case: AttributeCase,
    given: argparse.Namespace,
    sensitivity: dict[str, float],
) -> list[Point]:
    print(
        f"\n{case.attribute}: folds and score set of {[len(p) for p in case.real[0].parts]} records"
    )
    heading("layer", "vinfo, nats", "paper's reading", "label_f", "attack's AUROC")
    planned = [*case.real, *case.independent]
    every = np.concatenate([batches.indices for each in planned for batches in each.batches])
    interceptor = Interceptor(target, own, target.layers, reduce=given.reduce, memory=MEMORY)
    points = []
    for layer, features in interceptor.features(every):
        ends = np.cumsum([sum(len(b.labels) for b in each.batches) for each in planned])[:-1]
        rows = list(zip(planned, np.split(features.numpy(), ends), strict=True))
        real, kept = rows[: len(case.real)], rows[len(case.real) :]
        ours = [estimate(*row, tuple(given.family.split(","))) for row in real]
        paper = [estimate(*row, ("forest",), paper=True) for row in real]
        auroc = float(np.mean([estimate(*row, ("extra-trees",)).auroc for row in kept]))
        at = sensitivity[layer.name]
        line(layer.name, cell(ours), cell(paper), f"{at:.3g}", f"{auroc:.3f}")
        points.append(Point(mean(ours), mean(paper), at, auroc))
    return points


def estimate(
    repetition: Repetition, rows: np.ndarray, members: tuple[str, ...], *, paper: bool = False
) -> UsableInformation:
    seed = np.random.SeedSequence(0, spawn_key=(repetition.number,))
    adversary = Estimator(members, paper=paper)
    return of_repetition(rows, repetition, adversary, seed, lambda units: None)


def mean(found: Sequence[UsableInformation]) -> float:
    """Not truncated at 0."""
    return float(np.mean([each.information for each in found]))


def cell(found: Sequence[UsableInformation]) -> str:
    low, high = student(np.array([each.information for each in found]))
    return f"{mean(found):.3f} [{low:.3f}, {high:.3f}]"


def correlations(points: dict[str, list[Point]]) -> None:
    """Pearson's R of each column with the attack's AUROC."""
    print()
    heading("network", "points", "of", "R [95 %]", "t", "p", "Spearman", "R in nats", "paper's R")
    pooled = [point for own in points.values() for point in own]
    for name, own in {**points, "all": pooled}.items():
        table, (of_information, of_sensitivity) = np.array(own), PAPER[name]
        nats = np.array([nats_of(each) for each in table[:, 3]])
        for title, column, paper in (
            ("vinfo", 0, of_information),
            ("vinfo, paper's reading", 1, of_information),
            ("sensitivity label_f", 2, of_sensitivity),
        ):
            found, in_nats = (pearson(table[:, column], by) for by in (table[:, 3], nats))
            if found is not None and in_nats is not None:
                r = f"{found.r:.3f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]"
                more = (
                    f"{found.t:.2f}",
                    f"{found.p:.2g}",
                    f"{found.spearman:.3f}",
                    f"{in_nats.r:.3f}",
                )
                line(name, len(own), title, r, *more, paper)


def nats_of(auroc: float) -> float:
    """Information that two Gaussian classes of one variance have at this AUROC."""
    return information(float(np.sqrt(2) * norm.ppf(np.clip(auroc, 0.5, 1 - 1e-9))))


def main() -> None:
    options = arguments(__doc__)
    if options.reduce.startswith("pca"):
        sys.exit("--reduce pca: components would be fitted on the records that score, too")
    print(f"UTKFace at 32 x 32, task gender; {vars(options)}", flush=True)
    training, own = faces(options.attributes.split(","), options.train)
    found: dict[str, list[Point]] = {}
    for name in options.models.split(","):
        for points in points_of(name, training, own, options):
            found.setdefault(name, []).extend(points)
            correlations(found)


if __name__ == "__main__":
    main()
