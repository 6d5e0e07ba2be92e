import numpy as np
import pytest
import torch
from attacks.layerwise.nets import chain, functional, gradient, net, record
from scipy.sparse import csr_array
from torch import Tensor, nn

from gradaudit.attacks.layerwise import systems
from gradaudit.attacks.layerwise.layer_chain import Stage
from gradaudit.attacks.layerwise.systems import (
    gradients_matrix,
    solve,
    system_of,
    weights_matrix,
)
from gradaudit.attacks.reconstruction.copa import determines
from gradaudit.errors import NotApplicable

LAYERS = {
    "plain": (nn.Conv2d(2, 3, 3), (2, 6, 6)),
    "strided": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 6, 5)),
    "grouped": (nn.Conv2d(4, 6, 2, groups=2), (4, 4, 4)),
    "depthwise": (nn.Conv2d(3, 6, 3, groups=3, padding=2), (3, 4, 4)),
    "dilated": (nn.Conv2d(2, 2, 2, dilation=2), (2, 5, 5)),
    "1-D": (nn.Conv1d(2, 3, 3, padding=1), (2, 6)),
    "3-D": (nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
}


def stage_of(name: str) -> Stage:
    layer, shape = LAYERS[name]
    outputs = layer.double()(record(*shape)).numel()
    return chain(net(layer, nn.Flatten(), nn.Linear(outputs, 2)), *shape).stages[0]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_the_weights_matrix_is_the_convolution(name: str) -> None:
    stage = stage_of(name)
    x, z = normal(stage.inputs), normal(stage.outputs)
    matrix = weights_matrix(stage)
    np.testing.assert_allclose(matrix @ x.numpy(), stage.linear(x), atol=1e-12)
    np.testing.assert_allclose(matrix.T @ z.numpy(), stage.transposed(z), atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradients_matrix_maps_an_input_to_the_weight_gradient(name: str) -> None:
    stage = stage_of(name)
    x, delta = normal(stage.inputs), normal(stage.outputs)
    weight = stage.weight.clone().requires_grad_()
    layer, shape = LAYERS[name]
    outputs = torch.func.functional_call(
        layer,
        {"weight": weight, "bias": torch.zeros(len(weight)).double()},
        (x.reshape(1, *shape),),
    )
    (expected,) = torch.autograd.grad((outputs.flatten() * delta).sum(), weight)
    found = gradients_matrix(stage, delta) @ x.numpy()
    np.testing.assert_allclose(found, expected.flatten(), atol=1e-12)


def test_a_network_fulfils_its_own_systems() -> None:
    model = net(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))
    x = record(1, 5, 5)
    update = gradient(functional(model), x, torch.tensor([1]))
    first, last = chain(model, 1, 5, 5).stages
    z = first.linear(x.flatten()) + first.offset
    delta = last.transposed(update["3.bias"]) * first.activation.slope(z)
    matrix, right = system_of(first, z - first.offset, delta, update["0.weight"]).balanced()
    np.testing.assert_allclose(matrix @ x.flatten().numpy(), right, atol=1e-12)


def problem(rows: int, columns: int) -> tuple[csr_array, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    matrix = csr_array(rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5))
    return matrix, rng.normal(size=rows), rng.normal(size=columns)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)], ids=["tall", "wide"])
@pytest.mark.parametrize("started", [False, True])
def test_lsmr_agrees_with_the_dense_solution(shape: tuple[int, int], started: bool) -> None:
    matrix, right, start = problem(*shape)
    begin = start if started else None
    dense = solve(matrix, right, begin, dense=True)
    sparse = solve(matrix, right, begin, dense=False)
    np.testing.assert_allclose(sparse.x, dense.x, atol=1e-9)
    assert sparse.residual == pytest.approx(dense.residual, abs=1e-9)
    assert dense.iterations == 0 < sparse.iterations


def test_of_several_solutions_the_closest_to_the_start_is_taken() -> None:
    matrix, right, start = problem(40, 60)
    found = solve(matrix, right, start).x
    expected = start + np.linalg.pinv(matrix.toarray()) @ (right - matrix @ start)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_balancing_does_not_change_the_solution_of_a_system_that_has_one() -> None:
    matrix, _, x = problem(60, 40)
    parts = systems.System(
        csr_array(matrix[:50]),
        csr_array(1e-6 * matrix[50:]),
        matrix[:50] @ x,
        1e-6 * (matrix[50:] @ x),
    )
    balanced, right = parts.balanced()
    np.testing.assert_allclose(solve(balanced, right).x, x, atol=1e-9)
    lengths = np.sqrt(balanced.power(2).sum(axis=1))
    assert np.mean(lengths[50:] ** 2) == pytest.approx(1) == np.mean(lengths[:50] ** 2)


def test_a_system_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "MOST_ENTRIES", 100)
    with pytest.raises(NotApplicable, match="entries"):
        weights_matrix(stage_of("plain"))


def test_a_rough_solution_takes_fewer_iterations_and_has_half_of_the_digits() -> None:
    matrix = csr_array(normal(30, 20).numpy())
    x = normal(20).numpy()
    fine, rough = (solve(matrix, matrix @ x, dense=False, rough=it) for it in (False, True))
    assert rough.iterations < fine.iterations
    np.testing.assert_allclose(fine.x, x, rtol=1e-10)
    np.testing.assert_allclose(rough.x, x, rtol=1e-6)


@pytest.mark.parametrize(("rows", "spread"), [(30, 1.0), (30, 1e5), (12, 1.0)])
def test_one_solution_is_told_from_several(
    rows: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "DENSE_ELEMENTS", 0)
    scales = torch.logspace(0, -np.log10(spread), 20, dtype=torch.float64)
    matrix = csr_array((normal(rows, 20) * scales).numpy())
    right = matrix @ normal(20).numpy()
    found = solve(matrix, right, 10 * np.ones(20)).x
    assert determines(matrix, right, found) == (rows >= 20)
