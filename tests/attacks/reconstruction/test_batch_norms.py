"""BatchNorm statistics as a prior of attacks that match gradients."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from gradaudit.attacks.reconstruction.base import AttackerView, Execution
from gradaudit.attacks.reconstruction.gradient_matching import InvertingGradients
from gradaudit.attacks.reconstruction.matching.batch_norms import (
    batch_statistics,
    statistics_distance,
)
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator, _alone
from gradaudit.attacks.reconstruction.matching.folded import foldable
from gradaudit.attacks.reconstruction.matching.objectives import Objective
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Mode, Target
from gradaudit.sharing.protocol import SharingProtocol
from tests.attacks.reconstruction.scenes import cnn, drawn, records

PICTURES = records(1, 6, 6, labels=[2, 0, 1])


def normed() -> nn.Module:
    """Two BatchNorm layers, one over positions and one over records, that keep odd statistics."""
    model = drawn(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten()),
            *(nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Sigmoid(), nn.Linear(5, 3)),
        )
    )
    with torch.no_grad():
        for number in (1, 5):
            norm = model[number]
            norm.running_mean.copy_(torch.linspace(-0.3, 0.4, len(norm.running_mean)))
            norm.running_var.copy_(torch.linspace(0.2, 1.5, len(norm.running_var)))
    return model


def view_of(
    model: nn.Module, batch: Records = PICTURES, *, mode: Mode = "eval", known: bool = False
) -> AttackerView:
    target = Target(model, CrossEntropy(), mode=mode)
    threat = ThreatModel(
        target, SharingProtocol(), target.layers, known_labels=True, known_statistics=known
    )
    return threat.observed(batch, torch.Generator().manual_seed(0)).view


def test_statistics_are_those_that_torch_keeps_of_a_batch() -> None:
    """With a momentum of 1 torch's running statistics become those of the batch."""
    keeping = deepcopy(normed()).train()
    for number in (1, 5):
        keeping[number].momentum = 1.0
    keeping(PICTURES.inputs)
    found = batch_statistics(view_of(normed(), mode="train").model, PICTURES.inputs)
    assert sorted(found) == [f"{n}.running_{part}" for n in (1, 5) for part in ("mean", "var")]
    for name, value in found.items():
        torch.testing.assert_close(value, keeping.get_buffer(name))


@pytest.mark.parametrize("known", [False, True], ids=["running", "the batch's own"])
def test_the_distance_is_the_sum_of_the_norms_of_equation_11(known: bool) -> None:
    model, view = normed(), view_of(normed(), known=known)
    other = torch.rand(3, 1, 6, 6, dtype=torch.float64)
    expected = 0.0
    for before, dims in ((model[:1], (0, 2, 3)), (model[:5], (0,))):
        norm, made, true = model[len(before)], before(other), before(PICTURES.inputs)
        mean, var = norm.running_mean, norm.running_var
        if known:
            mean, var = true.mean(dims), true.var(dims)
        expected += float(
            ((made.mean(dims) - mean).norm() + (made.var(dims) - var).norm()).detach()
        )
    assert float(statistics_distance(view, other)) == pytest.approx(expected, rel=1e-12)
    at_truth = float(statistics_distance(view, PICTURES.inputs))
    assert at_truth == 0 if known else at_truth > 0.1


def test_several_candidates_have_the_objective_of_each_alone() -> None:
    seen = view_of(normed())
    objective = Objective(seen, Targets.of(seen, seen.labels), "cosine", batchnorm=0.3)
    bare = replace(objective, batchnorm=0.0)
    assert foldable(objective, partial(_alone, objective))
    points = torch.rand(4, objective.unknowns, dtype=torch.float64)
    values, _ = Evaluator(objective)(points)
    for point, value in zip(points, values, strict=True):
        added = 0.3 * statistics_distance(seen, objective.records(point))
        torch.testing.assert_close(value, bare(point) + added)


def test_in_training_mode_each_candidate_is_normalised_for_itself() -> None:
    seen = view_of(normed(), mode="train")
    objective = Objective(seen, Targets.of(seen, seen.labels), "cosine", batchnorm=0.3)
    points = torch.rand(4, objective.unknowns, dtype=torch.float64)
    values, gradients = Evaluator(objective)(points)
    alone = [Evaluator(objective)(point[None]) for point in points]
    torch.testing.assert_close(values, torch.cat([value for value, _ in alone]))
    torch.testing.assert_close(gradients, torch.cat([gradient for _, gradient in alone]))


def test_a_batch_is_drawn_to_the_statistics_that_the_attacker_has() -> None:
    """A heavy weight brings the distance down, and the batch's own statistics the batch nearer."""
    errors, distances = [], []
    for weight, known in ((0.0, True), (1.0, False), (1.0, True)):
        seen = view_of(normed(), known=known)
        generator = torch.Generator().manual_seed(1)
        noisy = {
            name: part + 0.05 * torch.randn(part.shape, generator=generator, dtype=part.dtype)
            for name, part in seen.update.items()
        }
        attack = InvertingGradients(restarts=1, iterations=200, tv=0.0, batchnorm=weight)
        found = attack.run(replace(seen, update=noisy), Execution()).records
        assert found is not None
        distances.append(float(statistics_distance(seen, found.double())))
        errors.append(float((found.mean(0) - PICTURES.inputs.mean(0)).square().mean()))
    assert distances[2] < 0.1 * distances[0]
    assert errors[2] < errors[0]
    assert errors[2] < errors[1]


def test_models_without_batch_norm_are_refused() -> None:
    with pytest.raises(NotApplicable, match="--batchnorm: the model has no BatchNorm layer"):
        InvertingGradients(batchnorm=0.1).run(view_of(cnn()), Execution())
