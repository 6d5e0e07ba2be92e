"""What every fast path saves: processor time without it over the time with it, in one run.

    python -m benchmarks.speed.fast_paths [--rounds 5] [--restarts 8]
        [--only replay,products,folded,gram,rank_two,tables]

Both ways take turns on one thread and give the same numbers to rounding (the tests hold that); the
median ratio of the rounds is printed, which a busy machine disturbs little. A path that saves less
than a twentieth should go. ``per_sample_speed.py`` has the factors of per-sample gradients.

``folded`` evaluates several restarts of one record folded into one batch, beside one after the
other and ``vmap``, recorded where that pays. With eight restarts, in ms (one after the other, vmap,
folded): DLG 43, 13, 11 and in float64 36, 16, 17; three residual blocks 185, 90, 91; ResNet-18
1,201, 1,062, 267.
"""

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.harness import Work, arguments, in_turn, seen_of, timed
from benchmarks.nets import resnet18, small_residual
from benchmarks.speed.reconstruction_speed import scene
from gradaudit import zoo
from gradaudit.attacks.reconstruction.matching import blocks
from gradaudit.attacks.reconstruction.matching.folded import foldable, folded
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Objective
from gradaudit.attacks.reconstruction.matching.replay import recorded
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.audits.sensitivity import jacobian
from gradaudit.audits.sensitivity.jacobian import Jacobians
from gradaudit.data.records import Records
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import NORMS, exact_norms, norms_of, rank_two_norms
from gradaudit.gradients.operations import Linear
from gradaudit.gradients.sources import Factors, Tangents
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

SHAPE = (3, 32, 32)


def tell(title: str, without: Work, with_it: Work, rounds: int) -> None:
    """Print what a path saves."""
    times = in_turn({"without": without, "with": with_it}, rounds)
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    slow, fast = (1e3 * statistics.median(column) for column in times.values())
    print(f"{title:66}{slow:10.1f} ms ÷{fast:10.1f} ms ={ratio:7.2f}", flush=True)


def repeated(evaluate: Evaluation, points: Tensor, times: int = 10) -> Work:
    return lambda: [evaluate(points) for _ in range(times)]


def alone_by(objective: Objective) -> Evaluation:
    return lambda points: blocks._alone(objective, points[0])


def replay(given: argparse.Namespace) -> None:
    for dtype in (torch.float32, torch.float64):
        _, objective = scene(dtype)
        for count in (1, 4, 8):
            evaluate = blocks._mapped(objective) if count > 1 else alone_by(objective)
            points = torch.randn(count, objective.unknowns, dtype=dtype)
            evaluate(points)
            recording = recorded(evaluate, -points)
            assert recording is not None
            title = f"replay: DLG, LeNet, {dtype}, points {count}"
            direct = repeated(evaluate, points)
            tell(title, direct, repeated(recording, points), given.rounds)
            cost = timed(partial(recorded, evaluate, -points)) / timed(direct) * 10
            print(f"    a recording costs {cost:.0f} evaluations")


def products(given: argparse.Namespace) -> None:
    _, objective = scene(torch.float32)
    points = torch.randn(1, objective.unknowns)
    with_products = alone_by(objective)

    def without(points: Tensor) -> tuple[Tensor, Tensor]:
        with patch.object(blocks, "ConvolutionsAsProducts", nullcontext):
            return with_products(points)

    ways = without, with_products
    slow, fast = (repeated(way, points) for way in ways)
    tell("products: DLG, LeNet, float32", slow, fast, given.rounds)
    slow, fast = (repeated(made, points) for way in ways if (made := recorded(way, -points)))
    tell("products: the same, recorded", slow, fast, given.rounds)


def inverted(model: nn.Module) -> Objective:
    """Inverting gradients' objective of one record with a known label."""
    batch = Records(torch.rand(1, *SHAPE), torch.tensor([3]))
    view = seen_of(model.eval(), batch, known_labels=True)
    return Objective(view, Targets.of(view, view.labels), "cosine", 1e-4)


def folding(given: argparse.Namespace) -> None:
    scenes: dict[str, Callable[[], Objective]] = {
        "DLG": lambda: scene()[1],
        "DLG in float64": lambda: scene(torch.float64)[1],
        "three residual blocks": lambda: inverted(small_residual()),
        "ResNet-18": lambda: inverted(resnet18(classes=10)),
    }
    for name, made in scenes.items():
        objective = made()
        of_one = alone_by(objective)
        assert foldable(objective, of_one), name
        points = objective.trial_points(given.restarts)
        alone = recorded(of_one, -points[:1]) or of_one
        mapped, together = (
            recorded(way, -points) or way for way in (blocks._mapped(objective), folded(objective))
        )

        def in_order(points: Tensor = points, alone: Evaluation = alone) -> object:
            return [alone(point[None]) for point in points]

        at_once = partial(together, points)
        title = f"folded: {name}, {given.restarts} restarts, over "
        tell(f"{title}one after the other", in_order, at_once, given.rounds)
        tell(f"{title}vmap", partial(mapped, points), at_once, given.rounds)


def tangents(positions: int, inputs: int, outputs: int, directions: int) -> Tangents:
    use = Linear(1, inputs, outputs, (positions, outputs))
    base = Factors(
        torch.randn(1, 1, inputs, positions).double(),
        torch.randn(1, 1, outputs, positions).double(),
    )
    seen = {0: torch.randn(1, directions, positions, inputs).double()}
    left = torch.randn(1, 1, directions, outputs, positions).double()
    return Tangents(base, ((0, use),), seen, left)


def gram(given: argparse.Namespace) -> None:
    some = tangents(4, 1152, 256, 16)

    def by_factors() -> object:
        return some.norms(["f"])

    def formed() -> object:
        with patch.object(Factors, "formed", lambda self, wanted: True):
            return by_factors()

    tell("factors: F norms, 1152 → 256 at 4 positions", formed, by_factors, given.rounds)


def rank_two(given: argparse.Namespace) -> None:
    for inputs, outputs in ((400, 120), (4096, 512)):
        a, d = (torch.randn(1, size).double() for size in (inputs, outputs))
        a_dot, d_dot = (torch.randn(1, 16, size).double() for size in (inputs, outputs))
        parts = a, d, a_dot, d_dot

        def formed(parts: tuple[Tensor, Tensor, Tensor, Tensor] = parts) -> object:
            a, d, a_dot, d_dot = parts
            matrices = d[:, None, :, None] * a_dot[:, :, None] + d_dot[..., None] * a[:, None, None]
            return norms_of(matrices, NORMS)

        title = f"rank_two: all norms, {inputs} → {outputs}, 16 directions"
        tell(title, formed, partial(rank_two_norms, *parts, NORMS), given.rounds)


def jacobians() -> Jacobians:
    """Input Jacobians of one float64 record by LeNet of Mo et al. 2022, table III."""
    target = Target(zoo.build("lenet", activation="relu"), CrossEntropy())
    layers = layers_of(target.model)
    names = [name for layer in layers for name in layer.parameter_names]
    records, labels = torch.rand(1, *SHAPE, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    trace = Trace.of(FunctionalModel.of(target), names, records, labels)
    batch = Batch(trace, records, records, labels, range(1))
    return Jacobians(batch, fastest(batch, "point"), "point", layers)


def tables(given: argparse.Namespace) -> None:
    found = jacobians()
    passes = exact_norms(found.size)

    def tabulated() -> object:
        return found.norms(passes, lambda units: None)

    def piecewise() -> object:
        with patch.object(jacobian, "tables_pay", lambda linear, memory: False):
            return tabulated()

    def general() -> object:
        with patch.object(Jacobians, "_may_be_linear", lambda self, passes: False):
            return tabulated()

    tell("piecewise: exact input Jacobian norms, LeNet", general, piecewise, given.rounds)
    tell("tables: the same, over piecewise", piecewise, tabulated, given.rounds)


PATHS = {
    **{part.__name__: part for part in (replay, products, gram, rank_two, tables)},
    "folded": folding,
}


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(0)
    for name in given.only.split(","):
        PATHS[name](given)


if __name__ == "__main__":
    main()
