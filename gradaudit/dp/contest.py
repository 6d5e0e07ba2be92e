"""Which record plays: random, nearest to the worst one, crafted; their gaps side by side."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.dp.canaries import craft
from gradaudit.dp.domain import Domain
from gradaudit.dp.landscape import Canary, Landscape
from gradaudit.errors import UsageError
from gradaudit.progress import Advance


@dataclass(frozen=True)
class Effort:
    """How hard crafting tries.

    Attributes:
        restarts: starts of the ascent; none leave crafting out.
        iterations: steps of the ascent.
        pool: ordinary records that are looked at for a place to start from.
    """

    restarts: int = 16
    iterations: int = 200
    pool: int = 256


@dataclass(frozen=True)
class Contest:
    """The records that could have played, by kind, and the one that does.

    Attributes:
        contestants: by kind: random, nearest and crafted, and the record that was asked for.
        played: the one that plays.
        typical: gaps of ordinary records, ascending, (records,).
    """

    contestants: dict[str, Canary]
    played: Canary
    typical: Tensor


def hold_contest(
    landscape: Landscape,
    domain: Domain,
    records: Records,
    wanted: str,
    effort: Effort,
    seed: np.random.SeedSequence,
    advance: Advance,
) -> Contest:
    """Measure the gaps of ordinary records, craft canaries from them, and choose who plays.

    Args:
        landscape: what the gap depends on.
        domain: what a crafted record may look like.
        records: the data set.
        wanted: ``random``, ``crafted`` or the index of a record.
        effort: how hard crafting tries.
        seed: draws the random record and the starts.
        advance: is told of every restart, in each stage.

    Raises:
        UsageError: ``wanted`` is none of these, or crafting is left out but wanted.
    """
    index = expect_record(wanted, len(records), effort)
    inputs = records.inputs.flatten(1)
    pool = np.random.default_rng(seed).permutation(len(records))[: effort.pool]
    ordinary = landscape.canaries("random", inputs[pool].to(torch.float64), records.labels[pool])
    contestants = {"random": ordinary[0]}
    if effort.restarts:
        starts = _starts(ordinary, effort.restarts)
        canary = craft(
            landscape,
            domain,
            torch.stack([start.inputs for start in starts]),
            torch.stack([start.label for start in starts]),
            iterations=effort.iterations,
            advance=advance,
        )[0]
        near = int(domain.apart(inputs.to(torch.float64), canary.inputs).argmin())
        contestants |= {"nearest": _as_it_is(landscape, "nearest", records, near)}
        contestants |= {"crafted": canary}
    if index is not None:
        contestants |= {wanted: _as_it_is(landscape, wanted, records, index)}
    typical = torch.tensor([canary.gap for canary in ordinary]).sort().values
    return Contest(contestants, contestants[wanted], typical)


def expect_record(wanted: str, records: int, effort: Effort) -> int | None:
    """The index of the record that is asked for; None for ``random`` and ``crafted``.

    Raises:
        UsageError: it is none of these, or crafting is left out but wanted.
    """
    if wanted == "crafted" and not effort.restarts:
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
    """Half records with the largest gaps, half any; in turns."""
    best = sorted(ordinary, key=lambda canary: -canary.gap)
    turns = [canary for pair in zip(best, ordinary, strict=True) for canary in pair]
    return [turns[i % len(turns)] for i in range(restarts)]


def _as_it_is(landscape: Landscape, kind: str, records: Records, index: int) -> Canary:
    rows = slice(index, index + 1)
    inputs = records.inputs[rows].flatten(1).to(torch.float64)
    return landscape.canaries(kind, inputs, records.labels[rows])[0]
