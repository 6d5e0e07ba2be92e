"""Restart-iterations a second of DLG: a loop over restarts, ours in one process, and by workers.

Mixed precision, the default, is compared to the loop in double precision.

The loop is the released code's: ``torch.optim.LBFGS`` on one restart after the other, on an
objective that ``autograd.grad`` with ``create_graph`` and a second backward pass evaluates. It runs
with one and with two threads of torch, and the faster of the two is what ours is compared to. Its
rate does not depend on how many restarts there are and is taken from ``--looped`` of them. Ours is
the attack's own search from the same starting points, all that it sets up included: recording
evaluations, starting workers. All ways take turns, and medians are printed: of time on the clock,
for which the machine should have nothing else to do (its load is printed), and of time on a
processor, workers' included.

The last columns compare iterates: our search on the loop's own evaluation, one restart after the
other, beside our search as it runs, after one step and after ``--compared`` steps of L-BFGS, where
rounding has grown (in float32 at once: the first line search interpolates values that differ by
less than their rounding); and the ends of one and two jobs, which are the same bits.

    python -m benchmarks.speed.reconstruction_speed [--restarts 1 8 32 …]
        [--precision float32 float64 mixed …] [--repeats 3] [--outer 40] [--looped 2]
        [--loops 1 2 …] [--compared 10]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import arguments, seen_of
from gradaudit import zoo
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage
from gradaudit.attacks.reconstruction.matching import lbfgs
from gradaudit.attacks.reconstruction.matching.blocks import Blocks
from gradaudit.attacks.reconstruction.matching.objectives import Evaluation, Minimum, Objective
from gradaudit.attacks.reconstruction.matching.restarts import MatchingOptions, Precision
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.data.records import Records

SHAPE, CLASSES = (3, 32, 32), 10


def scene(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Objective]:
    torch.manual_seed(0)
    model = zoo.build("deep-leakage", classes=CLASSES, init="uniform:0.5").to(dtype)
    view = seen_of(model, Records(torch.rand(1, *SHAPE), torch.tensor([3])), dtype=dtype)
    return model, Objective(view, Targets.of(view, None))


def usual(model: torch.nn.Module, objective: Objective) -> Evaluation:
    """The evaluation of the released code, a restart at a time."""
    shared = list(objective.view.update.values())
    length = sum(part.square().sum() for part in shared)
    weights = list(model.parameters())

    def one(point: Tensor) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        records = point[: objective.view.elements].view(1, *SHAPE)
        target = point[objective.view.elements :].softmax(dim=0)[None]
        loss = (target * -F.log_softmax(model(records), dim=1)).sum(dim=1).mean()
        found = torch.autograd.grad(loss, weights, create_graph=True)
        gaps = ((a - b).square().sum() for a, b in zip(found, shared, strict=True))
        gap = sum(gaps, torch.zeros(())) / length
        return gap.detach(), torch.autograd.grad(gap, point)[0]

    def every(points: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = zip(*(one(point) for point in points), strict=True)
        return torch.stack(values), torch.stack(gradients)

    return every


def loop_of_torch(evaluate: Evaluation, start: Tensor, outer: int, threads: int) -> int:
    """L-BFGS of torch on every restart in turn; how many iterations it took."""
    torch.set_num_threads(threads)
    count = 0
    for begin in start:
        point = begin.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([point], lr=1, line_search_fn="strong_wolfe")

        def closure(point: Tensor = point) -> float:
            values, gradients = evaluate(point[None])
            point.grad = gradients[0]
            return float(values[0])

        for _ in range(outer):
            optimiser.step(closure)  # type: ignore[no-untyped-call]
        count += optimiser.state[point]["n_iter"]
    torch.set_num_threads(1)
    return count


def search_of(objective: Objective, outer: int, precision: Precision) -> Blocks:
    """The attack's own search."""
    return DeepLeakage(MatchingOptions(iterations=outer, precision=precision)).search(objective)


def rate(work: Callable[[], int]) -> tuple[float, float]:
    """Restart-iterations a second on the clock, and a second on a processor."""
    begun, before = time.perf_counter(), processor_seconds()
    count = work()
    seconds = time.perf_counter() - begun
    spent = sum(now - before.get(pid, 0.0) for pid, now in processor_seconds().items())
    return count / seconds, count / spent


def processor_seconds() -> dict[int, float]:
    """Of this process and all below it (on Linux; elsewhere of this process alone), by number."""
    found: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found[int(stat.parent.name)] = int(fields[1]), spent
    below = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
        below |= more
    return {
        **{pid: found[pid][1] for pid in below if pid in found},
        os.getpid(): time.process_time(),
    }


def furthest(left: Minimum, right: Minimum) -> float:
    """Largest difference of two sets of points, over the length of a point."""
    gap = (left.points - right.points).norm(dim=1) / right.points.norm(dim=1)
    return float(gap.max())


def steps_apart(
    evaluate: Evaluation, objective: Objective, points: Tensor, steps: int, precision: Precision
) -> float:
    """How far our search is from itself on the loop's evaluation after so many steps."""
    inner = lbfgs.INNER
    lbfgs.INNER = steps
    try:
        blocks = search_of(objective, 1, precision)
        alone = [blocks.descent(evaluate, point[None], advance=_nobody) for point in points]
        return furthest(blocks.minimised(points, 1, _nobody), Minimum.joined(alone))
    finally:
        lbfgs.INNER = inner


def _nobody(units: int) -> None:
    return None


def main() -> None:
    given = arguments(__doc__)
    for precision in given.precision:
        dtype = torch.float32 if precision == "float32" else torch.float64
        model, objective = scene(dtype)
        for count in given.restarts:
            points = torch.randn(count, objective.unknowns, dtype=dtype)
            line(model, objective, points, given, precision)


def line(
    model: torch.nn.Module,
    objective: Objective,
    points: Tensor,
    given: argparse.Namespace,
    precision: Precision,
) -> None:
    evaluate, ends = usual(model, objective), dict[int, Minimum]()

    def ours(jobs: int) -> int:
        search = search_of(objective, given.outer, precision)
        ends[jobs] = search.minimised(points, jobs, _nobody)
        return int(ends[jobs].iterations.sum())

    def loop(threads: int) -> int:
        return loop_of_torch(evaluate, points[: given.looped], given.outer, threads)

    loops = {f"loop on {threads}": partial(loop, threads) for threads in given.loops}
    ways = {**loops, "ours on 1": partial(ours, 1), "ours on 2": partial(ours, 2)}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    load = os.getloadavg()[0]
    for _ in range(given.repeats):
        for name, way in ways.items():
            rates[name].append(rate(way))
    middle = {
        name: [statistics.median(column) for column in zip(*found, strict=True)]
        for name, found in rates.items()
    }
    best, cheapest = (max(middle[name][of] for name in loops) for of in (0, 1))
    told = ", ".join(f"{name} {a:.0f} ({b:.0f})" for name, (a, b) in middle.items())
    print(
        f"{precision} {len(points):3} restarts, iterations a second on the clock (a processor): "
        f"{told}; {middle['ours on 1'][0] / best:.2f} and {middle['ours on 2'][0] / best:.2f} "
        f"times the faster loop on the clock, {middle['ours on 1'][1] / cheapest:.2f} and "
        f"{middle['ours on 2'][1] / cheapest:.2f} on a processor; iterates apart after 1 step "
        f"{steps_apart(evaluate, objective, points, 1, precision):.1e}, after {given.compared} "
        f"{steps_apart(evaluate, objective, points, given.compared, precision):.1e}, 1 and 2 jobs "
        f"{furthest(ends[1], ends[2]):.1e}; load {load:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
