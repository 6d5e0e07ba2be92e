import pytest
import torch
from cases import CASES, Case
from torch import nn

from gradaudit.audits.dp_audit.game.sensitivity import RecordGradients
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

REAL = [case for case in CASES if case.inputs.is_floating_point()]


def one_by_one(case: Case, target: Target) -> torch.Tensor:
    """Every trainable parameter's gradient of each record by autograd."""
    model = target.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for record, label in zip(case.inputs, case.labels, strict=True):
        loss = case.loss.per_record(model(record[None]), label[None]).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows)


def gradients_of(case: Case, target: Target) -> RecordGradients:
    return RecordGradients.of(target, case.inputs, case.labels)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_gradients_are_those_of_autograd(case: Case) -> None:
    target = case.target()
    gradients = gradients_of(case, target)
    found = gradients(case.inputs.flatten(1), case.labels)
    assert found.shape == (len(case.inputs), gradients.elements)
    torch.testing.assert_close(found, one_by_one(case, target), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_gradients_can_be_differentiated_by_the_record(case: Case) -> None:
    gradients = gradients_of(case, case.target())
    inputs = case.inputs.flatten(1)
    weights = torch.randn(gradients.elements, generator=torch.Generator().manual_seed(0))

    def score(shifted: torch.Tensor) -> torch.Tensor:
        return gradients(shifted, case.labels) @ weights.double()

    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(score(leaf).sum(), leaf)
    aside = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        difference = (score(inputs + 1e-6 * aside) - score(inputs - 1e-6 * aside)) / 2e-6
    torch.testing.assert_close((slope * aside).sum(dim=1), difference, rtol=1e-4, atol=1e-6)


class Branching(nn.Module):
    """Python control flow on a value, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if float(inputs.sum().detach()) > 0 else 1.0
        return self.inner(inputs) * scale


def test_a_model_that_vmap_cannot_follow_is_looped_over() -> None:
    target = Target(Branching().double(), CrossEntropy())
    inputs = torch.tensor([[1.0, 2, 3]], dtype=torch.float64)
    labels = torch.tensor([1])
    gradients = RecordGradients.of(target, inputs, labels)
    assert not gradients.batched
    both = torch.cat([inputs, -inputs])
    found = gradients(both, labels.expand(2))
    for row, record in zip(found, both, strict=True):
        alone = RecordGradients.of(target, record[None], labels)(record[None], labels)
        torch.testing.assert_close(row, alone[0])
    leaf = inputs.clone().requires_grad_()
    gradients(leaf, labels).square().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_hidden_layers_do_not_count_nor_do_their_biases() -> None:
    case = next(case for case in REAL if case.id == "mlp-tanh")
    target = case.target()
    *hidden, last = (layer.name for layer in target.layers)
    gradients = RecordGradients.of(target, case.inputs, case.labels, hidden)
    module = dict(target.model.named_modules())[last]
    assert gradients.elements == sum(parameter.numel() for parameter in module.parameters())
    found = gradients(case.inputs.flatten(1), case.labels)
    torch.testing.assert_close(found, one_by_one(case, target)[:, -gradients.elements :])


def test_coupled_records_have_no_gradients_of_their_own() -> None:
    case = next(case for case in REAL if case.id == "batch-norm")
    target = Target(case.make_model(), case.loss, mode="train")
    with pytest.raises(NotApplicable, match="--model-mode eval"):
        gradients_of(case, target)


def test_dropout_hides_a_record() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    target = Target(model, CrossEntropy(), mode="train")
    with pytest.raises(NotApplicable, match="draws random numbers"):
        RecordGradients.of(target, torch.randn(2, 3), torch.tensor([0, 1]))
