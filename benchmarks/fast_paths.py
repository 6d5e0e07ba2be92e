"""What every fast path saves: processor time without it over the time with it, in one run.

Both ways take turns on one thread and give the same numbers to rounding (the tests hold that); the
median ratio of the rounds is printed, which a busy machine disturbs little. A path that saves less
than a twentieth should go. ``per_sample_speed.py`` has the factors of per-sample gradients.

    python benchmarks/fast_paths.py [--rounds 5] [--only tables replay]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from reconstruction_speed import scene
from sensitivity_speed import SHAPE, lenet
from torch import Tensor, nn

from gradaudit.attacks.reconstruction import blocks
from gradaudit.attacks.reconstruction.objectives import Evaluation
from gradaudit.attacks.reconstruction.replay import recorded
from gradaudit.audits.sensitivity import jacobian
from gradaudit.audits.sensitivity.jacobian import Jacobians
from gradaudit.families import trees
from gradaudit.families.base import Features
from gradaudit.families.forest import times_drawn
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.norms import NORMS, exact_norms, norms_of, rank_two_norms
from gradaudit.gradients.operations import Linear
from gradaudit.gradients.sources import Factors, Tangents
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

Work = Callable[[], object]


def seconds(work: Work) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def tell(title: str, without: Work, with_it: Work, rounds: int) -> None:
    without(), with_it()
    times = [(seconds(without), seconds(with_it)) for _ in range(rounds)]
    ratio = statistics.median(slow / fast for slow, fast in times)
    slow, fast = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{title:66}{slow:10.1f} ms ÷{fast:10.1f} ms ={ratio:7.2f}", flush=True)


def repeated(evaluate: Evaluation, points: Tensor, times: int = 10) -> Work:
    return lambda: [evaluate(points) for _ in range(times)]


def replay(rounds: int) -> None:
    for dtype in (torch.float32, torch.float64):
        _, objective = scene(dtype)
        for count in (1, 4, 8):
            evaluate = (
                blocks._mapped(objective)
                if count > 1
                else lambda points, objective=objective: blocks._alone(objective, points[0])
            )
            points = torch.randn(count, objective.unknowns, dtype=dtype)
            evaluate(points)
            recording = recorded(evaluate, -points)
            assert recording is not None
            title = f"replay: DLG, LeNet, {dtype}, points {count}"
            direct = repeated(evaluate, points)
            tell(title, direct, repeated(recording, points), rounds)
            cost = seconds(partial(recorded, evaluate, -points)) / seconds(direct) * 10
            print(f"    a recording costs {cost:.0f} evaluations")


def products(rounds: int) -> None:
    _, objective = scene(torch.float32)
    points = torch.randn(1, objective.unknowns)

    def with_products(points: Tensor) -> tuple[Tensor, Tensor]:
        return blocks._alone(objective, points[0])

    def without(points: Tensor) -> tuple[Tensor, Tensor]:
        with patch.object(blocks, "ConvolutionsAsProducts", nullcontext):
            return blocks._alone(objective, points[0])

    ways = without, with_products
    slow, fast = (repeated(way, points) for way in ways)
    tell("products: DLG, LeNet, float32", slow, fast, rounds)
    slow, fast = (repeated(made, points) for way in ways if (made := recorded(way, -points)))
    tell("products: the same, recorded", slow, fast, rounds)


def tangents(positions: int, inputs: int, outputs: int, directions: int) -> Tangents:
    use = Linear(1, inputs, outputs, (positions, outputs))
    base = Factors(
        torch.randn(1, 1, inputs, positions).double(),
        torch.randn(1, 1, outputs, positions).double(),
    )
    seen = {0: torch.randn(1, directions, positions, inputs).double()}
    left = torch.randn(1, 1, directions, outputs, positions).double()
    return Tangents(base, ((0, use),), seen, left)


def gram(rounds: int) -> None:
    some = tangents(4, 1152, 256, 16)

    def by_factors() -> object:
        return some.norms(["f"])

    def formed() -> object:
        with patch.object(Factors, "formed", lambda self, wanted: True):
            return by_factors()

    tell("factors: F norms, 1152 → 256 at 4 positions", formed, by_factors, rounds)


def ranks(rounds: int) -> None:
    for inputs, outputs in ((400, 120), (4096, 512)):
        a, d = (torch.randn(1, size).double() for size in (inputs, outputs))
        a_dot, d_dot = (torch.randn(1, 16, size).double() for size in (inputs, outputs))
        parts = a, d, a_dot, d_dot

        def formed(parts: tuple[Tensor, Tensor, Tensor, Tensor] = parts) -> object:
            a, d, a_dot, d_dot = parts
            matrices = d[:, None, :, None] * a_dot[:, :, None] + d_dot[..., None] * a[:, None, None]
            return norms_of(matrices, NORMS)

        title = f"rank_two: all norms, {inputs} → {outputs}, 16 directions"
        tell(title, formed, partial(rank_two_norms, *parts, NORMS), rounds)


def jacobians_of(model: nn.Module) -> Jacobians:
    records, labels = torch.rand(1, *SHAPE, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    layers = layers_of(model)
    names = [name for layer in layers for name in layer.parameter_names]
    trace = Trace.of(FunctionalModel.of(Target(model, CrossEntropy())), names, records, labels)
    batch = Batch(trace, records, records, labels, range(1))
    return Jacobians(batch, fastest(batch, "point"), "point", layers)


def piecewise_and_tables(rounds: int) -> None:
    found = jacobians_of(lenet())
    passes = exact_norms(found.size)

    def tabulated() -> object:
        return found.norms(passes, lambda units: None)

    def piecewise() -> object:
        with patch.object(jacobian, "tables_pay", lambda linear, memory: False):
            return tabulated()

    def general() -> object:
        with patch.object(Jacobians, "_may_be_linear", lambda self, passes: False):
            return tabulated()

    tell("piecewise: exact input Jacobian norms, LeNet", general, piecewise, rounds)
    tell("tables: the same, over piecewise", piecewise, tabulated, rounds)


def cuts(rounds: int) -> None:
    """Fifty trees on 128 batches, as an audit of information grows."""
    generator = np.random.default_rng(0)
    labels = np.arange(128) % 2
    times = times_drawn(labels, np.full(2, 0.5), generator, bootstrap=True)
    for width in (100, 1000, 10_000):
        columns = generator.normal(size=(width, 128)).astype(np.float32)
        columns[: width // 10] += labels

        def grow(columns: Features = columns) -> object:
            return trees.grow_trees(columns, np.eye(2)[labels], times, np.random.default_rng(1))

        def one_by_one(grow: Work = grow) -> object:
            with patch.object(trees, "_DENSE", 0):
                return grow()

        tell(f"cuts: whole columns of {width}, over single rows", one_by_one, grow, rounds)


PATHS = {
    "cuts": cuts,
    "replay": replay,
    "products": products,
    "gram": gram,
    "rank_two": ranks,
    "tables": piecewise_and_tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PATHS, default=list(PATHS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in given.only:
        PATHS[name](given.rounds)


if __name__ == "__main__":
    main()
