import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import Candidates, Execution
from gradaudit.attacks.reconstruction.gradient_matching import (
    DeepLeakage,
    InvertingGradients,
    InvertingOptions,
)
from gradaudit.attacks.reconstruction.matching import blocks
from gradaudit.attacks.reconstruction.matching.blocks import Blocks, Evaluator, blocks_of
from gradaudit.attacks.reconstruction.matching.lbfgs import EVALUATIONS, minimise
from gradaudit.attacks.reconstruction.matching.objectives import Distance, Minimum, Objective
from gradaudit.attacks.reconstruction.matching.restarts import (
    GradientMatching,
    MatchingOptions,
    Precision,
)
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from tests.attacks.reconstruction.scenes import cnn, mlp, records, view

OUTER = 1


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers every attack had; they are started however small the work is."""
    asked: list[int] = []
    share = blocks.shared_out

    def counting(tasks, workers, advance, **more):  # type: ignore[no-untyped-def]
        asked.append(workers)
        return share(tasks, workers, advance, **more)

    monkeypatch.setattr(blocks, "_LEAST_ROWS", 4)
    monkeypatch.setattr(blocks, "_MOST_ROWS", 8)
    monkeypatch.setattr(blocks, "shared_out", counting)
    return asked


def objective_of(model: nn.Module, *shape: int) -> Objective:
    seen = view(model, records(*shape, labels=[1]))
    return Objective(seen, Targets.of(seen, None))


def blocks_for(objective: Objective, outer: int = OUTER) -> Blocks:
    options = MatchingOptions(iterations=outer, precision="float64")
    return DeepLeakage(options).search(objective)


def points_of(objective: Objective, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, objective.unknowns, generator=generator, dtype=torch.float64)


def same(left: Minimum, right: Minimum) -> None:
    torch.testing.assert_close(vars(left), vars(right), rtol=0, atol=0, equal_nan=True)


def quiet(units: int) -> None:
    """Nobody is told."""


def run(method: GradientMatching, restarts: int, jobs: int) -> Candidates:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    return type(method)(method.options, restarts=restarts).run(seen, Execution(1, jobs))


def by_one_and_two(search: Blocks, points: Tensor, outer: int) -> Minimum:
    """The minimum that one job and two find, to the bit, each of which tells of every step."""
    found, told = [], []
    for jobs in (1, 2):
        told.append(0)

        def advance(units: int) -> None:
            told[-1] += units

        found.append(search.minimised(points, jobs, advance))
    same(*found)
    assert told == [len(points) * outer] * 2
    return found[0]


@pytest.mark.processes
def test_two_workers_give_the_same_bits_as_none(workers: list[int]) -> None:
    """A restart that diverges is dropped in its worker alone."""
    objective = objective_of(cnn(), 1, 6, 6)
    points = points_of(objective, 17)
    clean = blocks_for(objective).minimised(points, 1, quiet)
    points[14, 0] = math.nan
    found = by_one_and_two(blocks_for(objective), points, OUTER)
    assert workers == [2]
    assert found.diverged.tolist() == [False] * 14 + [True, False, False]
    assert torch.equal(found.points[:8], clean.points[:8])


def test_blocks_take_the_steps_that_every_restart_takes_alone() -> None:
    """To rounding, which grows from step to step."""
    objective = objective_of(mlp(), 6)
    points = points_of(objective, 5)
    together = blocks_for(objective, 1).minimised(points, 1, quiet)
    for row, point in enumerate(points):
        alone = minimise(Evaluator(objective), point[None], 1)
        torch.testing.assert_close(together.points[row], alone.points[0], rtol=1e-3, atol=1e-4)
        assert int(together.evaluations[row]) == int(alone.evaluations[0])


def test_attacks_hand_in_the_same_candidates(workers: list[int]) -> None:
    method = InvertingGradients(InvertingOptions(iterations=10))
    one, two = run(method, 6, 1), run(method, 6, 2)
    assert workers == [2]
    assert torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.scores, two.scores)
    assert one.details == two.details


def workers_for(objective: Objective, restarts: int, jobs: int) -> int:
    search = blocks_for(objective)
    parts = torch.split(points_of(objective, restarts), search.rows(restarts))
    return search._workers(parts, jobs)


@pytest.mark.usefixtures("workers")
def test_workers_are_no_more_than_blocks_and_what_memory_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objective = objective_of(mlp(), 6)
    asked = [workers_for(objective, *how) for how in ((1, 2), (4, 3), (5, 4), (17, 2))]
    assert asked == [1, 1, 2, 2]
    assert [blocks_of(n) for n in (1, 4, 5, 8, 32)] == [1, 1, 2, 2, 4]
    each = blocks_for(objective)._bytes_a_row
    assert each > 8 * 200 * objective.unknowns  # L-BFGS keeps 100 pairs in float64
    for rows, jobs, expected in ((3, 2, 1), (6, 2, 1), (8, 2, 2), (8, 3, 2)):
        monkeypatch.setattr(blocks, "MEMORY", each * rows)
        assert blocks_for(objective).rows(8) == min(rows, 4)
        assert workers_for(objective, 8, jobs) == expected


def test_models_that_cannot_be_shipped_are_attacked_in_this_process(workers: list[int]) -> None:
    model = cnn()
    objective = objective_of(model, 1, 6, 6)
    points = points_of(objective, 5)
    alone = blocks_for(objective, 1).minimised(points, 1, quiet)
    vars(model)["stream"] = (number for number in range(3))
    locked = replace(objective, view=replace(objective.view))
    same(blocks_for(locked, 1).minimised(points, 2, quiet), alone)
    assert workers == [2]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every evaluation counts as large enough for single precision to pay."""
    monkeypatch.setattr(blocks, "_WIDE", 0)
    monkeypatch.setattr(blocks, "_LONG", 100)


def searched(
    precision: Precision, monkeypatch: pytest.MonkeyPatch, objective: Objective, outer: int = 12
) -> tuple[Minimum, list[tuple[torch.dtype, int]]]:
    """Where four restarts end, and precision and points of every evaluation."""
    seen: list[tuple[torch.dtype, int]] = []
    evaluate = Evaluator.__call__

    def watching(self: Evaluator, points: Tensor) -> tuple[Tensor, Tensor]:
        if points.dtype == self._objective.view.dtype:
            seen.append((points.dtype, len(points)))
        return evaluate(self, points)

    search = DeepLeakage(MatchingOptions(iterations=outer, precision=precision)).search(objective)
    points = points_of(objective, 4)
    assert search.rows(4) == 4  # which evaluates points of its own
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", watching)
        return search.minimised(points.to(objective.view.dtype), 1, quiet), seen


def test_mixed_precision_goes_on_where_single_precision_ends(
    wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_of(mlp(), 6)
    single = objective.in_precision(torch.float32)
    alone, _ = searched("float32", monkeypatch, single, outer=40)
    mixed, seen = searched("mixed", monkeypatch, objective, outer=40)
    solved = alone.values < 1e-10
    assert int(solved.sum()) >= 2
    assert (alone.values[solved] > 1e-15).all()
    assert (mixed.values[solved] <= 1e-18).all()
    assert mixed.points.dtype == torch.float64
    precisions = [precision for precision, _ in seen]
    changed = precisions.index(torch.float64)
    assert precisions == [torch.float32] * changed + [torch.float64] * (len(seen) - changed)
    assert changed > 20
    again = 4  # evaluations, of every row where the precision changes
    assert sum(rows for _, rows in seen) == int(mixed.evaluations.sum()) + again


def test_mixed_precision_takes_about_as_many_evaluations_as_double_precision(
    wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_of(mlp(), 6)
    (mixed, _), (double, _) = (
        searched(precision, monkeypatch, objective, outer=40) for precision in ("mixed", "float64")
    )
    both = (mixed.values <= 1e-18) & (double.values <= 1e-18)
    assert int(both.sum()) >= 2
    gone = mixed.evaluations[both].sum() / double.evaluations[both].sum()
    assert 0.9 < float(gone) < 1.1


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_precision_that_was_asked_for_is_the_only_one(
    precision: Precision, wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = getattr(torch, precision)
    objective = objective_of(mlp(), 6).in_precision(dtype)
    assert {one for one, _ in searched(precision, monkeypatch, objective, outer=3)[1]} == {dtype}


class Turned(nn.Sequential):
    """Takes double precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        turn: Tensor = super().forward(x @ torch.eye(6, dtype=torch.float64).flip(0))
        return turn


@pytest.mark.parametrize("why", ["_WIDE", "_LONG", "the model"])
def test_mixed_precision_is_double_where_evaluations_are_small_or_few_or_the_model_takes_no_other(
    why: str, wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why in vars(blocks):
        monkeypatch.setattr(blocks, why, 1e9)
    objective = objective_of(Turned(mlp()) if why == "the model" else mlp(), 6)
    mixed, seen = searched("mixed", monkeypatch, objective, outer=4)
    assert {precision for precision, _ in seen} == {torch.float64}
    same(mixed, searched("float64", monkeypatch, objective, outer=4)[0])


@pytest.mark.parametrize(
    ("factor", "distance"), [(1e-16, "l2"), (1e18, "l2"), (1e-10, "cosine"), (1e10, "cosine")]
)
def test_mixed_precision_is_double_where_squares_leave_the_range_of_single_precision(
    factor: float, distance: Distance
) -> None:
    objective = replace(objective_of(mlp(), 6), distance=distance)
    update = {name: factor * part for name, part in objective.view.update.items()}
    scaled = replace(objective, view=replace(objective.view, update=update))
    assert objective.fits_single_precision
    assert not scaled.fits_single_precision
    assert not DeepLeakage(MatchingOptions(precision="mixed")).search(scaled).mixed


@pytest.mark.processes
@pytest.mark.usefixtures("wide")
def test_two_workers_give_the_same_bits_in_mixed_precision(workers: list[int]) -> None:
    objective = objective_of(mlp(), 6)
    search = DeepLeakage(MatchingOptions(iterations=6)).search(objective)
    found = by_one_and_two(search, points_of(objective, 9), 6)
    assert workers == [2]
    assert (found.evaluations <= 6 * EVALUATIONS).all()
