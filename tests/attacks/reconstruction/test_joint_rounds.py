"""Attacks on the updates that the same records make in several rounds."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gradaudit.attacks.layerwise.fully_connected import SingleLayer
from gradaudit.attacks.reconstruction.base import AttackerView, Execution
from gradaudit.attacks.reconstruction.closed_form import ClosedForm
from gradaudit.attacks.reconstruction.gradient_matching import InvertingGradients
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator, _alone
from gradaudit.attacks.reconstruction.matching.folded import foldable
from gradaudit.attacks.reconstruction.matching.objectives import Distance, Objective
from gradaudit.attacks.reconstruction.matching.unknowns import Targets, infer_counts, infer_label
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.attacks.reconstruction.r_gap import RecursiveGradientAttack
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol
from tests.attacks.reconstruction.scenes import cnn, mlp, records

PICTURES = records(1, 6, 6, labels=[2, 0])
ROWS = records(6, labels=[1])


def other_weights(model: nn.Module, seed: int) -> nn.Module:
    """The model of another round: every parameter moves by a random step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            step = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * step)
    return model


def joint(*models: nn.Module, batch: Records = PICTURES, known_labels: bool = True) -> AttackerView:
    """The view of the batch's updates at several models, oldest first."""
    threats = [
        ThreatModel(Target(m, CrossEntropy()), SharingProtocol(), (), known_labels) for m in models
    ]
    threats = [replace(threat, layers=threat.target.layers) for threat in threats]
    threat = replace(threats[-1], earlier=tuple(threats[:-1]))
    return threat.observed(batch, torch.Generator().manual_seed(0)).view


def distance_alone(model: nn.Module, inputs: Tensor, kind: Distance) -> Tensor:
    """The distance of a candidate's gradient from the true one, by autograd alone."""
    parameters = [p for name, p in model.named_parameters()]
    vectors = []
    for x in (inputs, PICTURES.inputs):
        loss = nn.functional.cross_entropy(
            model(x), torch.tensor([0, 2] if x is inputs else [2, 0])
        )
        vectors.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    made, shared = vectors
    if kind == "l2":
        return (made - shared).square().sum() / shared.square().sum()
    return 1 - (made @ shared) / (made.norm() * shared.norm())


@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_the_objective_is_the_mean_of_the_rounds_distances(kind: Distance) -> None:
    models = [cnn(), other_weights(cnn(), 1), other_weights(cnn(), 2)]
    seen = joint(*models)
    objective = Objective(seen, Targets.of(seen, seen.labels), kind)
    point = torch.rand(2 * 36, dtype=torch.float64)
    candidate = point.reshape(2, 1, 6, 6)
    expected = sum(distance_alone(m, candidate, kind) for m in models) / 3
    assert float(objective(point)) == pytest.approx(float(expected), rel=1e-10)


def test_candidates_of_several_rounds_are_folded_as_each_alone() -> None:
    seen = joint(cnn(), other_weights(cnn(), 1))
    objective = Objective(seen, Targets.of(seen, seen.labels), "cosine", tv=0.1)
    evaluate = Evaluator(objective)
    assert foldable(objective, partial(_alone, objective))
    points = torch.rand(4, objective.unknowns, dtype=torch.float64)
    values, gradients = evaluate(points)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        alone, slope = Evaluator(objective)(point[None])
        torch.testing.assert_close(alone[0], value)
        torch.testing.assert_close(slope[0], gradient)


def test_a_round_whose_update_is_zero_is_left_out() -> None:
    seen = joint(cnn(), other_weights(cnn(), 1))
    silent = {name: torch.zeros_like(part) for name, part in seen.update.items()}
    without = replace(seen, update=silent)
    alone = replace(seen.earlier[0])
    point = torch.rand(72, dtype=torch.float64)
    values = [float(Objective(one, Targets.of(one, one.labels))(point)) for one in (without, alone)]
    assert values[0] == values[1]
    nothing = replace(without, earlier=(without.rounds[0],))
    with pytest.raises(NotApplicable, match="zero in every visible parameter"):
        Objective(nothing, Targets.of(nothing, nothing.labels))


def noisy(view: AttackerView, sigma: float, seed: int) -> AttackerView:
    generator = torch.Generator().manual_seed(seed)
    update = {
        name: part + sigma * torch.randn(part.shape, generator=generator, dtype=part.dtype)
        for name, part in view.update.items()
    }
    earlier = tuple(noisy(one, sigma, seed + 1000 * n) for n, one in enumerate(view.earlier, 1))
    return replace(view, update=update, earlier=earlier)


def test_the_closed_form_is_least_squares_over_the_rows_of_all_rounds() -> None:
    models = [mlp(), other_weights(mlp(), 1), other_weights(mlp(), 2)]
    seen = noisy(joint(*models, batch=ROWS), 0.01, 0)
    found = ClosedForm(box=False).run(seen, Execution()).inputs[0].flatten()
    rounds = [seen.rounds[0], *seen.earlier]
    weight = torch.cat([one.update["0.weight"] for one in rounds])
    bias = torch.cat([one.update["0.bias"] for one in rounds])
    expected = torch.linalg.lstsq(bias[:, None], weight).solution[0]
    torch.testing.assert_close(found, expected)
    assert SingleLayer.of(seen).weight.shape == (3 * 16, 6)


def test_rounds_of_equal_size_bring_the_closed_forms_error_down_as_their_square_root() -> None:
    """R rounds at the same weights with fresh noise: the mean square error falls as 1/R."""
    errors = {}
    for count in (1, 4):
        seen = joint(*[mlp() for _ in range(count)], batch=ROWS)
        found = [
            ClosedForm(box=False).run(noisy(seen, 1e-3, 7 * n), Execution()) for n in range(60)
        ]
        off = torch.stack([one.inputs[0].flatten() - ROWS.inputs[0] for one in found])
        errors[count] = float(off.square().mean())
    assert 2.6 < errors[1] / errors[4] < 6  # 4, within three deviations of 360 numbers each


@pytest.mark.slow
def test_labels_are_read_off_the_rounds_together() -> None:
    """Noise that hides the label in single rounds does not in the mean of many."""
    clean = joint(*[other_weights(mlp(), n) for n in range(40)], batch=ROWS, known_labels=False)
    views = [noisy(clean, 0.4, seed) for seed in range(15)]
    together = sum(int(infer_label(v)[0]) == 1 for v in views)
    alone = sum(int(infer_label(v.rounds[0])[0]) == 1 for v in views)
    assert together == 15 > alone


def test_counts_of_labels_are_the_mean_over_rounds() -> None:
    batch = records(1, 6, 6, labels=[2, 2, 0, 1])
    seen = joint(cnn(), cnn(), batch=batch, known_labels=False)
    generator = torch.Generator().manual_seed(0)
    one = infer_counts(seen.rounds[0], torch.Generator().manual_seed(0), batch.inputs)
    assert torch.equal(infer_counts(seen, generator, batch.inputs), one)
    assert one.tolist() == [0, 1, 2, 2]


@pytest.mark.slow
def test_more_rounds_find_more_of_a_noisy_batch() -> None:
    models = [other_weights(cnn(), n) for n in range(6)]
    attack = InvertingGradients(restarts=1, iterations=100, tv=0.0)
    errors = []
    for used in (models[-1:], models):
        seen = noisy(joint(*used), 0.03, 0)
        records = attack.run(seen, Execution()).records
        assert records is not None
        errors.append(float((records - PICTURES.inputs.flip(0)).square().mean()))
    assert errors[1] < 0.6 * errors[0]


def test_attacks_that_solve_one_rounds_update_refuse_several() -> None:
    with pytest.raises(NotApplicable, match="--joint-rounds"):
        RecursiveGradientAttack().run(joint(mlp(), mlp(), batch=ROWS), Execution())
