"""The functional view computes what the model computes, and leaves the model as it was."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from gradaudit.data.common.packing import InputPart
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.outputs import unwrap
from gradaudit.models.target import Mode, Target


def convolutional(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), *extra, nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def view_of(model: nn.Module, mode: Mode = "eval") -> FunctionalModel:
    return FunctionalModel.of(Target(model, CrossEntropy(), mode=mode))


def pictures(n: int = 5) -> Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_outputs_are_the_models_own_in_float64(mode: Mode) -> None:
    model = convolutional()
    own = copy.deepcopy(model).double().train(mode == "train")
    torch.testing.assert_close(
        view_of(model, mode).outputs({}, pictures()), own(pictures()), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_model_is_exactly_as_before(mode: Mode) -> None:
    model = convolutional(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Dropout())
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[6].weight.grad = torch.ones_like(model[6].weight)
    model[0].register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [part.training for part in model.modules()]
    objects = {name: id(value) for name, value in model.named_parameters()}
    generator_before = torch.get_rng_state()

    view = view_of(model, mode)
    view.check(pictures(), torch.zeros(5, dtype=torch.long))
    view.stochastic(pictures())
    view.coupling(pictures())
    torch.func.grad(lambda p: view.losses(p, pictures(), torch.ones(5).long()).sum())(
        view.parameters
    )

    assert [part.training for part in model.modules()] == flags
    assert {name: id(value) for name, value in model.named_parameters()} == objects
    assert set(model.state_dict()) == set(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[6].weight.grad, torch.ones_like(model[6].weight))
    assert model[0].weight.grad is None
    assert not model[0].weight.requires_grad
    assert len(model[0]._forward_hooks) == 1
    assert torch.equal(torch.get_rng_state(), generator_before)
    assert torch.get_default_dtype() == torch.float32


def test_the_flags_come_back_when_the_model_fails() -> None:
    model = convolutional()
    with pytest.raises(AuditError, match=r"inputs of shape \(2, 5\)"):
        view_of(model).check(torch.zeros(2, 5).double(), torch.zeros(2).long())
    assert all(part.training for part in model.modules())
    assert torch.get_default_dtype() == torch.float32


def test_each_of_several_inputs_is_named_where_the_model_cannot_be_run() -> None:
    parts = (InputPart("pixels", (2, 3)), InputPart("code", (), "tokens"))
    view = replace(view_of(convolutional()), parts=parts)
    named = r"run on inputs pixels of shape \(1, 2, 3\) \(torch.float64\), code of shape \(1,\)"
    with pytest.raises(AuditError, match=named):
        view.check(torch.zeros(1, 7).double(), torch.zeros(1).long())


def test_a_record_that_its_batch_normalises_cannot_be_alone() -> None:
    view = view_of(convolutional(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3)), "train")
    with pytest.raises(NotApplicable, match=r"1 normalises by .*, and alone a record fails: Expe"):
        view.check(pictures(1), torch.zeros(1).long())
    with pytest.raises(AuditError, match="cannot be run on inputs of shape"):
        view.check(pictures(2), torch.zeros(2).long())


def test_frozen_parameters_are_constants() -> None:
    model = convolutional()
    model[0].weight.requires_grad_(False)
    view = view_of(model)
    assert "0.weight" in view.constants
    assert "0.weight" not in view.parameters
    assert view.constants["1.num_batches_tracked"].dtype == torch.long


def test_parameters_override_and_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    view = view_of(model)
    twice = 2 * torch.eye(3).double()
    x = torch.ones(1, 3).double()
    torch.testing.assert_close(view.outputs({"0.weight": twice}, x), 4 * x)


def test_dropout_draws_the_same_masks_in_every_call() -> None:
    view = view_of(convolutional(nn.Dropout(0.5)), "train")
    first = view.outputs({}, pictures())
    torch.rand(7)
    assert torch.equal(first, view.outputs({}, pictures()))
    assert view.stochastic(pictures())
    assert not view_of(convolutional(nn.Dropout(0.5)), "eval").stochastic(pictures())


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class NeedsTwo(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 2:
            raise ValueError("two at least")
        return x


@pytest.mark.parametrize(
    ("extra", "mode", "reason"),
    [
        (nn.Identity(), "eval", None),
        (nn.Identity(), "train", "1 normalises by its batch's statistics"),
        (nn.BatchNorm2d(3, track_running_stats=False), "eval", "2 normalises"),
        (Centred(), "eval", "the module `2` is a function of several records"),
        (NeedsTwo(), "eval", "on one record alone: two at least"),
        (nn.InstanceNorm2d(3, track_running_stats=True), "eval", None),
        (nn.GroupNorm(1, 3), "eval", None),
    ],
)
def test_coupling_is_found_by_type_and_by_trying(
    extra: nn.Module, mode: Mode, reason: str | None
) -> None:
    found = view_of(convolutional(extra), mode).coupling(pictures())
    assert found is None if reason is None else reason in str(found)


def test_instance_norm_in_training_mode_is_not_coupling() -> None:
    model = nn.Sequential(nn.InstanceNorm2d(1, affine=True, track_running_stats=True), nn.Flatten())
    assert view_of(model, "train").coupling(pictures()) is None


def test_per_record_gradients_by_vmap_with_batch_norm_in_training_mode() -> None:
    view = view_of(convolutional(), "train")
    labels = torch.arange(5) % 4
    grads = torch.func.vmap(torch.func.grad(view.record_loss), in_dims=(None, 0, 0))(
        view.parameters, pictures(), labels
    )
    alone = torch.func.grad(lambda p: view.losses(p, pictures()[2:3], labels[2:3]).sum())(
        view.parameters
    )
    for name, gradient in alone.items():
        torch.testing.assert_close(grads[name][2], gradient)


class StartsFromZeros(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4)
        return self.linear(torch.addmm(state, x, torch.eye(4)))


def test_tensors_made_on_the_way_have_the_audits_precision() -> None:
    x = torch.ones(2, 4)
    view = view_of(StartsFromZeros())
    assert view.outputs({}, view.cast(x)).dtype == torch.float64


def test_unwrap_finds_the_outputs() -> None:
    tensor = torch.ones(2)
    assert unwrap(tensor) is tensor
    assert unwrap((tensor, None)) is tensor
    assert unwrap({"loss": 1, "logits": tensor}) is tensor
    assert unwrap(SimpleNamespace(logits=tensor)) is tensor
    with pytest.raises(AuditError, match="the model returns str"):
        unwrap("nothing")
    with pytest.raises(AuditError, match="the model returns dict of loss, scores; it must"):
        unwrap({"loss": 1, "scores": tensor})


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=0, keepdim=True)


def test_check_names_what_does_not_fit() -> None:
    x = torch.zeros(3, 4).double()
    with pytest.raises(AuditError, match="labels run from 0 to 9, but the model has 2 classes"):
        view_of(nn.Linear(4, 2)).check(x, torch.tensor([0, 1, 9]))
    with pytest.raises(AuditError, match=r"output of shape \(1, 2\) for 3 records"):
        view_of(nn.Sequential(nn.Linear(4, 2), Pooled())).check(x, torch.zeros(3).long())
    regression = FunctionalModel.of(Target(nn.Linear(4, 2), MeanSquaredError()))
    with pytest.raises(AuditError, match=r"labels of shape \(3, 5\) do not fit"):
        regression.check(x, torch.zeros(3, 5))
