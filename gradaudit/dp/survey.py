"""What is played for: the batch, and how far a record's two values move its release."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.dp.attribute import PrivateColumn
from gradaudit.dp.contest import Effort
from gradaudit.dp.domain import DomainName
from gradaudit.dp.gradients import RecordGradients
from gradaudit.dp.landscape import Distance, Landscape, Mean, cosine_distance, squared_gap
from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.dp.pilots import CommonNoise
from gradaudit.errors import UsageError


@dataclass(frozen=True)
class Setup:
    """What is asked of a game, besides its rules.

    Attributes:
        record: random, crafted or an index.
        domain: what a crafted record may look like.
        mixture: whether the alternative draws from all other values (definition 7.2), or is the
            one that moves the release most.
        companions: other records in the batch.
        clip: Δ that a mechanism from a file is declared to clip to, for crafting.
        effort: how hard crafting tries.
    """

    record: str = "crafted"
    domain: DomainName = "feasible"
    mixture: bool = False
    companions: int = 0
    clip: float | None = None
    effort: Effort = field(default_factory=Effort)


def survey(
    gradients: RecordGradients,
    records: Records,
    column: PrivateColumn,
    mechanism: Mechanism,
    setup: Setup,
    memory: int,
    seed: np.random.SeedSequence,
) -> tuple[Landscape, str]:
    """What the gaps of records depend on, and how they are measured, in words."""
    of_batch, of_common = seed.spawn(2)
    companions = _companions(records, gradients, setup.companions, of_batch)
    first = gradients(records.inputs[:1].flatten(1), records.labels[:1])
    batch = torch.cat([first, companions])
    judge, gaps_from = _judge(mechanism, setup.clip, batch, of_common)
    distances = _distances(judge, setup.clip, batch, companions)
    return Landscape(gradients, column, judge, distances, companions, memory), gaps_from


def _companions(
    records: Records, gradients: RecordGradients, count: int, seed: np.random.SeedSequence
) -> Tensor:
    """Gradients (count, elements) of the rest of the batch, drawn without replacement."""
    if count >= len(records):
        raise UsageError(
            f"--companions {count}: there are {len(records)} records in all; give at most "
            f"{len(records) - 1}"
        )
    chosen = np.random.default_rng(seed).permutation(len(records))[:count]
    if not count:
        return torch.zeros(0, gradients.elements, dtype=torch.float64, device=gradients.device)
    with torch.no_grad():
        return gradients(records.inputs[chosen].flatten(1), records.labels[chosen])


def _judge(
    mechanism: Mechanism, clip: float | None, batch: Tensor, seed: np.random.SeedSequence
) -> tuple[Mean, str]:
    """What gaps are measured by, also in words."""
    if isinstance(mechanism, AdditiveMechanism):
        return mechanism.mean_of, "the noiseless release"
    common = CommonNoise(mechanism, seed)
    if common.repeats(batch):
        words = "the release" if mechanism.deterministic else "releases with common noise"
        return common, words
    words = "the declared clip" if clip else "gradients that nothing clips"
    return _clipped_mean(clip), words


def _distances(
    judge: Mean, clip: float | None, batch: Tensor, companions: Tensor
) -> tuple[Distance, ...]:
    """What crafting maximises: the gap itself, where it can be differentiated.

    Else guesses stand for it: a mechanism from a file may clip as declared, not at all, or to a
    bound nobody knows, for which the cosine stands.
    """
    if not isinstance(judge, CommonNoise):
        return squared_gap(judge, companions), cosine_distance
    guess = judge if judge.differentiable(batch) else _clipped_mean(clip)
    unclipped = squared_gap(_clipped_mean(None), companions)
    return squared_gap(guess, companions), unclipped, cosine_distance


def _clipped_mean(clip: float | None) -> Mean:
    return ClippedNoise(clip=clip or math.inf, sigma=0).mean_of
