"""What an adversary looks at: the released updates, and those that it computes itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.inference.deal import Deal
from gradaudit.attacks.inference.unaware import Looked, most_elements, unaware_features
from gradaudit.data.records import Records
from gradaudit.defenses.modules.target import seen_by_outsiders, with_other_secrets
from gradaudit.errors import UsageError
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.interceptor import Observer
from gradaudit.sharing.preparing import prepared
from gradaudit.sharing.protocol import Sharing
from gradaudit.sharing.reduction import parse_reduction
from gradaudit.sharing.visibility import Sight as Seen

FloatArray = NDArray[np.floating]
_RELEASED, _OWN, _SECRETS = 1, 2, 3


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
        wholes: list[tuple[FloatArray, FloatArray]] = []
        for layer, mine, theirs in self._by_layer(deal, adaptive=adaptive):
            wholes.append((mine.cpu().numpy(), theirs.cpu().numpy()))
            yield layer.name, *wholes[-1]
        if len(wholes) == 1:
            yield None, *wholes[0]
            return
        mine_of_all, theirs_of_all = zip(*wholes, strict=True)
        yield None, np.concatenate(mine_of_all, axis=1), np.concatenate(theirs_of_all, axis=1)

    def _by_layer(self, deal: Deal, *, adaptive: bool) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Each layer's features of the adversary's own batches and of the released ones."""
        known = adaptive or not self.sharing.chain.defenses
        apart = () if known else tuple(filter(self._turned, self.layers))
        together = tuple(layer for layer in self.layers if layer not in apart)
        own, released = (
            iter(())
            if not together
            else observer(together).features(
                looked.batches,
                fit=deal.parts.shadow,
                seed=looked.seed,
                others=looked.others,
                values=looked.values,
            )
            for observer, looked in (
                (partial(self._own, adaptive=adaptive), self._mine(deal)),
                (self._observer, self._theirs(deal)),
            )
        )
        for layer in self.layers:
            if layer in apart:
                yield layer, *self._unaware(layer, deal)
            else:
                yield layer, next(own)[1], next(released)[1]

    @property
    def note(self) -> str:
        """What the report should say of how updates are computed; empty if nothing."""
        return self._observer(self.layers).note

    def _seen(self, layer: Layer) -> Seen:
        return Seen.of(layer, self.sharing, parse_reduction(self.reduce), self.seed)

    def _turned(self, layer: Layer) -> bool:
        """Whether a layer's updates are reduced to principal components."""
        return self._seen(layer).reduction.kind == "pca"

    def _unaware(self, layer: Layer, deal: Deal) -> tuple[Tensor, Tensor]:
        """Of a layer too large for the memory a random part of the elements, the same for both."""
        seen = self._seen(layer)
        components = seen.reduction.size
        elements, plain = seen.elements, replace(self, reduce="none")
        most = most_elements(components, self.memory)
        if elements > most:
            elements = most
            fewer = replace(self.sharing, fraction=None, elements=elements)
            plain = replace(plain, sharing=fewer)

        def own(one: Layer) -> Observer:
            return plain._own((one,), adaptive=False)

        def released(one: Layer) -> Observer:
            return plain._observer((one,))

        return unaware_features(
            layer,
            elements,
            components,
            own,
            self._mine(deal),
            released,
            self._theirs(deal),
            fit=len(deal.shadow.labels),
            memory=self.memory,
        )

    def _mine(self, deal: Deal) -> Looked:
        """The adversary's own batches."""
        return Looked(deal.own, self._noise(_OWN), deal.parts.shadow, deal.own_values)

    def _theirs(self, deal: Deal) -> Looked:
        """The released ones."""
        released = deal.observed
        return Looked(released.indices, self._noise(_RELEASED), self._others(deal), released.labels)

    def _own(self, layers: Sequence[Layer], *, adaptive: bool) -> Observer:
        """What computes the adversary's own updates; the client's private part is not his."""
        if adaptive:
            draws = torch.Generator().manual_seed(self._noise(_SECRETS))
            return replace(self, target=with_other_secrets(self.target, draws))._observer(layers)
        sharing = replace(self.sharing, defenses=())
        target = seen_by_outsiders(self.target)
        return replace(self, target=target, sharing=sharing)._observer(layers)

    def _observer(self, layers: Sequence[Layer]) -> Observer:
        return Observer(
            self.target,
            self.records,
            layers,
            sharing=self.sharing,
            reduce=self.reduce,
            memory=self.memory,
            seed=self.seed,
        )

    def _others(self, deal: Deal) -> NDArray[np.int64]:
        """Records of the other clients: not the adversary's, nor those that are guessed."""
        if self.sharing.others and not len(deal.parts.test):
            raise UsageError(
                f"--others {self.sharing.others}: every record is the adversary's or is guessed, "
                "none is left for other clients; give more records (or users)"
            )
        return deal.parts.test

    def _noise(self, whose: int) -> int:
        state = np.random.SeedSequence(self.seed, spawn_key=(whose,)).generate_state(1, np.uint64)
        return int(state[0]) >> 1


def prepared_for(
    sharing: Sharing, target: Target, records: Records, deal: Deal, seed: int, memory: int
) -> Sharing:
    """The way of sharing with every ``perturb`` fitted to the shadow batches of a deal.

    Against user inference it is targeted at one of the shadow users (Li et al. 2024, 6.1).
    """
    labels = deal.shadow.labels
    return prepared(
        sharing,
        target,
        records,
        deal.shadow.indices,
        labels,
        int(labels.max()) + 1,
        seed=seed,
        towards=None if deal.candidates is None else 0,
        memory=memory,
    )
