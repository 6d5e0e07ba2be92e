"""Information about the input in pairs of consecutive layers: Mo et al. 2022, figure 2.

The paper's nets (LeNet, AlexNet, VGG9; ReLU) on CIFAR-100 give, with pairs of consecutive layers
and thresholds on SSIM from 0.05 to 0.8: for LeNet the information falls from the first pair to the
last above a threshold of 0.5, for deeper nets it is largest in the middle, and for all of them the
last pair has the least. Here: CIFAR-10, untrained weights, batches of one record, few restarts and
steps; both panels, the whole family and iDLG alone, come from the same runs.

    python -m benchmarks.papers.mo22_figure2 [--nets lenet alexnet-mo22 vgg9 …]
        [--activation relu] [--init default] [--size 32] [--together 2 …]
        [--pictures 4] [--restarts 4] [--steps 20] [--adam 240] [--seed 0] [--directions]

``--directions`` counts instead in how many directions of the first
picture's values each pair's gradient moves.
"""

import argparse

import numpy as np
import torch
from torch import nn

from benchmarks.harness import arguments, cifar10
from benchmarks.papers.original_rows import (
    directions,
    family,
    measured,
    names,
    show,
    spreads,
    table,
)
from gradaudit import zoo


def net(name: str, given: argparse.Namespace) -> nn.Module:
    """A net of the paper, weights drawn under the seed."""
    torch.manual_seed(given.seed)
    size = (3, given.size, given.size)
    model = zoo.build(name, shape=size, classes=10, activation=given.activation)
    if given.init != "default":
        bound = float(given.init.removeprefix("uniform:"))
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -bound, bound)
    return model


def verdict(of: dict[str, list[float]]) -> str:
    """Where the last pair stands, at thresholds that anything reaches; beside the paper's claim."""
    found = np.array(list(of.values()))
    found = np.nan_to_num(found[:, np.isfinite(found).any(axis=0)])
    last, others = found[-1], found[:-1]
    less, tied = last < others.min(axis=0), last == others.min(axis=0)
    below = last < others.max(axis=0)
    return (
        f"at {found.shape[1]} thresholds that are reached: the last pair has less than every other "
        f"at {int(less.sum())}, as much as the least at {int(tied.sum())}, less than the most at "
        f"{int(below.sum())} (paper: the last pair has the least)"
    )


def main() -> None:
    """Attack and print."""
    given = arguments(__doc__)
    records = cifar10(given.size)
    methods = family(given)
    for name in given.nets:
        print(f"\n== {name}, {given.activation}, {vars(given)}")
        if given.directions:
            directions(net(name, given).double(), records, given.together)
            continue
        rows = measured(net(name, given), records, given, methods)
        whole = table(rows, "original_vinfo")
        show(f"{name}: information of the family, nats ({len(names(rows))} pairs)", whole)
        print(verdict(whole))
        alone = table(rows, "original_vinfo", methods[1])
        show(f"{name}: information by iDLG alone, nats", alone)
        print(verdict(alone))
        show(f"{name}: success rate of the best member", table(rows, "original_success"))
        for level in (0.1, 0.3, 0.5):
            spreads(rows, level)


if __name__ == "__main__":
    main()
