"""Mo et al. 2021, table 1 and figures 2-3: information and sensitivity against attack AUROC.

    python benchmarks/vinfo_tables.py [--models alexnet-mo21,fcnet] [--epochs 10] [--repeats 10]

The paper trains AlexNet, VGG11Net and FCNet on LFW, CelebA and PubFig (gender, glasses, gender) and
asks about a property (race: black; gender: female; race: black). Here the faces are UTKFace at
32 × 32, the task is gender and the property race: black. One half of the records trains the
networks (SGD, batches of 32, no momentum), checkpoints are taken after a fifth of the epochs and at
the end, and the other half is the audit's, a third of it the independent attack's. Every layer of
every network and checkpoint is a point.

Printed: each layer's information, its noise floor and the attack's AUROC; Pearson's R of the
information and of the label sensitivity (F) with that AUROC for each network and pooled, the
paper's beside it; and in which layer the information is largest (the paper: in the first fully
connected one). Needs ../shared/data/utkface_32.npz beside the checkout, or GRADAUDIT_SHARED.
"""

import argparse
import copy
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gradaudit.audits.vinfo import Vinfo
from gradaudit.inference.intervals import pearson
from gradaudit.loading.datasets import load_records
from gradaudit.loading.losses import CrossEntropy
from gradaudit.loading.models import load_model
from gradaudit.loading.records import Attribute, Records
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.target import Subject, Target

SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[2] / "shared"))
BLACK = "black"
RATE = 0.05
PAPER = {
    "alexnet-mo21": (0.959, 0.707),
    "vgg11net": (0.952, 0.686),
    "fcnet": (0.965, -0.144),
    "all": (0.951, 0.304),
}
"""R of the information and of the sensitivity, by network."""


class Point(NamedTuple):
    information: float
    sensitivity: float
    auroc: float


def faces() -> tuple[Records, Records]:
    """The records that train and the audit's, with the attribute ``black``."""
    file = SHARED / "data" / "utkface_32.npz"
    if not file.exists():
        sys.exit(f"{file} is not there; name the folder of data with GRADAUDIT_SHARED")
    spec = f"npz:{file}?inputs=images&label=gender&attribute=race"
    records = load_records(spec, attributes=("race",))
    race = records.attributes["race"]
    codes = (race.codes == race.values.index(BLACK)).astype(np.int64)
    records = replace(records, attributes={"black": Attribute(codes, ("no", "yes"))})
    order = np.random.default_rng(0).permutation(len(records))
    return records.take(order[: len(order) // 2]), records.take(order[len(order) // 2 :])


def train(model: nn.Module, records: Records, epochs: int) -> list[nn.Module]:
    """The model after a fifth of the epochs, and after all."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.optim.SGD(model.parameters(), lr=RATE)
    kept = []
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(records), generator=generator).split(32):
            steps.zero_grad()
            loss = nn.functional.cross_entropy(model(records.inputs[batch]), records.labels[batch])
            loss.backward()
            steps.step()
        if epoch in {max(1, epochs // 5), epochs}:
            kept.append(copy.deepcopy(model).eval())
    return kept


def audit(name: str, training: Records, own: Records, options: argparse.Namespace) -> list[Point]:
    model = load_model(f"zoo:{name}?classes=2", seed=0)
    targets = tuple(Target(each, CrossEntropy()) for each in train(model, training, options.epochs))
    right = targets[-1].model(own.inputs).argmax(dim=1) == own.labels
    print(f"\n{name}: task accuracy {right.float().mean():.3f} on the audit's records")
    layers = targets[-1].layers
    subject = Subject(targets, own, layers, attributes=("black",), samples=options.records)
    settled = Vinfo.Options.model_validate(
        {"repeats": options.repeats, "batch_size": options.batch_size}
    )
    rows = list(Vinfo(settled).run(subject, Silent()))
    sensitivity = sensitivities(subject)
    return [
        point
        for number in range(1, len(targets) + 1)
        for point in of_round(rows, sensitivity, subject, number)
    ]


def sensitivities(subject: Subject) -> dict[tuple[int, str], float]:
    """The label sensitivity (F) by round and layer."""
    from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions

    found = Sensitivity(SensitivityOptions(probes=16)).run(replace(subject, samples=32), Silent())
    newest = len(subject.targets)
    return {
        (int(row.variant.get("round", newest)), str(row.layer)): row.value
        for row in found
        if row.metric == "label_f" and row.value is not None
    }


def of_round(
    rows: list[Measurement],
    sensitivity: dict[tuple[int, str], float],
    subject: Subject,
    number: int,
) -> list[Point]:
    turn = {} if number == len(subject.targets) else {"round": number}
    points = []
    print(f"checkpoint {number}\n  layer      vinfo (nats)              permuted  attack's AUROC")
    for layer in subject.layers:
        row = one(rows, "vinfo", layer.name, turn)
        null = one(rows, "vinfo", layer.name, {**turn, "attribute_permuted": True})
        attack = one(rows, "auroc", layer.name, {**turn, "independent": True})
        low, high = row.interval or (0.0, 0.0)
        print(
            f"  {layer.name:9}  {row.value:.3f} [{low:.3f}, {high:.3f}]"
            f"{null.value:14.3f}{attack.value:12.3f}"
        )
        points.append(
            Point(float(row.details["mean"]), sensitivity[number, layer.name], attack.value or 0)
        )
    best = max(range(len(points)), key=lambda index: points[index].information)
    print(f"  largest in {subject.layers[best].name} ({subject.layers[best].kind})")
    return points


def one(rows: list[Measurement], metric: str, layer: str, variant: dict) -> Measurement:
    (row,) = (r for r in rows if (r.metric, r.layer, r.variant) == (metric, layer, variant))
    return row


def correlations(points: dict[str, list[Point]]) -> None:
    print("\n                 vinfo: R, t, p, interval, paper's R      sensitivity label_f: same")
    pooled = [point for own in points.values() for point in own]
    for name, own in {**points, "all": pooled}.items():
        table = np.array(own)
        cells = []
        for column, paper in zip((0, 1), PAPER[name], strict=True):
            found = pearson(table[:, column], table[:, 2])
            cells.append(
                "too few points"
                if found is None
                else f"{found.r:.3f}, {found.t:.2f}, {found.p:.2g}, "
                f"[{found.interval[0]:.2f}, {found.interval[1]:.2f}] ({paper})"
            )
        print(f"{name:13} {len(own):2}  " + "   ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="alexnet-mo21,fcnet")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    training, own = faces()
    begun = time.perf_counter()
    correlations({name: audit(name, training, own, options) for name in options.models.split(",")})
    print(f"\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
