"""Speed of the exact and the estimated input Jacobian norms of LeNet, against the naive way.

Naive: one ``torch.func.jvp`` of ``torch.func.grad`` an input element, norms included. It is timed
on a sample of the elements, taken in turns with the other ways, and scaled up.

    python benchmarks/sensitivity_speed.py [--records 16] [--columns 60] [--repeats 3]
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.audits.sensitivity.jacobian import Jacobians, LayerNorms
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.norms import Gaussian, Pass, by_probes, exact_norms
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

PROBES = 64
SHAPE = (3, 32, 32)


def lenet(classes: int = 10) -> nn.Module:
    """Mo et al. 2022, table III: C6(5)-P(2)-C16(5)-P(2)-F120-F84-O with ReLU."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def naive(
    model: nn.Module, names: list[str], record: Tensor, label: Tensor
) -> Callable[[int], object]:
    """The norms of one column of every layer's Jacobian."""
    everything = {name: p.detach().double() for name, p in model.named_parameters()}
    weights = {name: everything.pop(name) for name in names}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {**weights, **everything}, (x[None],))
        return F.cross_entropy(outputs, label[None])

    def gradient(x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.grad(loss)(weights, x)
        return found

    def column(index: int) -> object:
        unit = torch.zeros_like(record).view(-1)
        unit[index] = 1
        tangent = torch.func.jvp(gradient, (record,), (unit.view_as(record),))[1]
        return [(t.square().sum(), t.abs().sum(), t.abs().max()) for t in tangent.values()]

    return column


def timed(function: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=16)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    model, count = lenet(), arguments.records
    records = torch.rand(count, *SHAPE, dtype=torch.float64)
    labels = torch.arange(count) % 10
    view = FunctionalModel.of(Target(model, CrossEntropy()))
    layers = layers_of(model)
    names = [name for layer in layers for name in layer.parameter_names]
    trace = Trace.of(view, names, records, labels)
    batch = Batch(trace, records, records, labels, range(count))
    way = fastest(batch, "point")
    jacobians = Jacobians(batch, way, "point", layers)
    size = records[0].numel()

    def measure(passes: list[Pass]) -> dict[str, LayerNorms]:
        return jacobians.norms(passes, lambda units: None)

    column = naive(model, names, records[0], labels[0])
    ways: dict[str, tuple[Callable[[], object], float]] = {
        "naive": (
            lambda: [column(k * 7) for k in range(arguments.columns)],
            size / arguments.columns,
        ),
        "exact F, 1, inf": (lambda: measure(exact_norms(size)), 1 / count),
        f"{PROBES} probes F": (
            lambda: measure([Pass(Gaussian(PROBES, 0), ("f",), total=False)]),
            1 / count,
        ),
        f"{PROBES} probes F, {PROBES} columns 1": (
            lambda: measure(by_probes(size, PROBES, 0)),
            1 / count,
        ),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, (function, scale) in ways.items():
            wall, cpu = timed(function)
            times[name].append((wall * scale, cpu * scale))
    walls = {name: min(wall for wall, _ in found) for name, found in times.items()}
    cpus = {name: min(cpu for _, cpu in found) for name, found in times.items()}
    print(f"LeNet, {SHAPE}, {count} records, float64, one thread; seconds a record")
    print(f"{'':32}{'wall':>10}{'CPU':>10}{'naive ÷':>10}{'exact ÷':>10}   (CPU ratios)")
    for name in ways:
        print(
            f"{name:32}{walls[name]:10.4f}{cpus[name]:10.4f}"
            f"{cpus['naive'] / cpus[name]:10.1f}{cpus['exact F, 1, inf'] / cpus[name]:10.1f}"
        )


if __name__ == "__main__":
    main()
