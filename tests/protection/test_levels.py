"""Noise levels against closed forms and a grid of all levels, on laws whose floors are known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from scipy.stats import t

from gradaudit.audits.floor.functionals import Functional, nats, share
from gradaudit.audits.floor.information import Information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.protection.floor_rules import FloorBound, FloorBounds
from gradaudit.protection.guards import HIDE, OPEN, Guard, Protection
from gradaudit.protection.noise_search import NoiseSearch

SIZE = 4
PRIOR = GaussianPrior.of_covariance(
    torch.zeros(SIZE), torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5])), SIZE
)
LAYERS = ("a", "b", "c")
WEIGHTS = {"a": 0.2, "b": 0.5, "c": 0.3}
SIZES = {"a": 1.0, "b": 0.1, "c": 10.0}


def alike(information: torch.Tensor) -> Information:
    """Information that is the same in both halves of two units, and no genie."""
    return Information(information.expand(2, 2, -1, -1), torch.eye(SIZE, dtype=torch.float64))


def informations(seed: int = 0) -> Mapping[str, Information]:
    """What each layer tells at unit noise: alike in all units, so that intervals are points."""
    draw = torch.Generator().manual_seed(seed)
    moves = {n: torch.randn(3, SIZE, generator=draw, dtype=torch.float64) for n in LAYERS}
    return {
        n: alike(s**2 * j.mT @ j) for (n, j), s in zip(moves.items(), SIZES.values(), strict=True)
    }


def bound(functional: Functional, limit: float, row: str | None = None) -> FloorBound:
    known = informations()
    told = known if row is None else {row: known[row]}
    return FloorBound(row, limit, -1 if functional is share else 1, functional, told, PRIOR)


def numbers(functional: Functional, precisions: torch.Tensor) -> torch.Tensor:
    """Densely, of the mean information under (…, layers) of 1/σ²; 0 where one is hidden."""
    told = torch.stack([parts.mean for parts in informations().values()])
    whole = torch.eye(SIZE, dtype=torch.float64) + torch.einsum("...l,lij->...ij", precisions, told)
    if functional is nats:
        logarithms: torch.Tensor = torch.linalg.slogdet(whole)[1] / 2
        return logarithms
    variances = torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    errors: torch.Tensor = torch.linalg.inv(whole).diagonal(dim1=-2, dim2=-1) @ variances
    return errors / variances.sum()


def within(functional: Functional, limit: float, precisions: torch.Tensor) -> torch.Tensor:
    found = numbers(functional, precisions)
    return found <= limit if functional is nats else found >= limit


def cost(protection: Protection) -> float:
    lost = {n: _lost(SIZES[n], guard) for n, guard in protection}
    return sum(WEIGHTS[n] * lost[n] for n in lost)


def _lost(size: float, guard: Guard) -> float:
    return 1.0 if guard == HIDE else guard.amount**2 / (size**2 + guard.amount**2)


def precisions(protection: Protection) -> torch.Tensor:
    shares = [0.0 if guard == HIDE else guard.amount**-2 for guard in protection.guards]
    return torch.tensor(shares, dtype=torch.float64)


def on_a_grid(rules: Sequence[tuple[Functional, float]]) -> float:
    """The least cost of all levels of a grid, and of hiding, that keep every bound.

    A coarse grid over all levels is followed by a fine one, of steps of 1/20, around its best.
    """
    logs = torch.cat([torch.linspace(-4, 4, 17), torch.tensor([math.inf])]).double()
    _, best = _cheapest(rules, [logs] * len(LAYERS))
    step = torch.linspace(-0.5, 0.5, 21).double()
    return _cheapest(rules, [log + step if log.isfinite() else log[None] for log in best])[0]


def _cheapest(
    rules: Sequence[tuple[Functional, float]], logs: Sequence[torch.Tensor]
) -> tuple[float, torch.Tensor]:
    """The least cost that keeps every bound, and the logarithms of its levels."""
    grid = torch.cartesian_prod(*logs).exp()
    lost = torch.where(grid.isinf(), 1.0, grid.square() / (1 + grid.square()))
    costs = lost @ torch.tensor([WEIGHTS[n] for n in LAYERS], dtype=torch.float64)
    shares = (grid * torch.tensor([SIZES[n] for n in LAYERS], dtype=torch.float64)) ** -2.0
    kept = torch.stack([within(*rule, shares) for rule in rules]).all(dim=0)
    least = torch.where(kept, costs, math.inf).argmin()
    return float(costs[least]), grid[least].log()


RULES: list[tuple[tuple[Functional, float], ...]] = [
    ((share, 0.5),),
    ((nats, 1.0),),
    ((share, 0.8), (nats, 0.7)),
]


@pytest.mark.parametrize("rules", RULES, ids=["share", "nats", "both"])
def test_no_level_of_a_fine_grid_is_cheaper(rules: tuple[tuple[Functional, float], ...]) -> None:
    bounds = FloorBounds(tuple(bound(*rule) for rule in rules))
    noise_search = NoiseSearch(bounds, WEIGHTS, SIZES)
    found = noise_search.completed(Protection.uniform(LAYERS))
    assert found is not None
    assert all(within(*rule, precisions(found)) for rule in rules)
    assert noise_search.holds(found)
    assert cost(found) <= on_a_grid(rules) * 1.001
    same = noise_search.uniform(LAYERS)
    assert same is not None
    assert cost(found) <= cost(Protection.uniform(LAYERS, same)) + 1e-9


def test_rules_of_layers_are_kept_one_by_one() -> None:
    """By the closed form of a diagonal information: Σ λ_j / (1 + a_j/σ²) = limit · Σ λ_j."""
    told = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5])).double()
    flat = GaussianPrior.of_covariance(torch.zeros(SIZE), torch.eye(SIZE), SIZE)
    rules = [
        FloorBound(n, 0.5, -1, share, {n: alike(told) * SIZES[n] ** 2}, flat) for n in ("a", "c")
    ]
    noise_search = NoiseSearch(FloorBounds(tuple(rules)), WEIGHTS, SIZES)
    found = noise_search.completed(Protection.uniform(LAYERS))
    assert found is not None
    a, b, c = found.guards
    assert b == OPEN
    reached = sum(1 / (1 + x / a.amount**2) for x in (4.0, 2.0, 1.0, 0.5)) / 4
    assert reached == pytest.approx(0.5, abs=0.005)
    assert c.amount == pytest.approx(10 * a.amount, rel=0.01)


def test_what_has_no_floor_is_hidden_and_noise_that_is_there_is_kept() -> None:
    bounds = FloorBounds((bound(share, 0.5),), frozenset({"d"}))
    weights, sizes = {**WEIGHTS, "d": 0.1}, {**SIZES, "d": 1.0}
    noise_search = NoiseSearch(bounds, weights, sizes)
    before = Protection.uniform((*LAYERS, "d")).with_guard("c", Guard("noise", 300.0))
    assert noise_search.uniform(before.layers) is None
    assert not noise_search.holds(before)
    found = noise_search.completed(before)
    assert found is not None
    assert found.guards[3] == HIDE
    assert found.covers(before)
    assert noise_search.completed(Protection(("d",), (OPEN,))) is None


def test_a_margin_has_the_slope_that_it_says() -> None:
    """Against differences."""
    noise = {"a": 0.3, "b": -1.0, "c": 2.0}
    for each in (bound(share, 0.5), bound(nats, 2.0), bound(nats, 1.0, "b")):
        value, slopes = each.margin(noise)
        for name, slope in slopes.items():
            further = each.margin({**noise, name: noise[name] + 1e-6})[0]
            assert slope == pytest.approx((further - value) / 1e-6, rel=1e-4)
    assert each.margin({"a": 0.3}) == (math.inf, {})


def test_what_was_learned_keeps_more_distance() -> None:
    noise_search = NoiseSearch(FloorBounds((bound(share, 0.5),)), WEIGHTS, SIZES)
    before = noise_search.uniform(LAYERS)
    noise_search.learn(0.2)
    after = noise_search.uniform(LAYERS)
    assert before is not None
    assert after is not None
    kept = Protection.uniform(LAYERS, after)
    assert float(numbers(share, precisions(kept))) == pytest.approx(0.6, abs=0.005)
    assert after > before


@pytest.mark.parametrize("parts", [1, 2])
def test_the_distance_that_is_kept_is_that_of_new_records(parts: int) -> None:
    """Of two halves whose floors are 1 % more and less: of k parts (k + 1) times that variance."""
    whole = bound(share, 0.5)
    halves = [FloorBounds((replace(whole, limit=0.5 / (1 + d)),)) for d in (0.01, -0.01)]
    bounds = FloorBounds((whole,)).varied(halves, parts)
    noise_search = NoiseSearch(bounds, WEIGHTS, SIZES)
    same = noise_search.uniform(LAYERS)
    assert same is not None
    floor = float(numbers(share, precisions(Protection.uniform(LAYERS, same))))
    reserve = t.ppf(0.975, 2) * math.sqrt(parts + 1) * 0.01
    assert floor == pytest.approx(0.5 / (1 - reserve), rel=0.003)
