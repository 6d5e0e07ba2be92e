"""Activations against plain hooks on a copy of the model, and what they leave unchanged."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.information.activations import Activations
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from tests.cases import CASES, Case


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
