import math
from dataclasses import replace
from typing import Any

import numpy as np
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
from gradaudit.attacks.reconstruction.matching.replay import WORTH, ReplayedEvaluation
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
    """How many workers every attack had; they are started however short and small the work is."""
    asked: list[int] = []
    share = blocks.shared_out

    def counting(tasks, workers, advance):  # type: ignore[no-untyped-def]
        asked.append(workers)
        return share(tasks, workers, advance)

    monkeypatch.setattr(blocks, "COSTS", 0.0)
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


def run(method: GradientMatching, restarts: int, jobs: int) -> Candidates:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    return type(method)(method.options, restarts=restarts).run(seen, Execution(1, jobs))


@pytest.mark.parametrize("restarts", [5, 17])
def test_two_workers_give_the_same_bits_as_none(restarts: int, workers: list[int]) -> None:
    objective = objective_of(cnn(), 1, 6, 6)
    points, told = points_of(objective, restarts), {1: 0, 2: 0}
    found = []
    for jobs in (1, 2):

        def advance(units: int, jobs: int = jobs) -> None:
            told[jobs] += units

        found.append(blocks_for(objective).minimised(points, jobs, advance))
    assert workers == [2]
    same(*found)
    assert told == dict.fromkeys((1, 2), restarts * OUTER)


def test_two_workers_give_the_same_bits_where_evaluations_are_recorded_on_the_way(
    workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings: list[bool] = []
    record = ReplayedEvaluation._record

    def counting(self: ReplayedEvaluation, *arguments: Any) -> Any:
        recordings.append((made := record(self, *arguments)) is not None)
        return made

    monkeypatch.setattr(ReplayedEvaluation, "_record", counting)
    objective = objective_of(mlp(), 6)
    options = MatchingOptions(optimiser="adam", iterations=WORTH + 20)
    search = DeepLeakage(options).search(objective)
    points = points_of(objective, 8)
    alone = search.minimised(points, 1, lambda units: None)
    assert recordings == [True]  # for both blocks
    same(alone, search.minimised(points, 2, lambda units: None))
    assert workers == [2]


def test_blocks_take_the_steps_that_every_restart_takes_alone() -> None:
    """To rounding, which grows from step to step."""
    objective = objective_of(mlp(), 6)
    points = points_of(objective, 9)
    together = blocks_for(objective, 1).minimised(points, 1, lambda units: None)
    for row, point in enumerate(points):
        alone = minimise(Evaluator(objective), point[None], 1)
        torch.testing.assert_close(together.points[row], alone.points[0], rtol=1e-3, atol=1e-4)
        assert int(together.evaluations[row]) == int(alone.evaluations[0])


def test_a_restart_that_diverges_is_dropped_in_its_worker_alone(workers: list[int]) -> None:
    objective = objective_of(mlp(), 6)
    points = points_of(objective, 8)
    clean = blocks_for(objective).minimised(points, 2, lambda units: None)
    points[6, 0] = math.nan
    found = [blocks_for(objective).minimised(points, jobs, lambda units: None) for jobs in (1, 2)]
    same(*found)
    assert found[0].diverged.tolist() == [False] * 6 + [True, False]
    assert torch.equal(found[0].points[:4], clean.points[:4])
    assert workers == [2, 2]


def test_one_block_needs_no_worker_and_workers_are_no_more_than_blocks(workers: list[int]) -> None:
    objective = objective_of(mlp(), 6)
    for restarts, jobs in ((1, 2), (4, 3), (5, 4)):
        points = points_of(objective, restarts)
        found = [blocks_for(objective).minimised(points, n, lambda units: None) for n in (1, jobs)]
        same(*found)
    assert workers == [2]  # 4 + 1 restarts
    assert [blocks_of(n) for n in (1, 4, 5, 8, 32)] == [1, 1, 2, 2, 4]


@pytest.mark.parametrize(
    "method",
    [
        DeepLeakage(MatchingOptions(iterations=2)),
        InvertingGradients(InvertingOptions(iterations=10)),
    ],
    ids=lambda method: method.name,
)
def test_attacks_hand_in_the_same_candidates(method: GradientMatching, workers: list[int]) -> None:
    one, two = run(method, 6, 1), run(method, 6, 2)
    assert workers == [2]
    assert torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.scores, two.scores)
    assert one.details == two.details


def test_short_work_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "shared_out", None)
    assert len(run(DeepLeakage(MatchingOptions(iterations=1)), 6, 2).scores) == 6


def test_memory_bounds_blocks_and_workers(
    monkeypatch: pytest.MonkeyPatch, workers: list[int]
) -> None:
    objective = objective_of(mlp(), 6)
    each = blocks_for(objective)._bytes_a_row
    assert each > 8 * 200 * objective.unknowns  # L-BFGS keeps 100 pairs in float64
    points = points_of(objective, 8)
    for rows, jobs, expected in ((3, 2, []), (6, 2, []), (8, 2, [2]), (8, 3, [2])):
        monkeypatch.setattr(blocks, "MEMORY", each * rows)
        assert blocks_for(objective).rows(8) == min(rows, 4)
        blocks_for(objective, 1).minimised(points, jobs, lambda units: None)
        assert workers == expected
        workers.clear()


def test_an_evaluator_anew_gives_the_bits_of_a_new_one() -> None:
    objective = objective_of(cnn(), 1, 6, 6)
    points = points_of(objective, 4)
    used = Evaluator(objective, worth=2)
    for _ in range(4):
        used(points)
    fresh, again = Evaluator(objective, worth=2), used.anew()
    for shift in np.linspace(0, 1, 4):
        for found, wanted in zip(again(points + shift), fresh(points + shift), strict=True):
            assert torch.equal(found, wanted)


def test_models_that_cannot_be_shipped_are_attacked_in_this_process(workers: list[int]) -> None:
    model = cnn()
    objective = objective_of(model, 1, 6, 6)
    points = points_of(objective, 5)
    alone = blocks_for(objective, 1).minimised(points, 1, lambda units: None)
    vars(model)["stream"] = (number for number in range(3))
    locked = replace(objective, view=replace(objective.view))
    same(blocks_for(locked, 1).minimised(points, 2, lambda units: None), alone)
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
        return search.minimised(points.to(objective.view.dtype), 1, lambda units: None), seen


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
    assert {one for one, _ in searched(precision, monkeypatch, objective)[1]} == {dtype}


@pytest.mark.parametrize("limit", ["_WIDE", "_LONG"])
def test_mixed_precision_is_double_where_evaluations_are_small_or_few(
    limit: str, wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, limit, 1e9)
    objective = objective_of(mlp(), 6)
    mixed, seen = searched("mixed", monkeypatch, objective)
    assert {precision for precision, _ in seen} == {torch.float64}
    same(mixed, searched("float64", monkeypatch, objective)[0])


@pytest.mark.parametrize(
    ("factor", "distance"), [(1e-16, "l2"), (1e18, "l2"), (1e-10, "cosine"), (1e10, "cosine")]
)
def test_mixed_precision_is_double_where_squares_leave_the_range_of_single_precision(
    factor: float, distance: Distance, wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_of(mlp(), 6)
    update = {name: factor * part for name, part in objective.view.update.items()}
    seen = replace(objective.view, update=update)
    scaled = replace(objective, view=seen, distance=distance)
    assert {one for one, _ in searched("mixed", monkeypatch, scaled)[1]} == {torch.float64}


def test_mixed_precision_is_double_where_the_model_takes_nothing_else(
    wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Turned(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            turn: Tensor = super().forward(x @ torch.eye(6, dtype=torch.float64).flip(0))
            return turn

    objective = objective_of(Turned(mlp()), 6)
    mixed, seen = searched("mixed", monkeypatch, objective)
    assert {precision for precision, _ in seen} == {torch.float64}
    same(mixed, searched("float64", monkeypatch, objective)[0])


def test_two_workers_give_the_same_bits_in_mixed_precision(wide: None, workers: list[int]) -> None:
    objective, told = objective_of(mlp(), 6), {1: 0, 2: 0}
    points = points_of(objective, 9)
    search = DeepLeakage(MatchingOptions(iterations=12)).search(objective)
    found = []
    for jobs in told:

        def advance(units: int, jobs: int = jobs) -> None:
            told[jobs] += units

        found.append(search.minimised(points, jobs, advance))
    same(*found)
    assert workers == [2]
    assert told == dict.fromkeys((1, 2), 9 * 12)
    assert (found[0].evaluations <= 12 * EVALUATIONS).all()
