from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.matching import folded as matching
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator, _alone
from gradaudit.attacks.reconstruction.matching.folded import foldable, folded
from gradaudit.attacks.reconstruction.matching.objectives import Distance, Objective
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.models.torch_losses import WeightedCrossEntropy
from gradaudit.sharing.protocol import SharingProtocol
from tests.attacks.reconstruction.scenes import cnn, drawn, mlp, observed, records, view


class Residual(nn.Module):
    """Two convolutions, one in place of the other's weights, and what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.groups, self.relu = nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        self.curved, self.last = nn.Tanh(), nn.Linear(4 * 36, 3)
        self.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        self.norm.running_var.uniform_(1, 2)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        y = self.groups(self.curved(self.second(self.second(x))))
        y += x
        return self.last(y.flatten(1))  # type: ignore[no-any-return]


class Attending(nn.Module):
    """A transformer's block on six numbers as six tokens, which come before the records in it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(1, 4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.up(x[..., None]))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(x.mean(dim=1))  # type: ignore[no-any-return]


class Coupled(nn.Module):
    """Records less their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x - x.mean(dim=0) / 2))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Another activation where a batch is dark."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lit = float(x.detach().sum()) > 0
        return self.last(torch.tanh(x) if lit else torch.sin(x))  # type: ignore[no-any-return]


class Unseen(nn.Module):
    """A parameter that is applied by no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x * self.scale))  # type: ignore[no-any-return]


def wide() -> nn.Module:
    """Few positions beside many weights, in a convolution and in a linear map."""
    return nn.Sequential(
        nn.Conv2d(1, 40, 5, stride=3), nn.Tanh(), nn.Flatten(), nn.Linear(40, 30), nn.Linear(30, 3)
    )


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Conv2d(4, 4, 3, groups=2, padding="same"),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


PICTURE = (1, 6, 6)
SCENES = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, PICTURE),
    "residual": (lambda: drawn(Residual), PICTURE),
    "wide": (lambda: drawn(wide), PICTURE),
    "grouped": (lambda: drawn(grouped), PICTURE),
}


def objective_of(model: nn.Module, shape: tuple[int, ...], labels: list[int]) -> Objective:
    seen = view(model, records(*shape, labels=labels))
    return Objective(seen, Targets.of(seen, None))


def alone(objective: Objective, points: Tensor) -> tuple[Tensor, ...]:
    pairs = [_alone(objective, point[None]) for point in points]
    return tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scene", SCENES)
def test_folded_candidates_have_what_each_has_alone(
    scene: str, size: int, distance: Distance
) -> None:
    build, shape = SCENES[scene]
    objective = replace(objective_of(build(), shape, [2, 0][:size]), distance=distance)
    objective = replace(objective, tv=0.1 if shape == PICTURE else 0.0)
    points = objective.trial_points(3)
    assert foldable(objective, partial(_alone, objective))
    found = folded(objective)(points)
    torch.testing.assert_close(found, alone(objective, points), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": (3, 1), "padding": (0, 1)}, {"stride": 2, "dilation": (1, 2)}],
    ids=str,
)
def test_small_convolutions_are_products_with_their_patches(
    options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = torch.randn(2, 2, 8, 9), torch.randn(4, 2, 3, 2), torch.randn(4)
    found = matching._as_product(x, weight, bias, **options)
    assert found is not None
    torch.testing.assert_close(found.out, F.conv2d(x, weight, bias, **options))
    monkeypatch.setattr(matching, "_MOST_COLUMNS", 12)
    assert matching._as_product(x, weight, bias, **options) is None


def test_an_adaptive_attacker_and_hidden_layers_are_folded_too() -> None:
    objective = objective_of(cnn(), PICTURE, [1])
    update = {n: g * (g.abs() > 0.01) for n, g in objective.view.update.items() if "0" in n}
    seen = replace(objective.view, update=update)
    objective = Objective(seen, Targets.of(seen, None), "cosine", adaptive=True)
    points = objective.trial_points(3)
    torch.testing.assert_close(folded(objective)(points), alone(objective, points))


def test_weights_of_classes_count_in_every_candidate_by_itself() -> None:
    batch = records(6, labels=[1, 3])
    of_class = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    loss = WeightedCrossEntropy(nn.CrossEntropyLoss(of_class), "cross-entropy")
    seen = observed(mlp(), batch, loss=loss, known_labels=True).view
    objective = Objective(seen, Targets.of(seen, seen.labels))
    points = objective.trial_points(3)
    torch.testing.assert_close(folded(objective)(points), alone(objective, points))


def test_what_cannot_be_folded_is_found_out() -> None:
    trained = SharingProtocol(algorithm="fedavg", rate=0.5, epochs=2)
    for seen in (
        view(drawn(Coupled), records(6, labels=[1, 0])),
        view(drawn(Branching), records(6, labels=[1])),
        view(drawn(Attending), records(6, labels=[1])),
        view(drawn(Unseen), records(6, labels=[1])),
        view(mlp(), records(6, labels=[1]), sharing=trained),
    ):
        objective = Objective(seen, Targets.of(seen, None))
        assert not foldable(objective, partial(_alone, objective))
        points = objective.trial_points(3)
        torch.testing.assert_close(Evaluator(objective)(points), alone(objective, points))
