"""Canary records: those whose released gradient moves most when the private value is replaced.

Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
section 7: z* = argmax Dist(g_H0, g_H1), here over many restarts at once, over all pairs of values,
with the clipping in the objective, and for feasible records too.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradaudit.dp.domain import Domain
from gradaudit.dp.landscape import Canary, Distance, Landscape, between_two_values
from gradaudit.progress import Advance

STAGES = 2
"""How often the pair of values is chosen anew in the course of crafting."""

RATES = (0.1, 0.3, 1.0)
"""Adam's step sizes, in units of each column, dealt out among the restarts."""

_DECAYS = (0.9, 0.999)
_TINY = 1e-30


def craft(
    landscape: Landscape,
    domain: Domain,
    starts: Tensor,
    labels: Tensor,
    *,
    iterations: int,
    advance: Advance,
) -> list[Canary]:
    """Canaries from every start, by ascent, the largest gap first.

    The landscape's distances are maximised from equal shares of the starts; all canaries are
    judged by the gap of their releases.

    Args:
        landscape: what the gap depends on.
        domain: where the inputs may go.
        starts: (restarts, positions) records to start from.
        labels: (restarts,) their labels, which stay.
        iterations: steps of ascent.
        advance: is told of every restart that is through with a stage.
    """
    inputs = landscape.gradients.view.cast(starts).clone()
    for _ in range(STAGES):
        pairs = _largest_pairs(landscape.gaps(inputs, labels))[0]
        for distance, rows in _shares(landscape, len(starts)):
            objective = landscape.objective(distance, pairs[rows], labels[rows])
            inputs[rows] = ascend(objective, domain, inputs[rows], iterations // STAGES)
            advance(len(rows))
    pairs, gaps = _largest_pairs(landscape.gaps(inputs, labels))
    inputs = inputs.cpu()
    return [
        Canary("crafted", inputs[i], labels[i], int(pairs[i, 0]), int(pairs[i, 1]), float(gaps[i]))
        for i in gaps.argsort(descending=True).tolist()
    ]


def _shares(landscape: Landscape, starts: int) -> Iterator[tuple[Distance, Tensor]]:
    """Each distance with the starts that maximise it, in chunks that fit the memory."""
    shares = torch.arange(starts).tensor_split(len(landscape.distances))
    chunk = landscape.records_at_once(2)
    for distance, rows in zip(landscape.distances, shares, strict=True):
        for first in range(0, len(rows), chunk):
            yield distance, rows[first : first + chunk]


def ascend(
    objective: Callable[[Tensor], Tensor], domain: Domain, starts: Tensor, iterations: int
) -> Tensor:
    """Maximise an objective from every start at once; no record ends worse than it began.

    Adam (Kingma and Ba 2015) with a step size of its own for each start, as the best one differs
    from model to model by a factor of ten. What Adam moves is projected into the domain before
    it is looked at, and the slope is passed straight through the projection (Bengio et al. 2013),
    so that categories are switched too; a category's positions share their second moment.

    Args:
        objective: (records, positions) to (records,), differentiable.
        domain: where the records may be.
        starts: (records, positions) in the domain.
        iterations: evaluations of the objective and its gradient.

    Returns:
        (records, positions), the best that each start came by.
    """
    rates = torch.tensor(RATES).to(starts)[torch.arange(len(starts)) % len(RATES), None]
    steps = rates * domain.unit.to(starts)
    moving, best = starts, starts
    value, slope = _value_and_slope(objective, starts)
    first, second = torch.zeros_like(starts), torch.zeros_like(starts)
    for iteration in range(1, iterations + 1):
        first = torch.lerp(slope, first, _DECAYS[0])
        second = torch.lerp(slope.square(), second, _DECAYS[1])
        mean = first / (1 - _DECAYS[0] ** iteration)
        deviation = (domain.share(second) / (1 - _DECAYS[1] ** iteration)).sqrt()
        moving = domain.confine(moving + steps * mean / (deviation + _TINY))
        record = domain.project(moving)
        reached, slope = _value_and_slope(objective, record)
        best = torch.where((reached > value)[:, None], record, best)
        value = torch.maximum(value, reached)
    return best


def _value_and_slope(
    objective: Callable[[Tensor], Tensor], inputs: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = inputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = objective(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().nan_to_num(-torch.inf), slope.nan_to_num(0, 0, 0)


def _largest_pairs(tables: Tensor) -> tuple[Tensor, Tensor]:
    """The two values of the largest gap, (records, 2), and the gap, (records,)."""
    values = tables.shape[1]
    gaps, flat = between_two_values(tables).flatten(1).max(dim=1)
    return torch.stack([flat // values, flat % values], dim=1), gaps
