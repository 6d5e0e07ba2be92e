"""What an adversary looks at: the released updates, and those that it computes itself."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.inference.deal import Deal
from gradaudit.defenses.modules.target import seen_by_outsiders
from gradaudit.loading.records import Records
from gradaudit.target import Layer, Target
from gradaudit.updates.observer import Observer
from gradaudit.updates.sharing import Sharing

FloatArray = NDArray[np.floating]
_RELEASED, _OWN = 1, 2


@dataclass(frozen=True)
class Sight:
    """One round as an adversary sees it.

    Attributes:
        target: the round's model.
        records: as the clients feed them to it.
        layers: whose updates are looked at.
        sharing: how clients share.
        reduce: of each layer's update, as ``Observer`` takes it.
        memory: bytes that one chunk of work may take.
        seed: of noise and reductions.
    """

    target: Target
    records: Records
    layers: tuple[Layer, ...]
    sharing: Sharing
    reduce: str | None = None
    memory: int = 1 << 30
    seed: int = 0

    def features(
        self, deal: Deal, *, adaptive: bool
    ) -> Iterator[tuple[str | None, FloatArray, FloatArray]]:
        """Layer by layer, then of all layers (None): the adversary's own batches and the released.

        Args:
            deal: whose batches.
            adaptive: whether the adversary defends its own updates as the clients do.

        Yields:
            The layer's name, (own batches, features) and (trials, features).
        """
        fit = deal.parts.shadow
        own = self._observer(adaptive=adaptive).features(
            deal.own, fit=fit, seed=self._noise(_OWN), others=deal.parts.shadow
        )
        released = self._observer(adaptive=True).features(
            deal.observed.indices, fit=fit, seed=self._noise(_RELEASED), others=_others(deal)
        )
        wholes: list[tuple[FloatArray, FloatArray]] = []
        for (layer, mine), (_, theirs) in zip(own, released, strict=True):
            wholes.append((mine.cpu().numpy(), theirs.cpu().numpy()))
            yield layer.name, *wholes[-1]
        if len(wholes) == 1:
            yield None, *wholes[0]
            return
        mine_of_all, theirs_of_all = zip(*wholes, strict=True)
        yield None, np.concatenate(mine_of_all, axis=1), np.concatenate(theirs_of_all, axis=1)

    def _observer(self, *, adaptive: bool) -> Observer:
        target, sharing = self.target, self.sharing
        if not adaptive:
            target, sharing = seen_by_outsiders(target), replace(sharing, defenses=())
        return Observer(
            target,
            self.records,
            self.layers,
            sharing=sharing,
            reduce=self.reduce,
            memory=self.memory,
            seed=self.seed,
        )

    def _noise(self, whose: int) -> int:
        state = np.random.SeedSequence(self.seed, spawn_key=(whose,)).generate_state(1, np.uint64)
        return int(state[0]) >> 1


def _others(deal: Deal) -> NDArray[np.int64]:
    """Records of the other clients: not the adversary's, nor those that are guessed."""
    return deal.parts.test if len(deal.parts.test) else deal.parts.private
