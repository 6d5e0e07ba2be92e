"""A record against its absence, played by mechanisms that are told a batch's size by it."""

from dataclasses import replace

import pytest
import torch
from dp_subject import clip, hypotheses, noise_that_no_seed_reaches

from gradaudit.audits.dp_audit.game.canary import Canary, CanaryPairs, without_record
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.play import Rules, play
from gradaudit.audits.dp_audit.mechanisms import FileMechanism

PLAYED = Canary("random", 1, 0, 0.5, torch.zeros(3), torch.zeros(()))
CANARIES = CanaryPairs({"random": PLAYED}, PLAYED, torch.zeros(1))


def mean(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise on the sum, and then a batch's size that nobody is to know."""
    drawn = torch.randn(gradients.shape[1], generator=generator)
    return (clip(gradients, 1).sum(0) + 3 * drawn) / len(gradients)


def total(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return clip(gradients, 1).sum(0) + 3 * torch.randn(gradients.shape[1], generator=generator)


def removed(function: object, played: Hypotheses) -> tuple[CanaryPairs[Canary], Hypotheses]:
    return without_record(FileMechanism(function, "f.py:m"), CANARIES, played, 1)  # type: ignore[arg-type]


def test_the_value_that_moves_the_release_more_plays_against_the_companions_alone() -> None:
    """Of norms .1 and about 1; the gap is that of the clipped gradient."""
    played = hypotheses(0.8, companions=3)
    canaries, found = removed(total, played)
    larger = played.alternatives[0]
    torch.testing.assert_close(found.null, larger)
    with_record, without = found.batches
    torch.testing.assert_close(with_record, torch.cat([larger[None], played.companions]).float())
    torch.testing.assert_close(without, played.companions.float())
    gap = float(clip(larger[None], 1).norm())
    assert canaries.played == replace(PLAYED, null=0, alternative=-1, gap=canaries.played.gap)
    assert canaries.played.gap == pytest.approx(gap, rel=1e-4)
    swapped = Hypotheses(larger, played.null[None], played.companions)
    again, same = removed(total, swapped)
    torch.testing.assert_close(same.null, larger)
    assert again.played.null == PLAYED.null


def test_gaps_are_norms_where_no_seed_holds_the_noise() -> None:
    played = hypotheses(0.8, companions=3)
    canaries, _ = removed(noise_that_no_seed_reaches, played)
    assert canaries.played.gap == pytest.approx(float(played.alternatives[0].norm()))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "tells"), [(mean, True), (total, False)])
def test_a_size_that_is_divided_by_shows_when_a_record_is_removed(
    function: object, tells: bool
) -> None:
    """By the noise's scale, a third above that of one record more; it hides all else."""
    played = hypotheses(0.8, elements=200, companions=3)
    _, found = removed(function, played)
    mechanism, rules = FileMechanism(function, "f.py:m"), Rules(1000, 1e-5)  # type: ignore[arg-type]
    assert play(mechanism, played, rules, 2).scores["projection"].bound.value < 1.5
    bound = play(mechanism, found, rules, 2).scores["projection"].bound
    assert (bound.value > 6) is tells
