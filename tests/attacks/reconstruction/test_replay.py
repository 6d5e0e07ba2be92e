import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.matching import replay
from gradaudit.attacks.reconstruction.matching.blocks import Evaluator
from gradaudit.attacks.reconstruction.matching.objectives import Distance, Evaluation, Objective
from gradaudit.attacks.reconstruction.matching.replay import ReplayedEvaluation, recorded
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from tests.attacks.reconstruction.scenes import cnn, drawn, finite_differences, records, view


def points_of(objective: Objective, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, objective.unknowns, generator=generator, dtype=torch.float64)


def cubes(points: Tensor) -> tuple[Tensor, Tensor]:
    return (points**3).sum(dim=1), 3 * points**2


def counting(evaluate: Evaluation) -> tuple[Evaluation, list[int]]:
    calls: list[int] = []

    def counted(points: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(points))
        return evaluate(points)

    return counted, calls


@pytest.mark.parametrize(
    ("distance", "count", "adaptive"), [("l2", 1, False), ("cosine", 1, True), ("cosine", 5, False)]
)
def test_recordings_repeat_the_evaluation(distance: Distance, count: int, adaptive: bool) -> None:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    objective = Objective(seen, Targets.of(seen, None), distance, tv=0.01, adaptive=adaptive)
    direct, repeated = Evaluator(objective), Evaluator(objective, worth=1)
    repeated(points_of(objective, count))
    for seed in (1, 2):
        points = points_of(objective, count, seed)
        for found, wanted in zip(repeated(points), direct(points), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_the_evaluation_is_left_alone_once_it_is_recorded() -> None:
    evaluate, calls = counting(cubes)
    replayed = ReplayedEvaluation(evaluate, worth=3)
    points = torch.arange(6.0).reshape(2, 3)
    for _ in range(10):
        torch.testing.assert_close(replayed(points), cubes(points))
    assert len(calls) == 3 + 1
    replayed(points[:1])
    assert calls[-1] == 1


def shape_by_numbers(points: Tensor) -> tuple[Tensor, Tensor]:
    return points[points > 0].sum().expand(len(points)), points


def branching(points: Tensor) -> tuple[Tensor, Tensor]:
    return cubes(points if float(points.sum()) > 0 else 2 * points)


def hidden_branch(points: Tensor) -> tuple[Tensor, Tensor]:
    return cubes(points if points.detach().numpy().sum() > 0 else 2 * points)


def drawing(points: Tensor) -> tuple[Tensor, Tensor]:
    return cubes(points + 0 * torch.rand_like(points))


@pytest.mark.parametrize("evaluate", [shape_by_numbers, branching, drawing])
def test_what_cannot_be_repeated_is_not_recorded(evaluate: Evaluation) -> None:
    assert recorded(evaluate, torch.ones(2, 3)) is None


@pytest.mark.parametrize("evaluate", [branching, hidden_branch, shape_by_numbers])
def test_what_is_not_repeated_rightly_is_not_replayed(evaluate: Evaluation) -> None:
    replayed = ReplayedEvaluation(evaluate, worth=1)
    for sign in (1, -1, 1):
        points = sign * torch.arange(1.0, 7).reshape(2, 3)
        torch.testing.assert_close(replayed(points), evaluate(points))


def test_operations_in_place_are_repeated() -> None:
    def in_place(points: Tensor) -> tuple[Tensor, Tensor]:
        twice = points * 2
        before = twice + 1
        twice.add_(1)
        twice.mul_(twice)
        return (before + twice).sum(dim=1), twice

    recording = recorded(in_place, torch.zeros(2, 3))
    assert recording is not None
    points = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(recording(points), in_place(points))


def test_operations_with_several_results_are_repeated() -> None:
    def several(points: Tensor) -> tuple[Tensor, Tensor]:
        largest, where = points.max(dim=1)
        left, right = points.unbind(dim=1)
        return largest + left * right, points * where[:, None]

    recording = recorded(several, torch.ones(3, 2))
    assert recording is not None
    points = torch.tensor([[1.0, 2.0], [4.0, 3.0], [5.0, 6.0]])
    torch.testing.assert_close(recording(points), several(points))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Sigmoid(), nn.Linear(8, 3))


@pytest.mark.parametrize("build", [normed, dropping])
def test_models_in_training_mode_give_the_same_ever_after(build: Callable[[], nn.Module]) -> None:
    batch = records(6, labels=[1, 2])
    model = drawn(build).train()
    seen = replace(view(model, batch), model=replace(view(model, batch).model, mode="train"))
    objective = Objective(seen, Targets.of(seen, batch.labels))
    direct, repeated = Evaluator(objective), Evaluator(objective, worth=1)
    for count in (1, 3):
        for seed in range(3):
            points = points_of(objective, count, seed)
            torch.testing.assert_close(repeated(points), direct(points))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.first(x.reshape(len(x), 1, 2, 3))
        return self.last(F.scaled_dot_product_attention(heads, heads, heads).flatten(1))


@pytest.mark.parametrize("count", [1, 3])
def test_attention_is_differentiated_twice_and_repeated(count: int) -> None:
    seen = view(drawn(Attending), records(6, labels=[1]))
    objective = Objective(seen, Targets.of(seen, None))
    repeated = Evaluator(objective, worth=1)
    for seed in (1, 2):
        points = points_of(objective, count, seed)
        for point, gradient in zip(points, repeated(points)[1], strict=True):
            wanted = finite_differences(objective, point)
            torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


def long(points: Tensor) -> tuple[Tensor, Tensor]:
    seen = points
    for _ in range(100):
        seen = seen.sin() + points
    return seen.sum(dim=1), seen


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_recordings_that_are_let_go_leave_nothing() -> None:
    """Those of ``torch.jit.trace`` leave 4 MiB each, in the programs that torch keeps for good."""

    def taken() -> int:
        gc.collect()
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

    def record(times: int) -> int:
        for _ in range(times):
            recording = recorded(long, torch.ones(2, 3))
            assert recording is not None
            recording(torch.ones(2, 3))
        return taken()

    before = record(3)
    assert record(4) - before < 4 << 20


def test_recorded_points_may_lie_anywhere() -> None:
    def rows(points: Tensor) -> tuple[Tensor, Tensor]:
        squares = points * points
        return squares.reshape(2, 2, 3).transpose(1, 2)[:, 1:].flatten(1).sum(dim=1), squares

    points = torch.randn(2, 6)
    for recording in (
        recorded(rows, torch.randn(6, 2).mT),
        recorded(rows, torch.ones(1, 6).expand(2, 6)),
    ):
        assert recording is not None
        for found, wanted in zip(recording(points), rows(points), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_graph_keeps_what_its_kernels_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        """Of a GPU that is not there."""

        def replay(self) -> None:
            pass

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.ones(3))

        def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
            return points @ self.factor, points * self.factor

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext())
    monkeypatch.setattr(replay, "_aside", lambda device: nullcontext())
    module = Scaled()
    factor = weakref.ref(module.factor)
    launched = replay._as_graph(module, torch.ones(2, 3), None)
    del module
    gc.collect()
    assert factor() is not None
    del launched
    gc.collect()
    assert factor() is None
