"""Rank of U against the singular values of U itself, formed by automatic differentiation."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from ranks.reference import HAND_MADE, Case, plain, random_case, system_of
from torch import nn

from gradaudit.errors import NotApplicable
from gradaudit.ranks.convolution import Method, convolution_rank
from gradaudit.ranks.observe import geometry_of

SEEDS = (range(40), pytest.param(range(40, 100), marks=pytest.mark.slow))


@cache
def random_cases(seeds: range) -> list[tuple[Case, int]]:
    cases = [random_case(seed) for seed in seeds]
    return [(case, case.true_rank) for case in cases]


@pytest.mark.parametrize("method", ["auto", "dense"])
@pytest.mark.parametrize("case", HAND_MADE, ids=str)
def test_rank_of_hand_made_layers(case: Case, method: Method) -> None:
    found = case.rank(method)
    assert found.low == found.high == case.true_rank


@pytest.mark.parametrize("case", HAND_MADE, ids=str)
def test_the_bound_is_never_below_the_rank(case: Case) -> None:
    found = case.rank("auto")
    assert sum(group.bound for group in found.groups) >= case.true_rank


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("method", ["auto", "dense", "structured", "generic"])
def test_rank_of_random_layers(method: Method, seeds: range) -> None:
    for case, truth in random_cases(seeds):
        found = case.rank(method)
        assert found.low <= truth <= found.high, case
        assert truth <= sum(group.bound for group in found.groups), case
        assert found.low == found.high or method in ("structured", "generic")


def test_random_layers_meet_every_way_to_settle_a_rank() -> None:
    ways: list[Method] = ["auto", "structured"]
    some = [case for case, _ in random_cases(SEEDS[0])[:30]]
    methods = {group.method for case in some for way in ways for group in case.rank(way).groups}
    assert methods == {"exact", "dense", "structured", "bound"}


@pytest.mark.parametrize("case", HAND_MADE, ids=str)
def test_an_interval_holds_the_rank_however_little_work_is_allowed(case: Case) -> None:
    for flops in (1.0, 1e5, 1e12):
        found = case.rank("structured", flops=flops)
        assert found.low <= case.true_rank <= found.high


def test_work_that_is_not_allowed_leaves_a_bound() -> None:
    """1,200 inputs."""
    case = plain("wide", nn.Conv2d(3, 6, 3), 20, 20)
    ranks = [
        case.rank("structured", flops=1.0),
        case.rank("structured"),
        case.rank("auto", flops=1.0),
        case.rank("generic"),
    ]
    groups = [rank.groups[0] for rank in ranks]
    known = [(group.low, group.high) for group in groups]
    assert known == [(0, 1200), (1200, 1200), (0, 1200), (0, 1200)]
    assert [group.method for group in groups] == ["bound", "structured", "bound", "bound"]


def test_eigenvalues_show_a_nullity_that_the_bound_does_not_know() -> None:
    """Without gradients, five filters overdetermine the padded edges but nothing inside."""
    layer, shape = nn.Conv2d(2, 5, 3, stride=2, padding=2), (9, 9)
    case = plain("edges", layer, *shape)
    found = replace(case, deltas=0 * case.deltas).rank("structured").groups[0]
    truth = replace(case, deltas=0 * case.deltas).true_rank
    assert (found.low, found.high, found.method) == (truth, truth + 18, "bound")
    assert found.bound == truth + 18
    system = system_of(replace(case, deltas=0 * case.deltas))
    assert system.gram_flops(found.bound) < system.eigen_flops
    cheap = replace(case, deltas=0 * case.deltas).rank("structured", flops=system.eigen_flops - 1)
    assert (cheap.low, cheap.high) == (0, found.bound), "no factor, and eigenvalues cost too much"


def test_output_gradients_that_determine_every_channel_need_no_filters() -> None:
    """Nine gradients by nine taps at thirty positions; the filters know 270 of 1,200 inputs."""
    case = plain("all", nn.Conv2d(40, 9, 3, padding=1), 6, 5)
    found = case.rank(flops=1.0).groups[0]
    assert (found.low, found.high, found.method) == (1200, 1200, "structured")
    dead = replace(case, deltas=case.deltas * (torch.arange(9) < 3)[:, None, None])
    assert dead.rank(flops=1.0).groups[0].method != "structured"


def test_groups_add_up() -> None:
    """A grouped convolution is as many convolutions beside each other."""
    case = plain("groups", nn.Conv2d(4, 6, 3, groups=2, stride=2), 7, 7)
    geometry = geometry_of(case.layer, case.shape)
    halves = zip(case.layer.weight.detach().chunk(2), case.deltas.flatten(1).chunk(2), strict=True)
    ranks = [convolution_rank(weight, deltas, geometry).high for weight, deltas in halves]
    assert case.rank().high == sum(ranks)


def test_groups_share_the_work() -> None:
    """Of two groups each may take half."""
    case = plain("halves", nn.Conv2d(4, 6, 3, groups=2), 8, 8)
    need = 128**3 / 3 + 20 * 36 * 18**2
    assert {group.method for group in case.rank("structured", 2 * need).groups} == {"structured"}
    assert {group.method for group in case.rank("structured", 1.9 * need).groups} == {"bound"}


def test_no_global_randomness_is_used() -> None:
    case = plain("wide", nn.Conv2d(3, 6, 3), 20, 20)
    before = torch.get_rng_state()
    case.rank("structured")
    assert torch.equal(before, torch.get_rng_state())


def test_dense_refuses_what_does_not_fit_in_memory() -> None:
    case = plain("large", nn.Conv2d(3, 8, 3, padding=1), 45, 45)
    with pytest.raises(
        NotApplicable, match=r"would take 0\.798 GB as a dense matrix; use --method"
    ):
        case.rank("dense")


def test_null_directions_that_no_zero_or_tie_shows_are_seen() -> None:
    """Each channel's 2^i passes no filter and no output gradient, and no zero or tie says so.

    Eigenvalues show three directions, and singular values that these are null.
    """
    length = 200
    layer = nn.Conv1d(3, 3, 2, bias=False).double()
    weight = torch.zeros_like(layer.weight)
    weight[range(3), range(3)] = torch.tensor([[2, -1], [1.4, -0.7], [-1.8, 0.9]]).double()
    layer.weight = nn.Parameter(weight)
    powers = 2.0 ** (torch.arange(length - 1, dtype=torch.float64) - length + 2)
    deltas = torch.randn(
        length - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    deltas[-1] = -(deltas * powers)[:-1].sum()
    case = Case("root", layer, (length,), deltas.expand(3, -1))
    found = case.rank().groups[0]
    assert found.bound == 600
    assert (found.low, found.high) == (597, 597)
    bounded = case.rank(flops=1e9).groups[0]
    assert (bounded.low, bounded.high, bounded.method) == (597, 600, "bound")
