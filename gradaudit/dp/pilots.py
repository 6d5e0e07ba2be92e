"""What uncounted releases tell of a mechanism whose law is not known.

Releases under both hypotheses from the same seed share their noise where it is additive and comes
from the generators; their difference is then free of it.
"""

import numpy as np
import torch
from torch import Tensor

from gradaudit.dp.board import Board, Ruler, releases_in_chunks, way
from gradaudit.dp.mechanisms import Mechanism
from gradaudit.dp.randomness import reproducible
from gradaudit.errors import AuditError

PILOT_SHARE = 4
"""One pilot release for so many trials."""


def pilot_releases(trials: int) -> int:
    """How many releases under each hypothesis set a threshold, or a direction."""
    return -(-trials // PILOT_SHARE)


class CommonNoise:
    """A mechanism with its randomness held fast: the same seed for every release.

    A stand-in for the noiseless release where only differences count; differentiable where the
    mechanism is.
    """

    def __init__(self, mechanism: Mechanism, seed: np.random.SeedSequence) -> None:
        self.mechanism = mechanism
        self.seed = seed

    def __call__(self, record: Tensor, companions: Tensor) -> Tensor:
        """Releases of the record's variants (…, elements), all with the same noise, in float64."""
        flat = record.reshape(-1, record.shape[-1])
        boards = (torch.cat([row[None], companions]).to(torch.float32) for row in flat)
        released = torch.stack([self._release(batch) for batch in boards])
        return released.to(torch.float64).view(record.shape)

    def differentiable(self, batch: Tensor) -> bool:
        """Whether a release can be differentiated by the gradients it is made from."""
        leaf = batch.to(torch.float32).clone().requires_grad_()
        try:
            return self._release(leaf).requires_grad
        except AuditError:  # as of code that turns to numpy
            return False

    def repeats(self, batch: Tensor) -> bool:
        """Whether the seed determines the release, as it must for the noise to cancel."""
        gradients = batch.to(torch.float32)
        return torch.equal(self._release(gradients), self._release(gradients))

    def _release(self, batch: Tensor) -> Tensor:
        with reproducible(self.seed, batch.device) as generator:
            return self.mechanism.release(batch, generator)


def pilot_ruler(
    mechanism: Mechanism, board: Board, pilots: int, seed: np.random.SeedSequence, memory: int
) -> Ruler:
    """The ruler of a mechanism that is known by its releases only.

    The centre is the mean of ``pilots`` releases under the null hypothesis. The direction is free
    of noise where it cancels, and else the difference of two such means; ``board.way`` says what
    it is where that is nothing.
    """
    of_common, of_null, of_other = seed.spawn(3)
    centre = _mean(mechanism, board.batch(board.null), pilots, of_null, memory)
    common = CommonNoise(mechanism, of_common)
    if common.repeats(board.batch(board.null)):
        released = common(torch.cat([board.null[None], board.alternatives]), board.companions)
        moved = released[1:] - released[0]
    else:
        each = -(-pilots // len(board.alternatives))
        seeds = of_other.spawn(len(board.alternatives))
        means = [
            _mean(mechanism, board.batch(record), each, own, memory)
            for record, own in zip(board.alternatives, seeds, strict=True)
        ]
        moved = torch.stack(means) - centre
    return Ruler(centre, way(moved, board))


def _mean(
    mechanism: Mechanism, batch: Tensor, count: int, seed: np.random.SeedSequence, memory: int
) -> Tensor:
    total = torch.zeros(batch.shape[1], dtype=torch.float64, device=batch.device)
    with reproducible(seed, batch.device) as generator:
        for chunk in releases_in_chunks(mechanism, batch, count, generator, memory):
            total += chunk.to(torch.float64).sum(dim=0)
    return total / count
