"""Closed form, R-GAP and COPA through the interface of reconstruction attacks."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from attacks.layerwise.nets import ACTIVATIONS, gradient, narrowing, net, record, view, widening
from torch import Tensor, nn

from gradaudit.attacks.reconstruction import AttackerView, Candidates, reconstructions
from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.models.losses import BinaryCrossEntropy, MeanSquaredError
from gradaudit.sharing.protocol import LocalTraining

CHAINS = ("r-gap", "copa")
EVERY = (*CHAINS, "closed-form")


def run(name: str, seen: AttackerView, restarts: int = 1, **options: object) -> Candidates:
    attack: Any = reconstructions()[name]
    found: Candidates = attack(attack.Options(**options), restarts=restarts).run(seen, Execution())
    return found


def answer(found: Candidates) -> Tensor:
    assert found.answer is not None
    return found.inputs[found.answer]


def mse(found: Candidates, truth: Tensor) -> float:
    return float((answer(found) - truth).square().mean())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", CHAINS)
def test_full_rank_networks_are_rebuilt_exactly(name: str, activation: str) -> None:
    x = record(1, 8, 8)
    found = run(name, view(widening(ACTIVATIONS[activation]), x, torch.tensor([2])))
    assert mse(found, x) < 1e-16
    assert found.labels is not None
    assert found.labels.tolist() == [[2]]
    assert float(found.scores[0]) < 1e-16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "activation"), [("r-gap", "tanh"), ("copa", "leaky-relu"), ("r-gap", "sigmoid")]
)
def test_without_a_bias_the_scalar_equation_is_solved(name: str, activation: str) -> None:
    x = record(1, 8, 8)
    found = run(name, view(widening(ACTIVATIONS[activation], bias=False), x))
    assert mse(found, x) < 1e-12
    assert found.labels is not None
    assert found.labels.tolist() == [[1]]


@pytest.mark.parametrize("label", [0, 1])
def test_both_roots_of_a_binary_logit_are_tried(label: int) -> None:
    model = widening(nn.Tanh(), classes=1, bias=False)
    x = record(1, 8, 8)
    seen = view(model, x, torch.tensor([label]), loss=BinaryCrossEntropy(), known=True)
    found = run("r-gap", seen)
    right = float(model(x).detach()) * (2 * label - 1) > 0
    assert found.details["ends_tried"] == (2 if right else 1)  # the equation has one root if wrong
    assert mse(found, x) < 1e-12


@pytest.mark.parametrize("name", CHAINS)
def test_several_fully_connected_layers_and_real_targets(name: str) -> None:
    model = net(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 9, bias=False),
        nn.Sigmoid(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2),
    )  # fmt: skip
    x, y = record(1, 6, 6), torch.tensor([[0.3, -1.0]], dtype=torch.float64)
    found = run(name, view(model, x, y, loss=MeanSquaredError(), known=True))
    assert mse(found, x) < 1e-16


def test_large_systems_are_solved_by_lsmr_as_well() -> None:
    model = net(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 30 * 30, 3))
    x = record(1, 32, 32)
    found = run("r-gap", view(model, x))
    layers: Any = found.details["layers"]
    assert layers[-1]["iterations"] > 0
    assert mse(found, x) < 1e-16


@cache
def of_narrowing(restarts: int = 1) -> Candidates:
    return run("copa", view(narrowing(nn.Tanh()), record(1, 8, 8)), restarts=restarts)


@pytest.mark.slow
def test_copa_uses_what_the_layer_before_can_give_and_says_which_input_is_left_open() -> None:
    x = record(1, 8, 8)
    r_gap, copa = run("r-gap", view(narrowing(nn.Tanh()), x)), of_narrowing()
    assert copa.details["pull_back"] == ["2"]
    assert float(copa.scores[0]) < float(r_gap.scores[0])
    assert mse(copa, x) < mse(r_gap, x)
    layers: Any = copa.details["layers"]
    determined = {layer["layer"]: layer["determined"] for layer in layers}
    assert determined == {"4": True, "2": False, "0": True}


@pytest.mark.slow
def test_restarts_of_copa_start_elsewhere() -> None:
    found = of_narrowing(2)
    assert found.inputs.shape == (2, 1, 1, 8, 8)
    assert float((found.inputs[0] - found.inputs[1]).norm()) > 0.1
    torch.testing.assert_close(of_narrowing().inputs[0], found.inputs[0], rtol=0, atol=0)


def test_restarts_of_a_determined_network_are_one() -> None:
    found = run("copa", view(widening(nn.Tanh()), record(1, 8, 8)), restarts=3)
    layers: Any = found.details["layers"]
    assert [layer["determined"] for layer in layers] == [True, True, True]
    assert torch.equal(found.inputs[0], found.inputs[2])
    assert len(found.scores) == 3


@pytest.mark.slow
def test_copa_denoises_on_demand() -> None:
    seen = view(widening(nn.Tanh()), record(1, 8, 8))
    smooth, rough = run("copa", seen, denoise=0.15), run("copa", seen)
    assert float(answer(smooth).diff().abs().sum()) < float(answer(rough).diff().abs().sum())


@pytest.mark.parametrize("name", CHAINS)
def test_answers_are_kept_in_the_known_range(name: str) -> None:
    seen = replace(view(narrowing(nn.LeakyReLU(0.1)), record(1, 8, 8)), bounds=(0.4, 0.6))
    free, kept = run(name, seen, box=False), run(name, seen)
    assert float(free.inputs.min()) < 0.4
    torch.testing.assert_close(kept.inputs, free.inputs.clamp(0.4, 0.6))


@pytest.mark.parametrize("noise", [1e-8, 1e-5])
@pytest.mark.parametrize("name", CHAINS)
def test_a_little_noise_makes_a_little_error(name: str, noise: float) -> None:
    x = record(1, 8, 8)
    seen = view(widening(nn.Tanh()), x)
    generator = torch.Generator().manual_seed(5)
    noisy = {
        n: g + noise * torch.randn(g.shape, generator=generator, dtype=torch.float64)
        for n, g in seen.update.items()
    }
    assert mse(run(name, replace(seen, update=noisy)), x) < (1e5 * noise) ** 2


def linear_first() -> nn.Sequential:
    return net(nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), nn.Linear(7, 3))


def test_closed_form_of_a_first_layer_is_exact() -> None:
    x = record(1, 6, 6)
    found = run("closed-form", view(linear_first(), x))
    assert found.answer == 0
    assert mse(found, x) < 1e-28
    assert float((found.inputs[1] - x).abs().max()) < 1e-12
    assert (found.details["layer"], found.details["recovers"]) == ("1", "the record")


def test_closed_form_of_a_later_layer_inverts_the_layers_before() -> None:
    x = record(1, 6, 6)
    model = net(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    found = run("closed-form", view(model, x))
    assert found.details["condition_1"] is True
    assert "the layer's input" in str(found.details["recovers"])
    assert mse(found, x) < 1e-16


def test_closed_form_says_where_condition_1_does_not_hold() -> None:
    x = record(1, 6, 6)
    model = net(nn.Conv2d(1, 1, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    found = run("closed-form", view(model, x))
    assert found.details["condition_1"] is False
    assert "is not determined" in str(found.details["recovers"])
    assert mse(found, x) > 1e-3
    assert float(found.scores[0]) < 1e-16


def test_closed_form_says_that_its_search_was_cut_short() -> None:
    x = record(1, 6, 6)
    seen = view(net(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)), x)
    found = run("closed-form", seen, search_work=0.1)
    assert "0.1 billion operations" in str(found.details["cut_short"])
    assert mse(found, x) > 1e-16
    assert float(found.scores[0]) > 1e-12  # the score is the record's, not the layer input's
    assert "cut_short" not in run("closed-form", seen).details


def test_closed_form_costs_what_its_search_may() -> None:
    x = record(1, 6, 6)
    later = net(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    attack: Any = reconstructions()["closed-form"]
    few, many = (attack(attack.Options(search_work=work)) for work in (0.1, 0.2))
    model = view(later, x).model
    assert many.calls_on(model, x) == pytest.approx(2 * few.calls_on(model, x))
    assert few.calls_on(view(linear_first(), x).model, x) == 1


def test_closed_form_takes_the_layer_that_is_named() -> None:
    x = record(36)
    model = net(nn.Linear(36, 40), nn.Tanh(), nn.Linear(40, 3))
    found = run("closed-form", view(model, x), layer="2")
    assert found.details["layer"] == "2"
    assert mse(found, x) < 1e-16


def test_closed_form_under_noise_takes_all_rows() -> None:
    x = record(1, 6, 6)
    seen = view(net(nn.Flatten(), nn.Linear(36, 64), nn.Sigmoid(), nn.Linear(64, 3)), x)
    generator = torch.Generator().manual_seed(1)
    sigma = float(seen.update["1.bias"].norm()) / 8 / 30
    noisy = {
        n: g + sigma * torch.randn(g.shape, generator=generator, dtype=torch.float64)
        for n, g in seen.update.items()
    }
    found = run("closed-form", replace(seen, update=noisy))
    squares, row = ((found.inputs - x).square().flatten(1).mean(dim=1)).tolist()
    assert found.answer == 0
    assert squares < row / 2
    sizes = noisy["1.bias"].abs()
    assert found.details["kappa"] == pytest.approx(float(sizes.max() / sizes.min()))
    unkept = run("closed-form", replace(seen, update=noisy), box=False)
    torch.testing.assert_close(found.inputs, unkept.inputs.clamp(0, 1))
    expected = torch.linalg.lstsq(noisy["1.bias"][:, None], noisy["1.weight"]).solution
    torch.testing.assert_close(unkept.inputs[0].flatten(), expected[0])


@pytest.mark.parametrize("name", EVERY)
def test_batches_are_refused(name: str) -> None:
    pair = torch.cat([record(1, 8, 8), record(1, 8, 8, seed=4)])
    with pytest.raises(NotApplicable, match="single record"):
        run(name, view(widening(nn.Tanh()), pair))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_local_training_is_refused(name: str) -> None:
    seen = view(widening(nn.Tanh()), record(1, 8, 8))
    with pytest.raises(NotApplicable, match="several local steps"):
        run(name, replace(seen, training=LocalTraining(epochs=2)))
    one_step = replace(seen, training=LocalTraining(epochs=1))
    assert bool(run(name, one_step).inputs.isfinite().all())


@pytest.mark.parametrize("name", EVERY)
def test_an_update_that_is_not_finite_is_named(name: str) -> None:
    seen = view(widening(nn.Tanh()), record(1, 8, 8))
    broken = {n: g * torch.nan for n, g in seen.update.items()}
    with pytest.raises(AuditError, match="not finite"):
        run(name, replace(seen, update=broken))


@pytest.mark.parametrize("name", CHAINS)
def test_hidden_layers_are_named(name: str) -> None:
    seen = view(widening(nn.Tanh()), record(1, 8, 8))
    with pytest.raises(NotApplicable, match="update of 2 was not shared"):
        run(name, replace(seen, update={n: g for n, g in seen.update.items() if n != "2.weight"}))
    with pytest.raises(NotApplicable, match="bias was not shared"):
        run(name, replace(seen, update={n: g for n, g in seen.update.items() if n != "5.bias"}))


@pytest.mark.parametrize("name", CHAINS)
def test_an_unknown_real_target_is_refused(name: str) -> None:
    model = net(nn.Linear(4, 2))
    target = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(NotApplicable, match="--known-labels"):
        run(name, view(model, record(4), target, loss=MeanSquaredError()))


@pytest.mark.parametrize("name", CHAINS)
def test_pooling_is_refused(name: str) -> None:
    model = net(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    with pytest.raises(NotApplicable, match=f"{name} needs a chain .* pooling"):
        run(name, view(model, record(1, 8, 8)))


def test_denoising_of_tables_is_refused() -> None:
    with pytest.raises(NotApplicable, match="denois"):
        run("copa", view(net(nn.Linear(4, 2)), record(4)), denoise=0.15)


@pytest.mark.parametrize(
    ("model", "shape", "word"),
    [
        (net(nn.Linear(4, 2, bias=False)), (4,), "has no bias"),
        (net(nn.Linear(4, 2), nn.Flatten()), (3, 4), "3 vectors"),
        (net(nn.Conv2d(1, 3, 2), nn.Flatten()), (1, 2, 2), "has none"),
    ],
)
def test_closed_form_says_why_no_layer_can_be_used(
    model: nn.Module, shape: tuple[int, ...], word: str
) -> None:
    with pytest.raises(NotApplicable, match=word):
        run("closed-form", view(model, record(*shape)))


def test_closed_form_of_a_layer_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="layer=conv"):
        run("closed-form", view(linear_first(), record(1, 6, 6)), layer="conv")


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_the_view_is_left_as_it_was(name: str) -> None:
    seen = view(widening(nn.Tanh()), record(1, 8, 8))
    before = {n: g.clone() for n, g in seen.update.items()}
    run(name, seen)
    assert all(torch.equal(before[n], g) for n, g in seen.update.items())
    again = gradient(seen.model, record(1, 8, 8), torch.tensor([1]))
    assert all(torch.equal(before[n], g) for n, g in again.items())
