import numpy as np
import pytest
import torch
from attacks.layerwise.nets import ACTIVATIONS, chain, narrowing, net, record, widening
from numpy.typing import NDArray
from torch import nn

from gradaudit.attacks.layerwise.systems import minimise, system_of, weights_matrix
from gradaudit.attacks.reconstruction.copa import (
    CombinedObjective,
    PullBack,
    column_rank,
    pull_back_of,
)

SHAPE = (1, 8, 8)


def constraint(model: nn.Module) -> PullBack:
    found = pull_back_of(chain(model, *SHAPE).stages[0])
    assert found is not None
    return found


def beside(found: PullBack, z: NDArray[np.float64]) -> NDArray[np.float64]:
    """P (z − B), which the constraint has zero."""
    return z - found.image(found.preimage(z))


def test_what_the_layer_before_gives_fulfils_the_constraint() -> None:
    model = widening(nn.Tanh())
    first = chain(model, *SHAPE).stages[0]
    z = (first.linear(record(*SHAPE).flatten()) + first.offset).numpy()
    found = constraint(model)
    assert np.abs(beside(found, z)).max() < 1e-12
    np.testing.assert_allclose(found.preimage(z), record(*SHAPE).flatten(), atol=1e-11)


def test_the_constraint_is_the_projection_of_equation_18() -> None:
    found = constraint(widening(nn.Tanh()))
    left, _, _ = np.linalg.svd(found.matrix.toarray())
    left = left[:, found.matrix.shape[1] :]
    z = np.random.default_rng(0).normal(size=len(left))
    np.testing.assert_allclose(beside(found, z), left @ (left.T @ (z - found.offset)), atol=1e-11)


@pytest.mark.parametrize(
    ("layer", "shape", "why"),
    [
        (nn.Conv2d(3, 2, 3), (3, 6, 6), "fewer outputs than inputs"),
        (nn.Conv2d(1, 4, 3, stride=4), (1, 8, 8), "inputs that are never read"),
        (nn.Conv2d(2, 6, 1), (2, 5, 5), ""),
    ],
)
def test_where_the_constraint_is_defined(
    layer: nn.Module, shape: tuple[int, ...], why: str
) -> None:
    outputs = layer.double()(record(*shape)).numel()
    stage = chain(net(layer, nn.Flatten(), nn.Linear(outputs, 2)), *shape).stages[0]
    dense = weights_matrix(stage).toarray()
    assert (pull_back_of(stage) is None) is bool(why)
    assert column_rank(stage) == np.linalg.matrix_rank(dense)


def test_tied_filters_have_no_constraint() -> None:
    layer = nn.Conv2d(2, 6, 1)
    model = net(layer, nn.Flatten(), nn.Linear(150, 2))
    with torch.no_grad():
        layer.weight.copy_(layer.weight[:1].expand_as(layer.weight))
    assert pull_back_of(chain(model, 2, 5, 5).stages[0]) is None


def test_the_first_layer_has_none() -> None:
    assert pull_back_of(None) is None


@pytest.mark.parametrize("pulled", [True, False], ids=["eq7", "eq5"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_objectives_jacobian_against_finite_differences(name: str, pulled: bool) -> None:
    objective = objective_of(name, pulled)
    point = np.random.default_rng(2).normal(size=64 if pulled else 144)
    jacobian = objective.jacobian(point)
    dense = jacobian @ np.eye(len(point))
    step = 1e-6
    moves = step * np.eye(len(point))
    differences = np.stack(
        [
            (objective.residuals(point + m) - objective.residuals(point - m)) / (2 * step)
            for m in moves
        ],
        axis=1,
    )
    np.testing.assert_allclose(dense, differences, atol=1e-7)
    np.testing.assert_allclose(jacobian.T @ np.eye(len(dense)), dense.T, atol=1e-12)


def objective_of(name: str, pulled: bool) -> CombinedObjective:
    first, second, _ = chain(narrowing(ACTIVATIONS[name]), *SHAPE).stages
    z = first.linear(record(*SHAPE).flatten()) + first.offset
    x = first.activation.value(z)
    delta = torch.linspace(-1, 1, second.outputs, dtype=torch.float64)
    output = second.linear(x)
    weight_gradient = torch.zeros_like(second.weight)
    system = system_of(second, output, delta, weight_gradient)
    right = system.gradients @ x.numpy()
    system = system_of(second, output, delta, torch.from_numpy(right))
    matrix, values = system.balanced()
    return CombinedObjective(
        matrix, values, first.activation, pull_back_of(first) if pulled else None
    )


@pytest.mark.slow
@pytest.mark.parametrize("pulled", [True, False], ids=["eq7", "eq5"])
def test_a_search_ends_where_the_system_is_fulfilled(pulled: bool) -> None:
    objective = objective_of("tanh", pulled)
    found = minimise(objective, np.zeros(64 if pulled else 144), steps=30, inner=500)
    assert found.residual < 1e-9
    x = np.tanh(objective.z_of(found.z))
    np.testing.assert_allclose(objective.matrix @ x, objective.right, atol=1e-8)
    constrained = beside(constraint(narrowing(nn.Tanh())), objective.z_of(found.z))
    assert bool(np.abs(constrained).max() < 1e-9) is pulled
