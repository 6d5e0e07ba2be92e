"""Information about the input in sets of layers: Mo et al. 2022, figure 2, and 2021, figure 10.

    python -m benchmarks.papers.original_information [--nets lenet alexnet-mo22 vgg9 …]
        [--together 2 …] [--methods dlg idlg inverting-gradients …] [--size 32] [--pictures 4]
        [--restarts 4] [--steps 20] [--adam 240] [--convolutions 7] [--seed 0] [--directions]

The paper of 2022 has LeNet, AlexNet and VGG9 (ReLU) on CIFAR-100, pairs of consecutive layers and
thresholds on SSIM from 0.05 to 0.8: for LeNet the information falls from the first pair to the last
above a threshold of 0.5, for deeper nets it is largest in the middle, and for all the last pair has
the least. The one of 2021 runs iDLG, on single layers and on sets of them, on the network of Deep
Leakage from Gradients with seven convolutions (12 channels of 5×5, sigmoid, weights from
uniform(−0.5, 0.5)): ``--nets deep-leakage --together 1 2 4 --methods idlg``; those of the first
layer tend to matter most. Here: CIFAR-10, untrained weights, batches of one record, few restarts
and steps (``--steps`` of L-BFGS, ``--adam`` of inverting gradients). ``--directions`` counts
instead in how many directions of the first picture's values each set's gradient moves.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from benchmarks.harness import arguments, cifar10, heading, line
from gradaudit import zoo
from gradaudit.audits.vinfo import Vinfo, VinfoOptions
from gradaudit.audits.vinfo.original import THRESHOLDS, ceiling
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject

LEVELS, SINGULAR = (0.1, 0.2, 0.3, 0.5), (1e-1, 1e-2, 1e-3)


def net(name: str, given: argparse.Namespace) -> nn.Module:
    """A net of the papers, weights drawn under the seed."""
    torch.manual_seed(given.seed)
    more = {"activation": "relu"}
    if name == "deep-leakage":
        more = {"convolutions": given.convolutions, "init": "uniform:0.5"}
    return zoo.build(name, shape=(3, given.size, given.size), classes=10, **more).double()


def measured(model: nn.Module, records: Records, given: argparse.Namespace) -> list[Measurement]:
    """The audit's rows at all thresholds."""
    target = Target(model, CrossEntropy())
    subject = Subject((target,), records, target.layers, seed=given.seed)
    steps = {"inverting-gradients": given.adam}
    options = VinfoOptions(
        original=True,
        method=tuple(f"{each}:iterations={steps.get(each, given.steps)}" for each in given.methods),
        restarts=given.restarts,
        updates=given.pictures,
        together=tuple(given.together),
    )
    rows = Vinfo(options).run(subject, Silent())
    return [row for row in rows if "threshold" in row.variant]


def directions(model: nn.Module, records: Records, together: Sequence[int]) -> None:
    """Rank of ∂G/∂x of consecutive layers at the first record, and what an error leaves of it."""
    record, label = records.inputs[0].double(), records.labels[:1]
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in weights))
    basis = torch.eye(record.numel(), dtype=torch.float64)

    def gradient(flat: Tensor, chosen: Sequence[str]) -> Tensor:
        def loss(own: dict[str, Tensor]) -> Tensor:
            inputs = (flat.reshape(1, *record.shape),)
            outputs = functional_call(model, {**weights, **own}, inputs)
            return functional.cross_entropy(outputs, label)

        own = {name: w for name, w in weights.items() if name.rpartition(".")[0] in chosen}
        return torch.cat([part.flatten() for part in grad(loss)(own).values()])

    def moved(chosen: Sequence[str], tangent: Tensor) -> Tensor:
        found: Tensor = jvp(lambda x: gradient(x, chosen), (record.flatten(),), (tangent,))[1]
        return found

    heading("layers", "elements", "rank", "of", *(f"above {s:g} of the largest" for s in SINGULAR))
    for size in together:
        for start in range(len(layers) - size + 1):
            chosen = layers[start : start + size]
            jacobian = vmap(partial(moved, chosen), chunk_size=32)(basis)
            values = torch.linalg.svdvals(torch.linalg.qr(jacobian.T, mode="r")[1])
            floors = (max(jacobian.shape) * 2.2e-16, *SINGULAR)
            rank, *above = (int((values > values[0] * floor).sum()) for floor in floors)
            line("+".join(chosen), jacobian.shape[1], rank, len(basis), *above)


def show(rows: list[Measurement], metric: str) -> None:
    """Print a metric by set of layers over thresholds; what cannot be compared is a dash."""
    print()
    heading(metric, *(f"SSIM ≥ {level}" for level in THRESHOLDS))
    of = {(name_of(row), row.variant["threshold"]): row for row in rows if row.metric == metric}
    for name in dict.fromkeys(name for name, _ in of):
        values = (of[name, level].value for level in THRESHOLDS)
        line(name, *("–" if value is None else f"{value:.2f}" for value in values))


def spreads(rows: list[Measurement]) -> None:
    """Success at some thresholds: 95 % intervals over restarts, and over 5 records or more."""
    print()
    heading("layers", "SSIM at least", "success", "over restarts", "over records", "runs")
    for row in rows:
        level = row.variant["threshold"]
        if row.metric == "original_success" and level in LEVELS:
            both: Any = row.details.get("interval_of_these_records"), row.interval
            told = (f"[{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "" for ends in both)
            value = float("nan") if row.value is None else row.value
            line(name_of(row), level, f"{value:.3f}", *told, row.n)


def name_of(row: Measurement) -> str:
    return row.layer or str(row.variant["layers"])


def main() -> None:
    """Attack and print."""
    given = arguments(__doc__)
    records = cifar10(given.size)
    print(vars(given), f"ceiling {ceiling(given.restarts):.2f} nats")
    for name in given.nets:
        print(f"\n== {name}")
        if given.directions:
            directions(net(name, given), records, given.together)
            continue
        rows = measured(net(name, given), records, given)
        for metric in ("original_vinfo", "original_success"):
            show(rows, metric)
        spreads(rows)


if __name__ == "__main__":
    main()
