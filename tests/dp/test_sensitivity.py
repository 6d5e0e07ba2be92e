"""How far a release moves, against noiseless releases one by one and finite differences."""

from dataclasses import replace

import pytest
import torch
from dp_subject import sensitivity, starts, table

from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.sensitivity import between_two_values

PLACES = ("sum", "release")


@pytest.mark.parametrize("per", PLACES)
def test_gaps_are_distances_of_noiseless_releases(per: str) -> None:
    ground = sensitivity("race", per, companions=3)
    inputs, labels = starts(table(), 4)
    found = replace(ground, memory=1).gaps(inputs, labels)
    mechanism = ClippedNoise(clip=0.5, sigma=1, per=per)
    for record in range(4):
        variants = ground.column.variants(inputs)[record]
        releases = [
            mechanism.mean(
                torch.cat(
                    [ground.gradients(row[None], labels[record : record + 1]), ground.companions]
                )
            )
            for row in variants
        ]
        for i in range(3):
            for j in range(3):
                expected = (releases[i] - releases[j]).norm().item()
                assert found[record, i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


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
