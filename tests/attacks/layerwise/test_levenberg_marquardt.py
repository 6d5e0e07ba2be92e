"""The search of Levenberg and Marquardt, and the inversion of layers by it."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from attacks.layerwise.nets import net, record, view
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from torch import nn

from gradaudit.attacks.layerwise.systems import minimise
from gradaudit.attacks.reconstruction.closed_form import (
    Inversion,
    full_column_rank,
    layer_input,
    operations_a_product,
)

Vector = NDArray[np.float64]


@dataclass
class Bent:
    """tanh(M z) − right."""

    matrix: Vector
    right: Vector
    scale: float = 1.0
    linearised: list[Vector] = field(default_factory=list)

    def residuals(self, z: Vector) -> Vector:
        return np.asarray(np.tanh(self.matrix @ z) - self.right)

    def jacobian(self, z: Vector) -> LinearOperator:
        self.linearised.append(z)
        slope = 1 - np.tanh(self.matrix @ z) ** 2
        return aslinearoperator(slope[:, None] * self.matrix)


def bent(rows: int, columns: int, noise: float) -> Bent:
    rng = np.random.default_rng(rows)
    matrix = rng.normal(size=(rows, columns)) / columns**0.5
    right = np.tanh(matrix @ rng.normal(size=columns)) + noise * rng.normal(size=rows)
    return Bent(matrix, right)


@pytest.mark.parametrize(("rows", "columns", "noise"), [(40, 12, 0.1), (12, 12, 0), (12, 40, 0)])
def test_a_search_ends_where_scipys_does(rows: int, columns: int, noise: float) -> None:
    problem, start = bent(rows, columns, noise), np.zeros(columns)
    found = minimise(problem, start, steps=100, inner=200)
    expected = least_squares(problem.residuals, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert found.residual == pytest.approx(np.sqrt(2 * expected.cost), rel=1e-8, abs=1e-9)
    assert not found.cut


def test_a_search_linearises_once_wherever_it_arrives() -> None:
    problem = bent(40, 12, 2.0)
    found = minimise(problem, np.zeros(12), steps=30, inner=200)
    assert found.steps > len(problem.linearised)
    assert len(np.unique(problem.linearised, axis=0)) == len(problem.linearised)


def test_a_search_spends_what_it_may_and_says_so() -> None:
    problem, start = bent(40, 40, 0.0), np.zeros(40)
    whole = minimise(problem, start, steps=100, inner=500)
    few = minimise(problem, start, steps=100, inner=500, products=15)
    assert (few.products, few.cut, whole.cut) == (15, True, False)
    assert whole.residual < few.residual < float(np.linalg.norm(problem.residuals(start)))
    assert minimise(problem, start, steps=100, inner=500, products=0).z is start


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()])
def test_the_jacobian_of_what_a_layer_reads_is_that_of_a_whole_pass(activation: nn.Module) -> None:
    model = net(nn.Conv2d(1, 2, 3), activation, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    x = record(1, 6, 6)
    read = layer_input(view(model, x).model, "4")
    found = Inversion(read, read(x), (1, 6, 6)).jacobian(x.flatten().numpy())
    expected = torch.autograd.functional.jacobian(lambda z: model[:4](z), x).reshape(8, 36)
    np.testing.assert_allclose(found @ np.eye(36), expected, atol=1e-14)
    np.testing.assert_allclose(found.T @ np.eye(8), expected.T, atol=1e-14)


def test_what_does_not_hang_on_the_record_has_no_derivative() -> None:
    found = Inversion(lambda x: x.detach().flatten(), torch.ones(4).double(), (4,))
    np.testing.assert_array_equal(found.jacobian(np.zeros(4)) @ np.eye(4), np.zeros((4, 4)))


@pytest.mark.parametrize("smallest", [1.0, 1e-4, 1e-8, 1e-11, 1e-18, 0.0])
def test_column_rank_is_that_of_the_singular_values(smallest: float) -> None:
    generator = torch.Generator().manual_seed(3)
    left, right = (
        torch.linalg.qr(torch.randn(n, 20, generator=generator, dtype=torch.float64)).Q
        for n in (30, 20)
    )
    values = torch.linspace(2, 1, 20).double()
    values[-1] = smallest
    matrix = left * values @ right.T
    assert full_column_rank(matrix) is (smallest > 1e-14)


def test_operations_are_counted_up_to_the_layer() -> None:
    layers = [nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 30 * 30, 2), nn.Linear(2, 9)]
    x = record(3, 32, 32)
    forward = 2.0 * (27 * 64 * 900) + 2.0 * (64 * 900 * 2)
    model = view(net(*layers), x).model
    assert operations_a_product(model, "3", x) == 4 * forward
    assert operations_a_product(model, "0", x) == 1e7
