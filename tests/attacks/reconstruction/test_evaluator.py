"""Restarts that are taken together take the steps that each takes alone."""

import pytest
import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage
from gradaudit.attacks.reconstruction.matching import evaluator
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator
from gradaudit.attacks.reconstruction.matching.lbfgs import HISTORY, minimise
from gradaudit.attacks.reconstruction.matching.objectives import Objective
from gradaudit.attacks.reconstruction.matching.restarts import MatchingOptions
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from tests.attacks.reconstruction.scenes import mlp, records, view


@pytest.fixture
def objective() -> Objective:
    seen = view(mlp(), records(6, labels=[1]))
    return Objective(seen, Targets.of(seen, None))


def points_of(objective: Objective, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, objective.unknowns, generator=generator, dtype=torch.float64)


def test_restarts_take_the_steps_that_each_takes_alone(objective: Objective) -> None:
    """To rounding, which grows from step to step."""
    points, told = points_of(objective, 5), []
    method = DeepLeakage(MatchingOptions(iterations=1))
    together = method.minimum(objective, points, told.append)
    assert sum(told) == 5
    for row, point in enumerate(points):
        alone = minimise(Evaluator(objective), point[None], 1)
        torch.testing.assert_close(together.points[row], alone.points[0], rtol=1e-3, atol=1e-4)
        assert int(together.evaluations[row]) == int(alone.evaluations[0])


def test_restarts_that_do_not_fit_into_memory_follow_one_another(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, evaluate = points_of(objective, 5), Evaluator(objective)
    kept = 2 * HISTORY * objective.unknowns
    assert [evaluate.rows(count, kept) for count in (1, 5, 40)] == [1, 5, 16]
    method = DeepLeakage(MatchingOptions(iterations=1))
    whole = method.minimum(objective, points, lambda units: None)
    monkeypatch.setattr(evaluator, "MEMORY", 3 * 8 * kept)
    assert evaluate.rows(5, kept) == 2
    parts = method.minimum(objective, points, lambda units: None)
    torch.testing.assert_close(parts.points, whole.points, rtol=1e-3, atol=1e-4)
    assert parts.points.shape == whole.points.shape


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_attack_computes_in_the_precision_that_was_asked_for(
    precision: str, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    call = Evaluator.__call__

    def watching(self: Evaluator, points: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(points.dtype)
        return call(self, points)

    monkeypatch.setattr(Evaluator, "__call__", watching)
    attack = DeepLeakage(iterations=1, precision=precision, restarts=2)
    attack.run(objective.view, Execution())
    assert set(seen) == {getattr(torch, precision)}
