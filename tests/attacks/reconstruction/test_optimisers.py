import numpy as np
import pytest
import torch
from scipy.optimize import minimize, rosen, rosen_der
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.lbfgs import (
    EVALUATIONS,
    INNER,
    MOST_TRIALS,
    judge,
    minimise,
    next_step,
)
from gradaudit.attacks.reconstruction.matching.restarts import StepSize, descend

F64 = torch.float64


def gradients_of(function, points: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    points = points.detach().requires_grad_()
    values = function(points)
    (gradients,) = torch.autograd.grad(values.sum(), points)
    return values.detach(), gradients


def rosenbrock(points: Tensor) -> tuple[Tensor, Tensor]:
    return gradients_of(
        lambda p: (100 * (p[:, 1:] - p[:, :-1] ** 2) ** 2 + (1 - p[:, :-1]) ** 2).sum(dim=1), points
    )


def starts(rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=F64)


class Quadratic:
    """½ (x − c)ᵀ A (x − c) with a condition number of 10⁴."""

    def __init__(self, size: int) -> None:
        basis, _ = torch.linalg.qr(starts(size, size, seed=7))
        self.matrix = basis @ torch.diag(torch.logspace(-2, 2, size, dtype=F64)) @ basis.T
        self.centre = starts(1, size, seed=8)[0]

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        gradients = (points - self.centre) @ self.matrix
        return ((points - self.centre) * gradients).sum(dim=1) / 2, gradients


def test_lbfgs_solves_quadratics() -> None:
    problem = Quadratic(12)
    found = minimise(problem, starts(5, 12), outer=20)
    torch.testing.assert_close(found.points, problem.centre.expand(5, -1), rtol=0, atol=1e-6)
    assert not found.diverged.any()


@pytest.mark.slow
def test_lbfgs_takes_about_as_many_steps_on_rosenbrock_as_scipy() -> None:
    begin = starts(6, 10)
    found = minimise(rosenbrock, begin, outer=50, tolerance=1e-20)
    peers = [
        minimize(rosen, x, jac=rosen_der, method="L-BFGS-B", options={"maxcor": 100, "gtol": 1e-9})
        for x in begin.numpy()
    ]
    assert float(found.values.max()) < 1e-18
    steps = sum(int(peer.nit) for peer in peers)
    assert 0.6 * steps < int(found.iterations.sum()) < 1.6 * steps


@pytest.mark.slow
def test_rows_do_not_touch_each_other() -> None:
    begin = starts(3, 6)
    together = minimise(rosenbrock, begin, outer=2)
    for row in range(3):
        alone = minimise(rosenbrock, begin[row : row + 1], outer=2)
        torch.testing.assert_close(together.points[row], alone.points[0], rtol=1e-9, atol=1e-9)
        assert together.evaluations[row] == alone.evaluations[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_line_search_ends_where_the_strong_wolfe_conditions_hold(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scale, phase, slope = generator.uniform(0.5, 8), generator.uniform(0, 6), 1.0

    def wavy(t: float) -> tuple[float, float]:
        value = -slope * t + 0.1 * t**2 + 0.3 * np.sin(scale * t + phase) / scale
        return value, -slope + 0.2 * t + 0.3 * np.cos(scale * t + phase)

    def end(t: float) -> Tensor:
        return torch.tensor([[t, *wavy(t)]], dtype=F64)

    start, low, high, step = end(0), end(0), torch.tensor([[np.inf, 0, 0]]).double(), 0.01
    for _ in range(MOST_TRIALS):
        before, trial = low, end(step)
        accepted, low, high = judge(start, low, high, trial)
        if accepted:
            break
        step = float(next_step(before, low, high))
    assert accepted
    (length, value, gradient), slope = trial[0].tolist(), float(start[0, 2])
    assert value <= float(start[0, 1]) + 1e-4 * length * slope
    assert abs(gradient) <= 0.9 * abs(slope)


def test_an_outer_step_is_at_most_twenty_inner_ones() -> None:
    found = minimise(rosenbrock, starts(3, 30), outer=2)
    assert (found.iterations <= 2 * INNER).all()
    assert (found.evaluations <= 2 * EVALUATIONS).all()
    assert (found.iterations > 5).all()


def test_a_row_that_cannot_be_evaluated_is_diverged_and_alone_in_it() -> None:
    begin = starts(3, 4)
    begin[1, 0] = torch.nan
    found = minimise(rosenbrock, begin, outer=30, tolerance=1e-20)
    assert found.diverged.tolist() == [False, True, False]
    assert float(found.values[[0, 2]].max()) < 1e-18


@pytest.mark.slow
def test_lbfgs_backs_away_from_where_a_function_ends() -> None:
    """log(x) is not a number beyond its domain, and the minimum lies close to that."""

    def barrier(points: Tensor) -> tuple[Tensor, Tensor]:
        return gradients_of(lambda p: (p - 1e-3 * p.log()).sum(dim=1), points)

    begin = starts(4, 3).abs() + 0.5
    found = minimise(barrier, begin, outer=20)
    torch.testing.assert_close(found.points, torch.full_like(begin, 1e-3), rtol=1e-4, atol=0)


def test_lbfgs_ends_where_nothing_changes() -> None:
    found = minimise(
        lambda p: (torch.ones(len(p), dtype=F64), torch.zeros_like(p)), starts(2, 3), 9
    )
    assert found.evaluations.tolist() == [1, 1]
    assert not found.diverged.any()


def test_adam_walks_as_torch_does() -> None:
    begin = starts(3, 5)
    found = descend(rosenbrock, begin, 40, StepSize(0.05, decay=False))
    for row in range(3):
        point = begin[row : row + 1].clone().requires_grad_()
        optimiser = torch.optim.Adam([point], lr=0.05)
        best = np.inf
        for _ in range(41):
            optimiser.zero_grad()
            value, gradient = rosenbrock(point)
            best = min(best, float(value))
            point.grad = gradient
            optimiser.step()
        assert float(found.values[row]) == pytest.approx(best, rel=1e-9)


def test_the_rate_falls_along_half_a_cosine() -> None:
    pace = StepSize(2.0)
    rates = [pace.at(iteration, 60) for iteration in (0, 10, 20, 30, 40, 60)]
    assert rates == pytest.approx([2, 1 + 3**0.5 / 2, 1.5, 1, 0.5, 0])
    assert StepSize(1.0, decay=False).at(79, 80) == 1


def test_signed_adam_takes_first_steps_of_the_rate_in_every_coordinate() -> None:
    begin = starts(2, 4)
    walked: list[Tensor] = []

    def watched(points: Tensor) -> tuple[Tensor, Tensor]:
        walked.append(points.clone())
        return rosenbrock(points)

    descend(watched, begin, 1, StepSize(0.1, signed=True))
    moved = (walked[1] - walked[0]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.1), rtol=1e-6, atol=0)


def test_adam_stays_in_its_box_and_returns_the_best_point_seen() -> None:
    problem = Quadratic(4)
    problem.centre = torch.full((4,), 3.0, dtype=F64)
    problem.matrix = torch.eye(4, dtype=F64)
    found = descend(
        problem, torch.zeros(1, 4, dtype=F64), 100, StepSize(0.5), project=lambda p: p.clamp(0, 1)
    )
    torch.testing.assert_close(found.points, torch.ones(1, 4, dtype=F64))


def test_adam_drops_a_row_that_turns_nan_and_keeps_the_others_numbers() -> None:
    calls = 0

    def breaking(points: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        values, gradients = rosenbrock(points)
        if calls == 5 and len(points) == 3:
            values[1] = torch.nan
        return values, gradients

    begin = starts(3, 4)
    found = descend(breaking, begin, 30, StepSize(0.01))
    whole = descend(rosenbrock, begin, 30, StepSize(0.01))
    assert found.diverged.tolist() == [False, True, False]
    torch.testing.assert_close(found.points[[0, 2]], whole.points[[0, 2]])
