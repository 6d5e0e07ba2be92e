"""Principal angles between two groups of gradients, against scipy.linalg.subspace_angles.

Prints, for each kind of gradients, the processor seconds that both take on the same matrices in
one run, their ratio, and the largest difference between their angles. Kinds: ``noise``, independent
normal gradients of which half is common to both groups; ``digits``, gradients of the first layer of
a fresh two-layer network on handwritten digits (jittered, so that there are enough of them), whose
Gram matrices are badly conditioned; ``repeated``, the same with every tenth gradient occurring
twice.

Run as ``OMP_NUM_THREADS=1 python benchmarks/subspace_speed.py``; takes minutes, for SciPy's sake.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from torch import nn

from gradaudit.data import load_records
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.subspaces.spans import Span, span_angles

Array = NDArray[np.float64]


def noise(records: int, elements: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    first = generator.normal(size=(records, elements))
    return first, generator.normal(size=(records, elements)) + first


def digits(records: int, elements: int) -> tuple[Array, Array]:
    torch.manual_seed(0)
    every = load_records("digits")
    leaning = torch.from_numpy(every.attributes["slant"].codes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, elements // 64), nn.Tanh())
    model.append(nn.Linear(elements // 64, 10))
    target = Target(model, CrossEntropy())
    groups = []
    for value in (0, 1):
        (own,) = torch.nonzero(leaning == value, as_tuple=True)
        chosen = own[torch.arange(records) % len(own)]
        inputs = every.inputs[chosen] + 0.05 * torch.randn(records, 1, 8, 8)
        gradients = per_sample_gradients(
            target, inputs, every.labels[chosen], [target.layers[0]], dtype=torch.float64
        )
        groups.append(torch.cat([chunk["1"] for chunk in gradients]).numpy())
    return groups[0], groups[1]


def repeated(records: int, elements: int) -> tuple[Array, Array]:
    first, second = digits(records, elements)
    for group in (first, second):
        group[::10] = group[1::10][: len(group[::10])]
    return first, second


KINDS = {"noise": noise, "digits": digits, "repeated": repeated}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.process_time()
    found = function(*arguments)
    return time.process_time() - start, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000, help="of each group")
    parser.add_argument("--elements", type=int, default=100_032)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| gradients | dimensions | condition | ours, s | scipy, s | ratio | difference |")
    print("|---|---|---|---|---|---|---|")
    for kind in arguments.kinds:
        first, second = KINDS[kind](arguments.records, arguments.elements)
        condition = np.sqrt(max(Span.of(each).error for each in (first, second)) * 2**52)
        ours, angles = timed(span_angles, first, second)
        theirs, expected = timed(subspace_angles, first.T, second.T)
        apart = np.abs(angles - expected[::-1]).max()
        print(
            f"| {kind} | {len(angles)} | {condition:.1e} | {ours:.1f} | {theirs:.1f} | "
            f"{theirs / ours:.1f} | {apart:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
