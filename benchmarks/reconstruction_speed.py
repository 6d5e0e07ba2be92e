"""Milliseconds an evaluation and restart of DLG costs: batched by vmap, alone, and the usual loop.

An evaluation is the objective ‖g' − g‖² and its gradient in records and labels, one restart of one
picture each. The usual loop is the released code's: ``autograd.grad`` with ``create_graph`` and a
second backward pass. Ours is timed as it runs once it is recorded, which takes the seconds that
are printed and happens after ``replay.WORTH`` evaluations. Every way computes the same numbers, in
one thread, and all are timed in turns, in processor time. At the end: a step of L-BFGS with line
search beside ``torch.optim.LBFGS`` in a loop.

    python benchmarks/reconstruction_speed.py [--restarts 1 8 32] [--precision float64]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit import zoo
from gradaudit.attacks.reconstruction.evaluation import Evaluator
from gradaudit.attacks.reconstruction.labels import Targets
from gradaudit.attacks.reconstruction.lbfgs import minimise
from gradaudit.attacks.reconstruction.objectives import Objective
from gradaudit.attacks.reconstruction.observing import Observer
from gradaudit.loading.losses import CrossEntropy
from gradaudit.loading.records import Records
from gradaudit.target import Target
from gradaudit.updates.sharing import Sharing

SHAPE, CLASSES = (3, 32, 32), 10
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


def scene(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Objective]:
    torch.manual_seed(0)
    model = zoo.build("deep-leakage", classes=CLASSES, init="uniform:0.5").to(dtype)
    target = Target(model, CrossEntropy())
    batch = Records(torch.rand(1, *SHAPE), torch.tensor([3]))
    seen = Observer(target, Sharing(), target.layers).of(batch, torch.Generator())
    view = seen.view.in_precision(dtype)
    return model, Objective(view, Targets.of(view, None))


def usual(model: torch.nn.Module, objective: Objective) -> Evaluate:
    """The loop of the released code, a restart at a time."""
    shared = list(objective.view.update.values())
    length = sum(part.square().sum() for part in shared)
    weights = list(model.parameters())

    def one(point: Tensor) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        records = point[: objective.view.elements].view(1, *SHAPE)
        target = point[objective.view.elements :].softmax(dim=0)[None]
        loss = (target * -F.log_softmax(model(records), dim=1)).sum(dim=1).mean()
        found = torch.autograd.grad(loss, weights, create_graph=True)
        gap = sum((a - b).square().sum() for a, b in zip(found, shared, strict=True)) / length
        return gap.detach(), torch.autograd.grad(gap, point)[0]

    def every(points: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = zip(*(one(point) for point in points), strict=True)
        return torch.stack(values), torch.stack(gradients)

    return every


def timed(evaluate: Evaluate, points: Tensor) -> float:
    begun = time.process_time()
    evaluate(points)
    return time.process_time() - begun


def steps_of_torch(evaluate: Evaluate, start: Tensor, outer: int) -> int:
    """L-BFGS of torch on every restart in turn; how many evaluations it took."""
    count = 0
    for begin in start:
        point = begin.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([point], lr=1, line_search_fn="strong_wolfe")

        def closure(point: Tensor = point) -> float:
            nonlocal count
            count += 1
            values, gradients = evaluate(point[None])
            point.grad = gradients[0]
            return float(values[0])

        for _ in range(outer):
            optimiser.step(closure)  # type: ignore[arg-type]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--outer", type=int, default=3)
    parser.add_argument("--precision", choices=["float32", "float64"], default="float32")
    given = parser.parse_args()
    dtype = getattr(torch, given.precision)
    model, objective = scene(dtype)
    ways: dict[str, Evaluate] = {
        "usual loop": usual(model, objective),
        "ours": Evaluator(objective, worth=1),
    }
    for count in given.restarts:
        points = torch.randn(count, objective.unknowns, dtype=dtype)
        recording = timed(ways["ours"], points)
        expected = ways["usual loop"](points)
        for found, wanted in zip(ways["ours"](points), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.repeats):
            for name, way in ways.items():
                spent[name].append(1000 * timed(way, points) / count)
        middle = {name: statistics.median(times) for name, times in spent.items()}
        told = ", ".join(f"{name} {value:.2f} ms" for name, value in middle.items())
        print(
            f"{count:3} restarts: {told}; {middle['usual loop'] / middle['ours']:.2f} times, "
            f"recorded in {recording:.1f} s"
        )
    count = given.restarts[-1]
    points = torch.randn(count, objective.unknowns, dtype=dtype)
    begun = time.process_time()
    ours = minimise(Evaluator(objective), points, given.outer)
    batched = 1000 * (time.process_time() - begun) / int(ours.evaluations.sum())
    begun = time.process_time()
    evaluations = steps_of_torch(ways["usual loop"], points, given.outer)
    looped = 1000 * (time.process_time() - begun) / evaluations
    print(
        f"L-BFGS, {count} restarts, an evaluation with its share of the step: usual loop "
        f"{looped:.2f} ms, ours {batched:.2f} ms; {looped / batched:.2f} times"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
