"""Chooses canaries: records whose release changes most when the private value is replaced.

Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning" (2024),
section 7: z* = argmax Dist(g_H0, g_H1), here over many restarts at once, over all pairs of values,
with the clipping in the objective, and for feasible records too. Beside the crafted one stand a
random record and the one nearest to the crafted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.domain import Domain
from gradaudit.audits.dp_audit.game.sensitivity import (
    Objective,
    RecordSensitivity,
    between_two_values,
)
from gradaudit.core.randomness import Seed, rng
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.executors.workers import shared_out
from gradaudit.progress import Advance

STAGES = 2
"""Times that the pair of values is chosen anew in the course of crafting."""
RATES = (0.1, 0.3, 1.0)
"""Adam's step sizes, in units of each column, dealt out among the restarts."""
POOL = 256
"""Ordinary records that are looked at for a place to start from, where no number is given."""
_DECAYS = (0.9, 0.999)
_TINY = 1e-30


@dataclass(frozen=True)
class Pair:
    """Two neighbouring inputs of the game.

    ``kind`` is random, nearest, crafted, or which one it is; ``null`` and ``alternative`` are
    indices of what they hold, and ``gap`` is the L2 distance of the two releases without noise.
    """

    kind: str
    null: int
    alternative: int
    gap: float


@dataclass(frozen=True)
class Canary(Pair):
    """A record for the game, and the pair of private values that changes its release most.

    Inputs are flattened, (positions,) float64.
    """

    inputs: Tensor
    label: Tensor


P = TypeVar("P", bound=Pair, covariant=True)


@dataclass(frozen=True)
class CanaryPairs(Generic[P]):
    """The pairs considered, by kind, and the pair that was chosen.

    ``by_kind`` has the random, nearest and crafted ones, and the one that was asked for;
    ``typical`` are gaps of ordinary pairs, ascending, (pairs,).
    """

    by_kind: Mapping[str, P]
    played: P
    typical: Tensor


def choose_canary(
    sensitivity: RecordSensitivity,
    domain: Domain,
    records: Records,
    options: DpAuditOptions,
    seed: Seed,
    advance: Advance,
    workers: int = 1,
    *,
    pool: int = POOL,
) -> CanaryPairs[Canary]:
    """Measure gaps of ``pool`` ordinary records, craft canaries from them, and choose one to play.

    The seed draws the random record and the starts; ``advance`` is called for every restart, in
    each stage, in which the workers share.

    Raises:
        UsageError: there is no such record, or crafting is left out but wanted.
    """
    index = expect_record(options, len(records))
    inputs = records.inputs.flatten(1)

    def held(kind: str, rows: list[int]) -> list[Canary]:
        return as_they_are(sensitivity, kind, inputs[rows].to(torch.float64), records.labels[rows])

    looked_at = rng(seed, "pool").permutation(len(records))[:pool]
    ordinary = held("random", looked_at.tolist())
    by_kind = {"random": ordinary[0]}
    if options.restarts:
        starts = _starts(ordinary, options.restarts)
        begin = torch.stack([start.inputs for start in starts])
        labels = torch.stack([start.label for start in starts])
        crafted = craft(sensitivity, domain, begin, labels, options.iterations, advance, workers)[0]
        near = int(domain.apart(inputs.to(torch.float64), crafted.inputs).argmin())
        by_kind |= {"nearest": held("nearest", [near])[0], "crafted": crafted}
    if index is not None:
        by_kind[options.record] = held(options.record, [index])[0]
    typical = torch.tensor([canary.gap for canary in ordinary]).sort().values
    return CanaryPairs(by_kind, by_kind[options.record], typical)


def expect_record(options: DpAuditOptions, records: int) -> int | None:
    """The index of the record that is asked for; None for ``random`` and ``crafted``.

    Raises:
        UsageError: it is none of these, or crafting is left out but wanted.
    """
    wanted = options.record
    if wanted == "crafted" and not options.restarts:
        raise UsageError(
            "--restarts 0 leaves crafting out, but --record crafted needs it; give at least one, "
            "or --record random"
        )
    if wanted in ("random", "crafted"):
        return None
    if not wanted.isdecimal():
        raise UsageError(f"--record {wanted}: write random, crafted or the index of a record")
    if int(wanted) >= records:
        raise UsageError(f"--record {wanted}: the last of {records} records is {records - 1}")
    return int(wanted)


def _starts(ordinary: list[Canary], restarts: int) -> list[Canary]:
    """Choose starts: records with the largest gaps and random records, alternating."""
    best = sorted(ordinary, key=lambda canary: -canary.gap)
    turns = chain.from_iterable(zip(best, ordinary, strict=True))
    return list(islice(cycle(turns), restarts))


def as_they_are(
    sensitivity: RecordSensitivity, kind: str, inputs: Tensor, labels: Tensor
) -> list[Canary]:
    """Make pairs of unchanged records: the value each has, and the one that changes it most."""
    held = sensitivity.column.value_in(inputs)
    table = between_two_values(sensitivity.gaps(inputs, labels))
    gaps, other = table[torch.arange(len(inputs)), held.cpu()].max(dim=1)
    rows = zip(held.tolist(), other.tolist(), gaps.tolist(), inputs, labels, strict=True)
    return [Canary(kind, *row) for row in rows]


def craft(
    sensitivity: RecordSensitivity,
    domain: Domain,
    starts: Tensor,
    labels: Tensor,
    iterations: int,
    advance: Advance,
    workers: int = 1,
) -> list[Canary]:
    """Craft a canary from every start by gradient ascent, the largest gap first.

    The sensitivity's distances are maximised from equal shares of the starts; all canaries are
    judged by the gap of their releases. ``starts`` are records (restarts, positions), whose labels
    (restarts,) stay; ``advance`` is called for every restart that ends a stage. The workers
    share in the distances.
    """
    inputs = sensitivity.gradients.view.cast(starts).clone()
    parts = torch.arange(len(starts)).tensor_split(len(sensitivity.distances))
    shares = [
        (distance, rows, int(rows[0] - part[0]))
        for distance, part in zip(sensitivity.distances, parts, strict=True)
        for rows in (torch.split(part, sensitivity.records_at_once(2)) if len(part) else ())
    ]
    steps = iterations // STAGES
    for _ in range(STAGES):
        pairs = _largest_pairs(sensitivity.gaps(inputs, labels))[0]
        tasks = []
        for distance, rows, first in shares:
            objective = sensitivity.objective(distance, pairs[rows], labels[rows])
            tasks.append(partial(_ascend_some, objective, domain, inputs[rows], steps, first))
        reached = shared_out(tasks, workers, advance)
        for (_, rows, _), some in zip(shares, reached, strict=True):
            inputs[rows] = some
    pairs, gaps = _largest_pairs(sensitivity.gaps(inputs, labels))
    inputs = inputs.cpu()
    facts = [*zip(*pairs.T.tolist(), gaps.tolist(), inputs, labels, strict=True)]
    return [Canary("crafted", *facts[i]) for i in gaps.argsort(descending=True).tolist()]


def _ascend_some(
    objective: Objective, domain: Domain, inputs: Tensor, steps: int, first: int, advance: Advance
) -> Tensor:
    reached = ascend(objective, domain, inputs, steps, first)
    advance(len(inputs))
    return reached


def ascend(
    objective: Objective, domain: Domain, starts: Tensor, iterations: int, first: int = 0
) -> Tensor:
    """Maximise an objective from every start at once; no record ends worse than it began.

    Adam (Kingma and Ba 2015) with a step size of its own for each start, as the best one differs
    from model to model by a factor of ten. What Adam moves is projected into the domain before it
    is looked at, and the slope is passed straight through the projection (Bengio et al. 2013), so
    that categories are switched too; a category's positions share their second moment. The
    objective, (records, positions) to (records,), is evaluated ``iterations`` times with its
    gradient. Starts (records, positions) are in the domain; of each the best that it came by is
    returned. ``first`` is the number of the first of them among all that the step sizes are dealt
    out to.
    """
    domain = domain.to(starts)
    dealt = torch.arange(first, first + len(starts)) % len(RATES)
    steps = torch.tensor(RATES)[dealt, None].to(starts) * domain.unit
    moving, best = starts, starts
    value, slope = _value_and_slope(objective, starts)
    slopes, second = torch.zeros_like(starts), torch.zeros_like(starts)
    for iteration in range(1, iterations + 1):
        slopes = torch.lerp(slope, slopes, _DECAYS[0])
        second = torch.lerp(slope.square(), second, _DECAYS[1])
        mean = slopes / (1 - _DECAYS[0] ** iteration)
        deviation = (domain.share(second) / (1 - _DECAYS[1] ** iteration)).sqrt()
        moving = domain.confine(moving + steps * mean / (deviation + _TINY))
        record = domain.project(moving)
        reached, slope = _value_and_slope(objective, record)
        best = torch.where((reached > value)[:, None], record, best)
        value = torch.maximum(value, reached)
    return best


def _value_and_slope(objective: Objective, inputs: Tensor) -> tuple[Tensor, Tensor]:
    leaf = inputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = objective(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().nan_to_num(-torch.inf), slope.nan_to_num(0, 0, 0)


def _largest_pairs(tables: Tensor) -> tuple[Tensor, Tensor]:
    """Find the two values with the largest gap, (records, 2), and the gap, (records,)."""
    values = tables.shape[1]
    gaps, flat = between_two_values(tables).flatten(1).max(dim=1)
    return torch.stack([flat // values, flat % values], dim=1), gaps
