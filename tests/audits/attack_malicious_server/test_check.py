"""The check of a model: what is sensed against a plain loop, honest models and malicious ones."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from subjects import seeded
from torch import Tensor, nn

from benchmarks.coverage.malicious_server import (
    Imprint,
    bin_rows,
    fish_for_class,
    fish_for_feature,
    inputs_of,
    trap_rows,
)
from gradaudit.audits.attack_malicious_server.check import LIMITS, check
from gradaudit.audits.attack_malicious_server.sensing import gradients_of_records
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.federation.federated_training import train_rounds
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import Target
from tests.cases import CASES, Case

MEMORY = 1 << 28


def digits(count: int = 128) -> Records:
    return load_records("digits").take(np.arange(count))


def net(seed: int = 0) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 10))


def convolutional(seed: int = 0) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(96, 40), nn.ReLU(), nn.Linear(40, 10)),
        )


class Lines(nn.Module):
    """The lines of a picture as tokens, a feed-forward pair beside them, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Linear(8, 16), nn.Linear(16, 48)
        self.down, self.head = nn.Linear(48, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(records, classes)."""
        lines = self.embed(x[:, 0])
        output: Tensor = self.head((lines + self.down(torch.relu(self.up(lines)))).mean(dim=1))
        return output


def lines(seed: int = 0) -> nn.Module:
    with seeded(seed):
        return Lines()


MODELS = {"net": (net, "1"), "convolutional": (convolutional, "4"), "lines": (lines, "up")}


def linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


def last(model: nn.Module) -> nn.Linear:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]


def scores(model: nn.Module, records: Records) -> dict[str, float]:
    found = check(Target(model, CrossEntropy()), records)
    return {name: signs.score for name, signs in found.items() if signs.score is not None}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_norms_and_residuals_are_those_of_a_plain_loop(case: Case) -> None:
    target = case.target()
    try:
        senses = gradients_of_records(
            target, Records(case.inputs, case.labels), target.layers, MEMORY
        )
    except NotApplicable:
        return
    model, loss = copy.deepcopy(target.model), target.loss
    for index in range(len(case.inputs)):
        model.zero_grad()
        outputs = model(case.inputs[index : index + 1])
        outputs.retain_grad()
        loss.per_record(outputs, case.labels[index : index + 1]).sum().backward()
        assert senses.residuals[index] == pytest.approx(float(outputs.grad.norm()), rel=1e-4)
        for layer in target.layers:
            parts = [model.get_parameter(name).grad for name in layer.parameter_names]
            whole = torch.cat([p.flatten() for p in parts if p is not None] or [torch.zeros(1)])
            sensed = senses.layers[layer.name]
            assert float(sensed.norms[index]) == pytest.approx(
                float(whole.norm()), rel=1e-3, abs=1e-6
            )
            if sensed.rows is not None:
                assert float(sensed.rows[index].norm()) == pytest.approx(
                    float(whole.norm()), rel=1e-3, abs=1e-6
                )


def test_a_row_is_active_where_its_unit_is() -> None:
    model, records = net(), digits(40)
    target = Target(model, CrossEntropy())
    senses = gradients_of_records(target, records, target.layers, MEMORY)
    found = senses.layers["1"].linear
    assert found is not None
    assert senses.last == "3"
    assert torch.equal(found.active, model[1](records.inputs.flatten(1)) > 0)


@pytest.mark.parametrize(("positions", "form"), [((), torch.ravel), ((4,), torch.adjoint)])
def test_the_last_layer_is_known_whatever_the_outputs_shape(
    positions: tuple[int, ...], form: Callable[[Tensor], Tensor]
) -> None:
    class Shaped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.head = nn.Linear(6, 5), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            """(records,), or (records, 1, positions)."""
            return form(self.head(torch.relu(self.below(x))))

    inputs = torch.randn(40, *positions, 6, generator=torch.Generator().manual_seed(0))
    labels = inputs[..., 0].sign()
    target = Target(Shaped(), MeanSquaredError())
    senses = gradients_of_records(target, Records(inputs, labels), target.layers, MEMORY)
    assert senses.last == "head"
    slope = 2 * (target.model(inputs).reshape(labels.shape) - labels) / labels[0].numel()
    expected = slope.detach().reshape(40, -1).norm(dim=1).double()
    torch.testing.assert_close(senses.residuals, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_alarm_on_honest_rounds_and_an_alarm_on_each_attack(name: str) -> None:
    """From fresh to learnt by heart, batches of four; both attacks on the first and the last."""
    build, inner = MODELS[name]
    records, model = digits(64), build()
    options = TrainingOptions(clients=2, rounds=8, rate=0.2, batch_size=4, epochs=2)
    history = []
    for reached in train_rounds(Target(model, CrossEntropy()), records, options, scored=False):
        now = copy.deepcopy(model)
        now.load_state_dict(reached.state)
        if reached.number in (0, 8):
            attacked(now, inner, records)
        if reached.number % 4 == 0:
            found = check(Target(now, CrossEntropy()), records, history[-2:])
            assert all(signs.score is None or signs.score < 0.8 for signs in found.values())
            assert all(signs.movement is None or signs.movement < 8 for signs in found.values())
        history.append(reached.state)


def attacked(model: nn.Module, inner: str, records: Records) -> None:
    """Every attack is flagged, at the layer where it is."""
    imprinted = nn.Sequential(Imprint(records.inputs, 64), model)
    assert scores(imprinted, records)["0.bins"] > 2
    seen = inputs_of(model, linear(model, inner), records.inputs)
    changed = copy.deepcopy(model)
    bin_rows(linear(changed, inner), seen)
    assert scores(changed, records)[inner] > 2
    changed, wanted = copy.deepcopy(model), int(records.labels[0])
    fish_for_class(last(changed), wanted)
    assert max(scores(changed, records).values()) > 2.5
    changed = copy.deepcopy(model)
    of_class = records.inputs[records.labels == wanted]
    fish_for_feature(last(changed), wanted, inputs_of(model, last(model), of_class))
    assert max(scores(changed, records).values()) > 1.4


@pytest.mark.parametrize("sharpness", [1.0, 300.0, 600.0, 1000.0])
def test_a_model_that_is_very_sure_of_all_records_starves_none(sharpness: float) -> None:
    """Of residuals down to 1e-30 the squares leave the range of single precision."""
    model, records = net(), digits()
    with torch.no_grad():
        labels = model(records.inputs).argmax(dim=1)
        linear(model, "3").weight.mul_(sharpness)
        linear(model, "3").bias.mul_(sharpness)
    found = check(Target(model, CrossEntropy()), Records(records.inputs, labels))
    assert all(signs.starved in (None, 0.0) for signs in found.values()), found


def test_trap_weights_and_replaced_layers_are_told() -> None:
    model, records = net(), digits()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trap_rows(linear(model, "1"), 0.5, torch.Generator().manual_seed(0))
    signs = check(Target(model, CrossEntropy()), records, [before])["1"]
    assert signs.strongest == "traps"
    assert signs.traps is not None
    assert signs.traps > LIMITS["traps"]
    assert signs.movement is not None
    assert signs.movement > 8


def test_too_few_records_and_coupled_ones_are_refused() -> None:
    target = Target(net(), CrossEntropy())
    with pytest.raises(NotApplicable, match="31 records: of fewer than 32"):
        check(target, digits(31))
    coupled = Target(nn.Sequential(nn.BatchNorm2d(1), net()), CrossEntropy(), mode="train")
    with pytest.raises(NotApplicable, match="--mode eval"):
        check(coupled, digits())
