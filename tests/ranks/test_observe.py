"""What is seen of a model while one record goes through it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.ranks.observe import fully_connected, plain_convolutions, unsuitable, uses

RECORD = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABEL = torch.tensor([1])


def functional(model: nn.Module) -> FunctionalModel:
    return FunctionalModel.of(Target(model, CrossEntropy()))


class Standardised(nn.Conv2d):
    """A convolution by standardised weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


def in_place() -> nn.Module:
    """Activations that overwrite what convolutions give."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 2, 2),
        nn.LeakyReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(18, 4),
    )


def test_deltas_are_the_gradient_at_the_output() -> None:
    """Against parameters' own gradients: ∇_b J sums δ, ∇_W J correlates it with x."""
    model = in_place().double()
    seen = uses(functional(model), plain_convolutions(model), RECORD, LABEL)
    assert [use.layer for use in seen] == ["0", "2"]
    CrossEntropy().per_record(model(RECORD), LABEL).sum().backward()
    assert [use.deltas.shape for use in seen] == [(1, 3, 4, 4), (1, 2, 3, 3)]
    for use, layer in zip(seen, (model[0], model[2]), strict=True):
        torch.testing.assert_close(use.deltas.sum(dim=(0, 2, 3)), layer.bias.grad)
        torch.testing.assert_close(use.weight, layer.weight.detach())
    correlated = torch.nn.grad.conv2d_weight(RECORD, model[0].weight.shape, seen[0].deltas)
    torch.testing.assert_close(correlated, model[0].weight.grad)


def test_the_model_is_left_as_it_was() -> None:
    model = in_place().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    uses(functional(model), plain_convolutions(model), RECORD, LABEL)
    assert all(part.training for part in model.modules())
    assert not any(part._forward_hooks for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_output_that_the_loss_ignores_has_no_gradient() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.ignored = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.used(x).flatten(1), self.ignored(x)

    model = Auxiliary()
    seen = uses(functional(model), plain_convolutions(model), RECORD, LABEL)
    assert [bool(use.deltas.any()) for use in seen] == [True, False]


def test_convolutions_that_never_run_are_not_seen() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.head = nn.Conv2d(2, 2, 3), nn.Linear(72, 4)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(x.flatten(1))
            return outputs

    model = Spare()
    assert uses(functional(model), plain_convolutions(model), RECORD, LABEL) == []


def shared() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("make", "names", "words"),
    [
        (lambda: nn.Sequential(nn.ConvTranspose2d(2, 1, 3)), {"0"}, "transposed"),
        (lambda: nn.Sequential(Standardised(2, 1, 3)), {"0"}, "own forward pass"),
        (
            lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 1, 3))),
            {"0"},
            "computed from other parameters",
        ),
        (lambda: nn.Sequential(nn.Conv2d(2, 1, 3, dtype=torch.cfloat)), {"0"}, "complex64"),
        (shared, {"0", "1"}, "shares its weight"),
    ],
    ids=["transposed", "own-forward", "weight-norm", "complex", "shared"],
)
def test_convolutions_that_u_is_not_defined_for(
    make: Callable[[], nn.Module], names: set[str], words: str
) -> None:
    model = make()
    reasons = unsuitable(model)
    assert set(reasons) == names
    assert all(words in reason for reason in reasons.values())
    assert not plain_convolutions(model)


def test_a_model_that_is_a_convolution_itself() -> None:
    assert set(plain_convolutions(nn.Conv2d(2, 1, 3))) == {"(model)"}


def test_a_fully_connected_layer_is_in_closed_form_where_it_is_applied_once() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.free = nn.Linear(6, 5), nn.Linear(60, 4, bias=False)
            self.once, self.unused = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.once(self.free(self.rows(x).flatten(1)))
            return outputs

    said = fully_connected(functional(Layers().double()), RECORD)
    assert "applied at 12 positions of a record" in said["rows"]
    assert "without a bias" in said["free"]
    assert said["once"] == (
        "fully connected: its gradient gives its input in closed form (COPA, lemma A.1)"
    )
    assert "not called" in said["unused"]
