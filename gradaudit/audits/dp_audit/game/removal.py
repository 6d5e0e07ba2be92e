"""The game of a record and none: batches that differ in size."""

from dataclasses import replace

import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.canary import Canary, CanaryPairs
from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise, Hypotheses
from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.randomness import Seed

NO_RECORD = "no record"


def without_record(
    mechanism: Mechanism, canaries: CanaryPairs[Canary], hypotheses: Hypotheses, seed: Seed
) -> tuple[CanaryPairs[Canary], Hypotheses]:
    """The played record against its absence, with that of its two values which moves more.

    Gaps are distances of the releases with common noise, or the gradient's norm where no seed holds
    the noise fast. The index −1 stands for ``NO_RECORD``, the last of a game's names then.

    Raises:
        AuditError: the mechanism fails, as on one record less.
    """
    played = canaries.played
    values = torch.stack([hypotheses.null, hypotheses.alternatives[0]])
    moved = _moved(CommonNoise(mechanism, seed), values, hypotheses.companions)
    best = int(moved.argmax())
    held = (played.null, played.alternative)[best]
    pair = replace(played, null=held, alternative=-1, gap=float(moved[best]))
    found = Hypotheses(values[best], torch.zeros_like(values[:1]), hypotheses.companions, True)
    return replace(canaries, played=pair), found


def _moved(common: CommonNoise, values: Tensor, companions: Tensor) -> Tensor:
    """How far each of the gradients (values, elements) moves the release of the companions."""
    moved = values
    if common.repeats(companions):
        moved = common(values, companions) - common.of(companions)
    lengths: Tensor = torch.linalg.vector_norm(moved, dim=1)
    return lengths
