"""Canaries whose updates join the clients' mean through the same defenses."""

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.federation.canaries import Canaries, pieces
from gradaudit.federation.contributions import Contribution
from gradaudit.randomness import torch_rng
from gradaudit.sharing.protocol import SharingProtocol

_ENDLESS = 1e12


@dataclass(kw_only=True)
class CanaryClients(Canaries):
    """The canaries of ``gradaudit train``.

    Attributes:
        norm: of an update; None for the median of the clients' own, round by round.
        records: what each counts as, when updates are averaged.
        sharing: what an update passes through before it is shared.
    """

    norm: float | None
    records: int
    sharing: SharingProtocol

    def joined(self, mean: Contribution, norms: list[float], round_: int) -> Contribution:
        """Returns the mean of clients and included canaries, and keeps the canaries' scores.

        Args:
            mean: of the clients.
            norms: of the clients' updates.
            round_: from 1.
        """
        length = self.norm if self.norm is not None else median(norms)
        sums = {name: tensor * mean.records for name, tensor in mean.update.items()}
        for numbers in pieces(np.flatnonzero(self.included)):
            sent = self._sent(numbers, length, round_)
            sums = {n: t + self.records * sent[n].sum(0).reshape(t.shape) for n, t in sums.items()}
        total = mean.records + self.records * int(self.included.sum())
        update = {name: tensor / total for name, tensor in sums.items()}
        self.see(update)
        return mean._replace(update=update)

    def _sent(self, numbers: NDArray[Any], length: float, round_: int) -> dict[str, Tensor]:
        """Returns what these canaries share, (canaries, elements) by parameter."""
        rows = {name: part * length for name, part in self.directions(numbers).items()}
        words = ("federation", "canaries", "defense", round_, int(numbers[0]))
        draws = torch_rng(self.seed, *words, device=self.device)
        chain = self.sharing.chain
        return chain.apply(rows, records=self.records, generators=lambda _i, _n: draws)


def longest(sharing: SharingProtocol) -> float | None:
    """Largest length of a client's update after clipping; None where nothing clips it."""
    endless = torch.tensor([_ENDLESS], dtype=torch.float64)
    factors_of = (
        defense.record_factors(endless) if defense.of_records else defense.batch_factors(endless)
        for defense in sharing.chain.acting
    )
    lengths = [float(factors * _ENDLESS) for factors in factors_of if factors is not None]
    return min(lengths, default=None)
