"""Activations against plain hooks on a copy of the model; bounds by closed forms and coverage."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradaudit.audits.forward.measure import (
    LOWER,
    UPPER,
    Activations,
    Bound,
    Pairs,
    activation_information,
)
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from tests.cases import CASES, Case
from tests.coverage import assert_covers

Array = NDArray[np.float64]


def activations_of(target: Target, inputs: Tensor, labels: Tensor, **sizes: int) -> Activations:
    memory = sizes.get("memory", 1 << 30)
    return Activations.of(target, target.layers, inputs, labels, memory)


def stacked(found: Activations, names: Sequence[str]) -> dict[str, Tensor]:
    chunks = list(found.stream(names))
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in names}


def hooked(model: nn.Module, inputs: Tensor, name: str) -> Tensor:
    """Outputs of a module, record by record, by a hook on a copy."""
    model = copy.deepcopy(model)
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output).detach().flatten())

    model.get_submodule(name).register_forward_hook(keep)
    rows = []
    for record in inputs:
        kept.clear()
        model(record[None])
        rows.append(torch.cat(kept))
    return torch.stack(rows)


CALLED = [case for case in CASES if case.id not in ("unused-and-frozen", "own-parameters")]


@pytest.mark.parametrize("case", CALLED, ids=str)
def test_outputs_of_every_module(case: Case) -> None:
    target = case.target()
    found = activations_of(target, case.inputs, case.labels)
    names = [layer.name for layer in target.layers]
    assert list(found.widths) == names
    for name, values in stacked(found, names).items():
        if name in ("attention.out_proj", "0.self_attn.out_proj"):
            continue
        expected = hooked(case.make_model(), case.inputs, name)
        torch.testing.assert_close(values, expected)
        assert values.shape == (len(case.inputs), found.widths[name])


def test_a_projection_of_attention_that_is_never_called() -> None:
    (case,) = [case for case in CASES if case.id == "attention"]
    found = activations_of(case.target(), case.inputs, case.labels)
    values = stacked(found, ["attention", "attention.out_proj"])
    torch.testing.assert_close(values["attention.out_proj"], values["attention"])


def test_a_module_used_twice_gives_both_outputs() -> None:
    (case,) = [case for case in CASES if case.id == "reused-module"]
    found = activations_of(case.target(), case.inputs, case.labels)
    step = case.make_model().get_submodule("step")
    first = step(case.inputs)
    both = torch.cat([first, step(first.tanh())], dim=1)
    torch.testing.assert_close(stacked(found, ["step"])["step"], both)


def test_parameters_of_the_model_itself_give_what_it_gives() -> None:
    (case,) = [case for case in CASES if case.id == "own-parameters"]
    found = activations_of(case.target(), case.inputs, case.labels)
    values = stacked(found, ["(model)"])["(model)"]
    torch.testing.assert_close(values, case.make_model()(case.inputs))


def test_a_layer_that_never_runs_has_none() -> None:
    (case,) = [case for case in CASES if case.id == "unused-and-frozen"]
    found = activations_of(case.target(), case.inputs, case.labels)
    assert list(found.widths) == ["head"]


class TimeFirst(nn.Module):
    """A layer that sees (time, records, features), with as many steps as records in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.transpose(0, 1)).tanh()
        return self.head(x.transpose(0, 1).flatten(1))  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """A layer whose output is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).zero_()  # type: ignore[no-any-return]


def test_records_that_are_not_first_are_run_one_by_one() -> None:
    model = TimeFirst().double()
    inputs = torch.randn(5, 2, 2, dtype=torch.float64)
    found = activations_of(Target(model, CrossEntropy()), inputs, torch.zeros(5, dtype=torch.int64))
    assert found.chunk == 1
    torch.testing.assert_close(stacked(found, ["fc"])["fc"], hooked(model, inputs, "fc"))


def test_outputs_are_kept_before_they_are_overwritten() -> None:
    model = InPlace().double()
    inputs = torch.randn(4, 2, dtype=torch.float64)
    found = activations_of(Target(model, CrossEntropy()), inputs, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(
        stacked(found, ["fc"])["fc"],
        model.fc(inputs).detach() * 0
        + (inputs @ model.fc.weight.detach().T + model.fc.bias.detach()),
    )


def test_chunks_change_nothing() -> None:
    (case,) = [case for case in CASES if case.id == "conv-pooled"]
    inputs, labels = case.inputs.repeat(5, 1, 1, 1), case.labels.repeat(5)
    whole = activations_of(case.target(), inputs, labels)
    little = activations_of(case.target(), inputs, labels, memory=1)
    assert whole.chunk > 15
    assert little.chunk == 1
    names = list(whole.widths)
    for name, values in stacked(little, names).items():
        torch.testing.assert_close(values, stacked(whole, names)[name])


def test_the_model_is_left_as_it_was() -> None:
    (case,) = [case for case in CASES if case.id == "residual"]
    target = case.target()
    before = copy.deepcopy(target.model.state_dict())
    target.model.train()
    found = activations_of(target, case.inputs, case.labels)
    list(found.stream(list(found.widths)))
    assert all(part.training for part in target.model.modules())
    assert not any(part._forward_hooks for part in target.model.modules())
    for name, tensor in target.model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(nn.BatchNorm1d(4), "batch's statistics"), (nn.Dropout(0.5), "drawn at random")],
    ids=["batch norm", "dropout"],
)
def test_training_mode_gives_no_activations_of_one_record(layer: nn.Module, reason: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))
    target = Target(model, CrossEntropy(), mode="train")
    with pytest.raises(NotApplicable, match=f"{reason}.*--mode eval"):
        activations_of(target, torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))


class Ragged(nn.Module):
    """A layer that is used as often as a record says."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int(x.max() > 5)):
            x = self.step(x)
        return x


def test_numbers_of_activations_that_differ_are_refused() -> None:
    inputs = torch.tensor([[0.0, 1], [1, 0], [9, 0], [1, 1]])
    target = Target(Ragged(), CrossEntropy())
    found = activations_of(target, inputs, torch.zeros(4, dtype=torch.int64), memory=1)
    with pytest.raises(AuditError, match="step gives other numbers of activations"):
        list(found.stream(["step"]))


def test_parametrised_weights_are_no_activations() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    target = Target(model, CrossEntropy())
    found = activations_of(target, torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))
    assert set(found.widths) <= {layer.name for layer in layers_of(model)}
    assert "0.parametrizations.weight" not in found.widths


def pairs(points: Array, *ends: int) -> Array:
    found = Pairs(len(points))
    for block in np.split(points, ends, axis=1):
        found.add(block)
    return found.squared_distances()


def looped(points: Array, sigma2: float, alpha: float) -> float:
    """The equation as it is printed, with its exponential."""
    total = 0.0
    for t in points:
        inner = sum(math.exp(-sum((t - u) ** 2) / (2 * alpha * sigma2)) for u in points)
        total -= math.log2(inner / len(points))
    return total / len(points)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
@pytest.mark.parametrize("sigma2", [0.01, 0.1, 3.0])
def test_the_equation_by_a_plain_loop(sigma2: float, alpha: float) -> None:
    points = np.random.default_rng(0).normal(size=(23, 5))
    found = activation_information(pairs(points), sigma2, alpha)
    assert found.bits == pytest.approx(looped(points, sigma2, alpha), rel=1e-12)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
def test_without_a_record_it_is_the_equation_of_the_others(alpha: float) -> None:
    points = np.random.default_rng(1).normal(size=(9, 2)) / 3
    found = activation_information(pairs(points), 0.1, alpha)
    expected = [looped(np.delete(points, i, axis=0), 0.1, alpha) for i in range(9)]
    np.testing.assert_allclose(found.without, expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [UPPER, LOWER])
@pytest.mark.parametrize(
    ("points", "bits"),
    [
        (np.full((8, 3), 1e6), 0.0),
        (1e4 * np.eye(16), 4.0),
        (np.repeat([[0.0], [500.0]], 10, axis=0), 1.0),
        (np.repeat([[0.0], [500.0], [1000.0], [-500.0]], [1, 1, 2, 4], axis=0), 1.75),
    ],
    ids=["one point", "far apart", "two clusters", "unequal clusters"],
)
def test_closed_forms(points: Array, bits: float, alpha: float) -> None:
    found = activation_information(pairs(points), 0.1, alpha)
    assert found.bits == pytest.approx(bits, abs=1e-12)
    low, high = found.interval
    assert 0 <= low <= found.bits <= high <= math.log2(len(points))


def test_the_lower_bound_lies_below_the_upper_one() -> None:
    generator = np.random.default_rng(2)
    for spread in (0.01, 0.1, 1, 10):
        distances = pairs(spread * generator.normal(size=(40, 3)))
        upper, lower = (
            activation_information(distances, 0.1, alpha).bits for alpha in (UPPER, LOWER)
        )
        assert 0 < lower <= upper <= math.log2(40)
        assert lower < upper or spread == 10  # where all points lie far apart, both are log2 N


def test_the_truth_lies_between_the_bounds() -> None:
    """Information of a mixture of two Gaussians, by integration."""
    sigma2, gap = 0.1, 0.9
    points = np.array([[0.0], [gap]])
    x = np.linspace(-4, 5, 200_001)
    parts = np.exp(-((x - points) ** 2) / (2 * sigma2)) / math.sqrt(2 * math.pi * sigma2)
    mixture = parts.mean(axis=0)
    entropy = -np.trapezoid(mixture * np.log2(mixture), x)
    truth = entropy - 0.5 * math.log2(2 * math.pi * math.e * sigma2)
    upper, lower = (
        activation_information(pairs(points), sigma2, alpha).bits for alpha in (UPPER, LOWER)
    )
    assert lower < truth < upper


def test_more_noise_hides_more() -> None:
    distances = pairs(np.random.default_rng(3).normal(size=(30, 4)))
    found = [
        activation_information(distances, sigma2, UPPER).bits for sigma2 in (0.01, 0.1, 1, 10, 100)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def test_blocks_of_rows_and_of_elements_change_nothing() -> None:
    points = np.random.default_rng(4).normal(size=(31, 7)) / 2
    whole = activation_information(pairs(points), 0.1, UPPER)
    some = activation_information(pairs(points, 1, 4, 6), 0.1, UPPER, memory=3 * 8 * 3 * 31)
    assert some.bits == pytest.approx(whole.bits, rel=1e-13)
    np.testing.assert_allclose(some.without, whole.without, rtol=1e-13)


def test_what_all_points_share_rounds_nothing_away() -> None:
    points = np.random.default_rng(5).normal(size=(20, 3)) / 3
    far = activation_information(pairs(points + 1e7), 0.1, UPPER).bits
    assert far == pytest.approx(activation_information(pairs(points), 0.1, UPPER).bits, rel=1e-6)


def gaussian_bits(dimensions: int, spread2: float, sigma2: float, alpha: float) -> float:
    """−E_t log2 E_u exp(−‖t − u‖²/(2w)) for t, u ~ N(0, s² I), w = ασ².

    The inner mean is (w/(w + s²))^(d/2) exp(−‖t‖²/(2(w + s²))), and E‖t‖² = d s².
    """
    width = alpha * sigma2
    total = width + spread2
    nats = dimensions / 2 * (math.log(total / width) + spread2 / total)
    return nats / math.log(2)


@pytest.mark.parametrize(("dimensions", "sigma2"), [(1, 0.1), (4, 0.3)], ids=["dense", "sparse"])
def test_intervals_cover_what_other_records_give_on_average(dimensions: int, sigma2: float) -> None:
    generator = np.random.default_rng(7)
    found = [
        activation_information(pairs(generator.normal(size=(60, dimensions))), sigma2, UPPER)
        for _ in range(600)
    ]
    truth = float(np.mean([each.bits for each in found]))
    intervals = [each.interval for each in found[:300]]
    assert_covers(intervals, truth, 0.95)
    assert np.mean([high - low for low, high in intervals]) < 0.8


@pytest.mark.slow
def test_intervals_cover_the_integral_where_records_are_many_enough() -> None:
    generator = np.random.default_rng(8)
    found = [
        activation_information(pairs(generator.normal(size=(200, 1))), 0.5, UPPER)
        for _ in range(300)
    ]
    assert_covers([each.interval for each in found], gaussian_bits(1, 1.0, 0.5, UPPER), 0.93)


def test_an_interval_holds_its_bound() -> None:
    assert Bound(2.0, np.full(4, math.log2(3))).interval == (2.0, 2.0)
