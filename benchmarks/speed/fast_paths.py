"""What every fast path saves: processor time without it over the time with it, in one run.

    python -m benchmarks.speed.fast_paths [--rounds 5] [--restarts 8]
        [--only folded,gram,rank_two,tables]

Both ways take turns on one thread and give the same numbers to rounding (the tests hold that); the
median ratio of the rounds is printed, which a busy machine disturbs little. A path that saves less
than a twentieth should go. ``per_sample_speed.py`` has the factors of per-sample gradients.

``folded`` evaluates several restarts of one record folded into one batch, beside one after the
other and ``vmap``. With eight restarts, in ms (one after the other, vmap, folded): DLG 43, 13, 11
and in float64 36, 16, 17; three residual blocks 185, 90, 91; ResNet-18 1,201, 1,062, 267.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.harness import Work, arguments, heading, in_turn, line, seen_of
from benchmarks.nets import resnet18, small_residual
from gradaudit import zoo
from gradaudit.attacks.reconstruction.matching import evaluator
from gradaudit.attacks.reconstruction.matching.folded import foldable, folded
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Objective
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.audits.sensitivity import jacobian
from gradaudit.audits.sensitivity.jacobian import Jacobians
from gradaudit.data.records import Records
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import exact_norms, norms_of, rank_two_norms
from gradaudit.gradients.operations import Linear
from gradaudit.gradients.sources import Factors, Tangents
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

SHAPE = (3, 32, 32)
Compared = Iterator[tuple[str, Work, Work]]
"""A path's title, and the work without it and with it."""


def leaking(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Objective]:
    """The net of Deep Leakage from Gradients, and DLG's objective of one record."""
    torch.manual_seed(0)
    model = zoo.build("deep-leakage", classes=10, init="uniform:0.5").to(dtype)
    view = seen_of(model, Records(torch.rand(1, *SHAPE), torch.tensor([3])), dtype=dtype)
    return model, Objective(view, Targets.of(view, None))


def inverted(model: nn.Module) -> Objective:
    """Inverting gradients' objective of one record with a known label."""
    batch = Records(torch.rand(1, *SHAPE), torch.tensor([3]))
    view = seen_of(model.eval(), batch, known_labels=True)
    return Objective(view, Targets.of(view, view.labels), "cosine", 1e-4)


def repeated(evaluate: Evaluation, points: Tensor, times: int = 10) -> Work:
    return lambda: [evaluate(points) for _ in range(times)]


def alone_by(objective: Objective) -> Evaluation:
    return lambda points: evaluator._alone(objective, points)


def folding(restarts: int) -> Compared:
    scenes: dict[str, Callable[[], Objective]] = {
        "DLG": lambda: leaking()[1],
        "DLG in float64": lambda: leaking(torch.float64)[1],
        "three residual blocks": lambda: inverted(small_residual()),
        "ResNet-18": lambda: inverted(resnet18(classes=10)),
    }
    for name, made in scenes.items():
        objective = made()
        of_one = alone_by(objective)
        assert foldable(objective, of_one), name
        points = objective.trial_points(restarts)
        alone = of_one
        mapped, together = evaluator._mapped(objective), folded(objective)

        def in_order(points: Tensor = points, alone: Evaluation = alone) -> object:
            return [alone(point[None]) for point in points]

        at_once = partial(together, points)
        yield f"{name}, {restarts} restarts, over one after the other", in_order, at_once
        yield f"{name}, {restarts} restarts, over vmap", partial(mapped, points), at_once


def gram(restarts: int) -> Compared:
    positions, inputs, outputs, directions = 4, 1152, 256, 16
    base = Factors(
        torch.randn(1, 1, inputs, positions).double(),
        torch.randn(1, 1, outputs, positions).double(),
    )
    use = Linear(1, inputs, outputs, (positions, outputs))
    seen = {0: torch.randn(1, directions, positions, inputs).double()}
    left = torch.randn(1, 1, directions, outputs, positions).double()
    some = Tangents(base, ((0, use),), seen, left)

    def formed() -> object:
        with patch.object(Factors, "formed", lambda self, wanted: True):
            return some.norms(["f"])

    yield "F norms by factors, 1152 → 256 at 4 positions", formed, lambda: some.norms(["f"])


def rank_two(restarts: int) -> Compared:
    for inputs, outputs in ((400, 120), (4096, 512)):
        a, d = (torch.randn(1, size).double() for size in (inputs, outputs))
        a_dot, d_dot = (torch.randn(1, 16, size).double() for size in (inputs, outputs))
        parts = a, d, a_dot, d_dot

        def formed(parts: tuple[Tensor, Tensor, Tensor, Tensor] = parts) -> object:
            a, d, a_dot, d_dot = parts
            matrices = d[:, None, :, None] * a_dot[:, :, None] + d_dot[..., None] * a[:, None, None]
            return norms_of(matrices, ["f"])

        fast = partial(rank_two_norms, *parts, ["f"])
        yield f"F norms, {inputs} → {outputs}, 16 directions", formed, fast


def tables(restarts: int) -> Compared:
    """Input Jacobians of one float64 record by LeNet of Mo et al. 2022, table III."""
    target = Target(zoo.build("lenet", activation="relu"), CrossEntropy())
    layers = layers_of(target.model)
    names = [name for layer in layers for name in layer.parameter_names]
    records, labels = torch.rand(1, *SHAPE, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    trace = Trace.of(FunctionalModel.of(target), names, records, labels)
    batch = Batch(trace, records, records, labels, range(1))
    found = Jacobians(batch, fastest(batch, "point"), "point", layers)

    def tabulated() -> object:
        return found.norms(exact_norms(found.size), lambda units: None)

    def piecewise() -> object:
        with patch.object(jacobian, "tables_pay", lambda linear, memory: False):
            return tabulated()

    def general() -> object:
        with patch.object(Jacobians, "_may_be_linear", lambda self, passes: False):
            return tabulated()

    yield "exact input Jacobian norms, LeNet, piecewise", general, piecewise
    yield "the same, over piecewise", piecewise, tabulated


PATHS = {
    **{each.__name__: each for each in (gram, rank_two, tables)},
    "folded": folding,
}


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(0)
    heading("path", "what", "without, ms", "with, ms", "ratio")
    for name in given.only.split(","):
        for title, without, with_it in PATHS[name](given.restarts):
            times = in_turn({"without": without, "with": with_it}, given.rounds)
            ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
            slow, fast = (1e3 * statistics.median(column) for column in times.values())
            line(name, title, f"{slow:.1f}", f"{fast:.1f}", f"{ratio:.2f}")


if __name__ == "__main__":
    main()
