from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator
from gradaudit.attacks.reconstruction.matching.objectives import (
    Distance,
    Objective,
    total_variation,
)
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import LocalTraining, SharingProtocol
from gradaudit.sharing.share import share
from tests.attacks.reconstruction.scenes import (
    cnn,
    drawn,
    finite_differences,
    mlp,
    observed,
    records,
    view,
)


def point_of(objective: Objective, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(objective.unknowns, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distance", "known", "size"),
    [("l2", True, 1), ("l2", False, 2), ("cosine", False, 1), ("cosine", True, 2)],
)
def test_gradients_are_those_of_finite_differences(
    distance: Distance, known: bool, size: int
) -> None:
    batch = records(1, 6, 6, labels=[2, 0][:size])
    seen = view(cnn(), batch)
    targets = Targets.of(seen, batch.labels if known else None)
    objective = Objective(seen, targets, distance, tv=0.01)
    point = point_of(objective)
    _, gradients = Evaluator(objective)(point[None])
    torch.testing.assert_close(
        gradients[0], finite_differences(objective, point), rtol=1e-5, atol=1e-7
    )


def test_several_points_are_evaluated_as_each_alone() -> None:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    objective = Objective(seen, Targets.of(seen, None))
    points = torch.stack([point_of(objective, seed) for seed in range(5)])
    values, gradients = Evaluator(objective)(points)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        torch.testing.assert_close(value, objective(point))
        torch.testing.assert_close(gradient, Evaluator(objective)(point[None])[1][0])


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_the_truth_explains_its_update_in_any_order(distance: Distance) -> None:
    batch = records(6, labels=[3, 0, 3])
    seen = view(mlp(), batch)
    for order in ([0, 1, 2], [2, 0, 1]):
        objective = Objective(seen, Targets.of(seen, batch.labels[order]), distance)
        assert float(objective(batch.inputs[order].flatten())) == pytest.approx(0, abs=1e-12)


def test_the_blank_update_has_distance_one() -> None:
    seen = view(mlp(), records(6, labels=[1]))
    objective = Objective(seen, Targets.of(seen, None))
    length = sum(part.square().sum() for part in seen.update.values())
    found = seen.simulated(torch.zeros(1, 6, dtype=torch.float64), torch.tensor([1]))
    gap = sum((found[n] - part).square().sum() for n, part in seen.update.items())
    fixed = Objective(seen, Targets.of(seen, torch.tensor([1])))
    assert float(fixed(torch.zeros(6, dtype=torch.float64))) == pytest.approx(float(gap / length))
    assert objective.unknowns == 6 + 4


def test_a_scale_of_the_update_leaves_the_cosine() -> None:
    batch = records(6, labels=[1])
    seen = view(mlp(), batch)
    other = replace(seen, update={n: 7 * g for n, g in seen.update.items()})
    point = torch.ones(6, dtype=torch.float64)
    values = [
        float(Objective(v, Targets.of(v, batch.labels), "cosine")(point)) for v in (seen, other)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-12)


def test_an_adaptive_attacker_passes_over_what_was_set_to_zero() -> None:
    batch = records(6, labels=[1])
    seen = view(mlp(), batch)
    pruned = {n: g * (g.abs() > g.abs().median()) for n, g in seen.update.items()}
    seen = replace(seen, update=pruned)
    truth, targets = batch.inputs.flatten(), Targets.of(seen, batch.labels)
    assert float(Objective(seen, targets)(truth)) > 1e-3
    assert float(Objective(seen, targets, adaptive=True)(truth)) == pytest.approx(0, abs=1e-12)


def test_a_zero_update_leaves_nothing_to_match() -> None:
    seen = view(mlp(), records(6, labels=[1]))
    blank = replace(seen, update={n: torch.zeros_like(g) for n, g in seen.update.items()})
    with pytest.raises(NotApplicable, match="nothing to match"):
        Objective(blank, Targets.of(blank, None))


def test_total_variation_of_a_ramp() -> None:
    ramp = torch.arange(4.0).expand(1, 1, 4, 4)
    assert float(total_variation(ramp)) == pytest.approx(1.0)
    assert float(total_variation(torch.full((2, 3, 5, 5), 0.3))) == 0


@pytest.mark.parametrize(
    "how",
    [
        {"epochs": 1},
        {"epochs": 1, "local_batch": 1},
        {"epochs": 1, "local_batch": 2},
        {"epochs": 2},
        {"epochs": 2, "optimizer": "adam"},
        {"local_batch": 1, "local_steps": 2, "momentum": 0.9},
        {"epochs": 2, "optimizer": "adam", "others": 1},
    ],
)
def test_the_attacker_simulates_local_training_as_clients_do_it(how: dict) -> None:
    batch = records(6, labels=[1, 1])
    sharing = SharingProtocol(algorithm="fedavg", rate=0.5, **how)
    seen = view(mlp(), batch, sharing=sharing)
    told = {{"local_steps": "steps"}.get(k, k): v for k, v in how.items() if k != "others"}
    assert (seen.training, seen.clients) == (LocalTraining(rate=0.5, **told), sharing.clients)
    guesses = [seen.simulated(batch.inputs[o], batch.labels[o]) for o in ([0, 1], [1, 0])]
    gaps = [max(float((g[n] - p).abs().max()) for n, p in seen.update.items()) for g in guesses]
    assert min(gaps) < 1e-12


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_mean_of_several_clients_gradients_is_simulated(mode: str) -> None:
    """As the gradient of all records, but where BatchNorm couples those of each client."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    batch = Records(inputs, torch.tensor([0, 1, 2, 1]))
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    threat = ThreatModel(Target(model, CrossEntropy(), mode=mode), SharingProtocol(others=1), ())
    threat = replace(threat, layers=threat.target.layers)
    seen = threat.observed(batch, torch.Generator().manual_seed(0)).view
    assert seen.clients == {"eval": 1, "train": 2}[mode]
    simulated = seen.simulated(batch.inputs, batch.labels)
    for name, part in seen.update.items():
        torch.testing.assert_close(simulated[name], part)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"optimizer": "adam"}, {"others": 1}], ids=str)
def test_local_training_is_differentiated_through(how: dict) -> None:
    batch = records(6, labels=[1, 2])
    sharing = SharingProtocol(algorithm="fedavg", epochs=2, rate=0.3, local_batch=1, **how)
    seen = view(mlp(), batch, sharing=sharing)
    objective = Objective(seen, Targets.of(seen, batch.labels))
    point = point_of(objective)
    torch.testing.assert_close(
        Evaluator(objective)(point[None])[1][0],
        finite_differences(objective, point),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.parametrize("loss", [MeanSquaredError(), BinaryCrossEntropy()], ids=lambda x: x.name)
def test_free_targets_of_other_losses_can_explain_the_update(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(2, 1, generator=generator, dtype=torch.float64).round()
    batch = Records(torch.rand(2, 6, generator=generator, dtype=torch.float64), labels)
    seen = view(mlp(classes=1), batch, loss=loss)
    assert seen.classes == 0
    objective = Objective(seen, Targets.of(seen, None))
    assert float(objective(torch.cat([batch.inputs.flatten(), labels.flatten()]))) < 1e-12


def test_one_logit_with_classes_has_a_free_probability() -> None:
    batch = records(6, labels=[1, 0])
    seen = view(mlp(classes=1), batch, loss=BinaryCrossEntropy())
    targets = Targets.of(seen, None)
    assert (seen.classes, targets.shape) == (1, (2, 1))
    free = torch.tensor([50.0, -50.0], dtype=torch.float64)
    assert float(Objective(seen, targets)(torch.cat([batch.inputs.flatten(), free]))) < 1e-12
    assert targets.read(free[None]).tolist() == [[1, 0]]


def test_class_labels_of_a_custom_loss_cannot_be_free() -> None:
    loss = CustomLoss(lambda o, t: -o.gather(1, t[:, None])[:, 0], "mine.py:loss")
    seen = view(mlp(), records(6, labels=[1]), loss=loss)
    with pytest.raises(NotApplicable, match="--known-labels"):
        Targets.of(seen, None)
    assert Targets.of(seen, torch.tensor([1])).size == 0


def test_models_that_vmap_cannot_follow_are_gone_through_one_by_one() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sigmoid() if float(x.detach().sum()) > -1e9 else x

    seen = view(drawn(Branching), records(6, labels=[1]))
    objective = Objective(seen, Targets.of(seen, None))
    points = torch.stack([point_of(objective, seed) for seed in range(3)])
    with pytest.raises(RuntimeError):
        torch.func.vmap(objective)(points)
    values, gradients = Evaluator(objective)(points)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        torch.testing.assert_close(value, objective(point))
        torch.testing.assert_close(
            gradient, finite_differences(objective, point), rtol=1e-5, atol=1e-7
        )


def test_the_update_is_the_shared_one() -> None:
    model, batch = mlp(), records(6, labels=[0, 2])
    target = Target(model, observed(model, batch).view.model.loss)
    wanted = share(
        target,
        batch.inputs,
        batch.labels,
        SharingProtocol(),
        torch.Generator(),
        dtype=torch.float64,
    )
    found = view(model, batch).update
    assert found.keys() == wanted.keys()
    for name, part in wanted.items():
        torch.testing.assert_close(found[name], part)
