"""How far a release moves, against noiseless releases one by one and finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from cases import CASES, Case
from dp_subject import (
    from_file,
    noise_that_no_seed_reaches,
    sensitivity,
    starts,
    sums_under_loud_noise,
    table,
)
from torch import Generator, Tensor, nn

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.sensitivity import (
    RecordGradients,
    RecordSensitivity,
    between_two_values,
    cosine_distance,
)
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

PLACES = ("sum", "release")


@pytest.mark.parametrize("per", PLACES)
def test_gaps_are_distances_of_noiseless_releases(per: str) -> None:
    ground = sensitivity("race", per, companions=3)
    inputs, labels = starts(table(), 4)
    found = replace(ground, memory=1).gaps(inputs, labels)
    mechanism = ClippedNoise(clip=0.5, sigma=1, per=per)
    for record in range(4):
        variants = ground.column.variants(inputs)[record]
        rows = ground.gradients(variants, labels[record].expand(3))
        batches = [torch.cat([row[None], ground.companions]) for row in rows]
        releases = torch.stack([mechanism.mean(batch) for batch in batches])
        expected = (releases[:, None] - releases).norm(dim=2)
        torch.testing.assert_close(found[record], expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("which", [0, 1], ids=["gap", "cosine"])
@pytest.mark.parametrize("per", PLACES)
def test_the_objectives_gradient_is_that_of_finite_differences(which: int, per: str) -> None:
    ground = sensitivity("race", per, companions=2)
    inputs, labels = starts(table(), 3)
    inputs = inputs + 0.1 * torch.randn(
        inputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    pairs = torch.tensor([[0, 1], [2, 0], [1, 2]])
    objective = ground.objective(ground.distances[which], pairs, labels)
    leaf = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(leaf).sum(), leaf)
    step = 1e-6
    for position in range(11):
        aside = torch.zeros(11, dtype=torch.float64)
        aside[position] = step
        with torch.no_grad():
            difference = (objective(inputs + aside) - objective(inputs - aside)) / (2 * step)
        torch.testing.assert_close(slope[:, position], difference, rtol=1e-5, atol=1e-8)
    assert (slope[:, ground.column.positions] == 0).all()
    assert (slope != 0).any()


def test_the_objectives_are_their_definitions() -> None:
    ground = sensitivity("sex", "sum")
    inputs, labels = starts(table(), 5)
    pairs = torch.tensor([[0, 1]]).expand(5, 2)
    first, second = (
        ground.gradients(ground.column.put(inputs, ground.column.values[i]), labels) for i in (0, 1)
    )
    gap = ground.objective(ground.distances[0], pairs, labels)(inputs)
    torch.testing.assert_close(gap.sqrt(), ground.gaps(inputs, labels)[:, 0, 1])
    angle = ground.objective(ground.distances[1], pairs, labels)(inputs)
    expected = 1 - (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))
    torch.testing.assert_close(angle, expected)


def test_equal_releases_still_leave_two_different_values() -> None:
    """A coin that falls on noise hides what the mechanism would release: the pair must differ."""
    gaps = between_two_values(torch.zeros(3, 4, 4))
    assert (gaps.flatten(1).argmax(dim=1) == 1).all()
    assert (gaps[:, 2].argmax(dim=1) == 0).all()
    assert (gaps.diagonal(dim1=1, dim2=2) < 0).all()


def drawn_from(
    mechanism: Mechanism, clip: float | None = None, companions: int = 0, seed: int = 0
) -> RecordSensitivity:
    ground, records = sensitivity("sex"), table()
    options = DpAuditOptions(companions=companions, clip=clip)
    return RecordSensitivity.of(
        ground.gradients, records, ground.column, mechanism, options, 1 << 20, seed
    )


def test_companions_are_other_records_drawn_by_the_seed() -> None:
    gradients, records = sensitivity("sex").gradients, table()
    every = gradients(records.inputs.flatten(1), records.labels)
    batches = []
    for seed in (0, 0, 1):
        found = drawn_from(ClippedNoise(clip=1, sigma=1), companions=5, seed=seed).companions
        apart = torch.cdist(found, every)
        assert (apart.amin(dim=1) < 1e-6).all()
        batches.append(set(apart.argmin(dim=1).tolist()))
    assert batches[0] == batches[1] != batches[2]
    assert [*map(len, batches)] == [5] * 3
    assert drawn_from(ClippedNoise(clip=1, sigma=1)).companions.shape == (0, 114)
    assert len(drawn_from(ClippedNoise(clip=1, sigma=1), companions=59).companions) == 59
    with pytest.raises(UsageError, match="60: there are 60 records in all; give at most 59"):
        drawn_from(ClippedNoise(clip=1, sigma=1), companions=60)


def rounded(gradients: Tensor, generator: Generator) -> Tensor:
    """Noise that repeats by its seed, over what has no slope."""
    return torch.from_numpy(gradients.numpy().sum(axis=0)) + torch.randn(114, generator=generator)


@pytest.mark.parametrize(
    ("mechanism", "clip", "words", "guesses"),
    [
        (ClippedNoise(clip=0.3, sigma=1), None, "the noiseless release", [0.3]),
        (from_file(sums_under_loud_noise), 0.2, "common noise", [5.0, math.inf]),
        (from_file(rounded), 0.2, "common noise", [0.2, math.inf]),
        (from_file(rounded), None, "common noise", [math.inf, math.inf]),
        (from_file(noise_that_no_seed_reaches), 0.2, "the declared clip", [0.2]),
        (from_file(noise_that_no_seed_reaches), None, "nothing clips", [math.inf]),
    ],
)
def test_what_is_measured_and_what_is_climbed(
    mechanism: Mechanism, clip: float | None, words: str, guesses: list[float]
) -> None:
    """Every distance against the gap of releases clipped to a guess, and last the cosine."""
    found = drawn_from(mechanism, clip)
    assert words in found.measured_by
    first, second = torch.randn(2, 4, 114, generator=Generator().manual_seed(0)).double()
    for distance, bound in zip(found.distances, guesses, strict=False):
        gap = ClippedNoise(clip=bound, sigma=0).noiseless
        expected = (gap(first, first[:0]) - gap(second, first[:0])).square().sum(dim=1)
        torch.testing.assert_close(distance(first, second), expected, rtol=1e-4, atol=1e-4)
    assert found.distances[len(guesses) :] == (cosine_distance,)
    by_judge = found.judge(first, first[:0]) - found.judge(second, first[:0])
    if mechanism.law(1) is not None or "clip" in words:
        mean = ClippedNoise(clip=guesses[0], sigma=0).noiseless
        torch.testing.assert_close(by_judge, mean(first, first[:0]) - mean(second, first[:0]))
    assert by_judge.shape == first.shape


def test_as_many_records_are_looked_at_as_eight_copies_of_their_gradients_fit() -> None:
    of_two = 8 * 8 * 2 * 114
    ground = sensitivity("sex")
    sizes = {memory: replace(ground, memory=memory).records_at_once(2) for memory in (1, of_two)}
    assert sizes == {1: 1, of_two: 1}
    assert replace(ground, memory=3 * of_two).records_at_once(2) == 3
    assert replace(ground, memory=3 * of_two - 1).records_at_once(2) == 2


def test_gradients_that_are_not_finite_are_refused() -> None:
    ground = sensitivity("sex")
    inputs, labels = starts(table(), 2)
    inputs[1, 0] = math.inf
    with pytest.raises(AuditError, match="not finite; the model has diverged"):
        ground.gaps(inputs, labels)


def test_the_elements_of_a_gradient_are_those_of_its_parameters() -> None:
    gradients = sensitivity("sex").gradients
    assert gradients.elements == 88 + 8 + 16 + 2
    assert gradients.batched


REAL = [case for case in CASES if case.inputs.is_floating_point()]


def one_by_one(case: Case, target: Target) -> Tensor:
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
def test_gradients_and_their_slopes_are_those_of_autograd(case: Case) -> None:
    """The slopes along a random direction, against finite differences."""
    target = case.target()
    gradients, inputs = gradients_of(case, target), case.inputs.flatten(1)
    found = gradients(inputs, case.labels)
    assert found.shape == (len(case.inputs), gradients.elements)
    torch.testing.assert_close(found, one_by_one(case, target), rtol=1e-9, atol=1e-11)
    weights = torch.randn(gradients.elements, generator=Generator().manual_seed(0))
    aside = torch.randn(inputs.shape, generator=Generator().manual_seed(1)).double()
    leaf = inputs.clone().requires_grad_()
    score = gradients(leaf, case.labels) @ weights.double()
    (slope,) = torch.autograd.grad(score.sum(), leaf)
    with torch.no_grad():
        ahead, behind = (gradients(inputs + s * 1e-6 * aside, case.labels) for s in (1, -1))
    difference = (ahead - behind) @ weights.double() / 2e-6
    torch.testing.assert_close((slope * aside).sum(dim=1), difference, rtol=1e-4, atol=1e-6)


class Branching(nn.Module):
    """Python control flow on a value, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
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
