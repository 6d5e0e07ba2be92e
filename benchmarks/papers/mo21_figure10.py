"""Reconstructions from single layers and sets of layers: Mo et al. 2021, figure 10.

The network of Deep Leakage from Gradients with seven convolutions (12 channels of 5×5, sigmoid)
and one fully connected layer of 768 inputs; the paper runs iDLG on CIFAR-100 on each layer's
gradients and on sets of layers, and finds that those of the first layer tend to matter most. Here:
CIFAR-10, weights from uniform(−0.5, 0.5), batches of one record, iDLG told the label.

    python -m benchmarks.papers.mo21_figure10 [--convolutions 7|3] [--size 32]
        [--together 1 2 4 …] [--family]
        [--pictures 4] [--restarts 4] [--steps 20] [--adam 240] [--seed 0] [--directions]

``--family`` adds DLG and inverting gradients. ``--directions`` counts
instead in how many directions of the first picture's values each set's gradient moves.
"""

import numpy as np
import torch

from benchmarks.harness import arguments, cifar10
from benchmarks.papers.original_rows import (
    directions,
    family,
    measured,
    show,
    spreads,
    table,
)
from gradaudit import zoo


def verdict(title: str, of: dict[str, list[float]], first: str) -> str:
    """How sets with the first layer do beside those without it, on average over thresholds."""
    means = {name: float(np.nanmean(np.nan_to_num(values))) for name, values in of.items()}
    having = [mean for name, mean in means.items() if first in name.split("+")]
    lacking = [mean for name, mean in means.items() if first not in name.split("+")]
    best = max(means, key=lambda name: means[name])
    return (
        f"{title}: with the first layer {np.mean(having):.3f}, best without it {max(lacking):.3f}, "
        f"mean without it {np.mean(lacking):.3f}; the best set is {best} (paper: the first layer "
        "tends to be the most important)"
    )


def main() -> None:
    """Attack and print."""
    given = arguments(__doc__)
    torch.manual_seed(given.seed)
    model = zoo.build(
        "deep-leakage",
        shape=(3, given.size, given.size),
        classes=10,
        convolutions=given.convolutions,
        init="uniform:0.5",
    )
    methods = family(given) if given.family else family(given)[1:2]
    print(vars(given))
    if given.directions:
        directions(model.double(), cifar10(given.size), given.together)
        return
    rows = measured(model, cifar10(given.size), given, methods)
    rates, nats = table(rows, "original_success"), table(rows, "original_vinfo")
    first = next(iter(model.named_children()))[0]
    show("success rate of the best member", rates)
    show("information, nats", nats)
    for level in (0.1, 0.2, 0.3):
        spreads(rows, level)
    for size in given.together:
        of = {name: values for name, values in rates.items() if len(name.split("+")) == size}
        if len(of) > 1:
            print(verdict(f"sets of {size}, mean success rate", of, first))


if __name__ == "__main__":
    main()
