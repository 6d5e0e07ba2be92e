"""An adversary's observations: the released updates and its own shadow updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.audits.attack_inference.split import GameSplit, IntArray
from gradaudit.core.latest import Latest
from gradaudit.core.randomness import number, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses.perturb import Perturb
from gradaudit.errors import UsageError
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.context import Context, context_of
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol, Visibility
from gradaudit.sharing.reduction import parse_reduction
from gradaudit.sharing.share import parameters_as_layers
from gradaudit.subject import seen_by_outsiders, with_other_secrets

_MOST = 1000
"""Updates that an adversary who does not know the defenses finds principal components on."""
_KEPT_SHARE = 256
"""One of so many parts of the memory is the most that a kept model may take."""


def prepared(
    sharing: SharingProtocol,
    target: Target,
    records: Records,
    batches: NDArray[np.int64],
    values: NDArray[np.int64],
    *,
    seed: int = 0,
    towards: int | None = None,
    memory: int = 1 << 30,
) -> SharingProtocol:
    """Fit every ``perturb`` defense in the way of sharing to updates of shadow batches.

    Args:
        sharing: how clients share; returned as it is where nothing needs fitting.
        target: the model of the round.
        records: the data.
        batches: (batches, k) shadow records.
        values: (batches,) private value of each batch, from 0; all of them occur.
        seed: of noise before the perturbation, and of the classifier.
        towards: the value that updates are to be taken for: against user inference that of a
            shadow user (Li et al. 2024, section 6.1).
        memory: bytes that one chunk of work may take.
    """
    chain = list(sharing.defenses)
    for index, defense in enumerate(chain):
        if isinstance(defense, Perturb):
            names = [n for n in sharing.parameters(target.model) if defense.defends(n)]
            before = replace(
                sharing, defenses=tuple(chain[:index]), others=0, fraction=None, elements=None
            )
            layers = parameters_as_layers(target, names)
            observer = Interceptor(
                target, records, layers, sharing=before, reduce="none", memory=memory, seed=seed
            )
            observed = observer.features(batches, fit=np.unique(batches), seed=seed)
            shadows = torch.cat([features for _, features in observed], dim=1)
            classes = int(values.max()) + 1
            labels = torch.from_numpy(np.asarray(values, dtype=np.int64))
            chain[index] = defense.prepare(shadows, labels, classes, seed, towards=towards)
    return replace(sharing, defenses=tuple(chain))


FloatArray = NDArray[np.floating]


class _ObservedBatches(NamedTuple):
    """Batches (batches, k) whose updates are observed, with other clients, seed and values."""

    batches: IntArray
    seed: int
    others: IntArray
    values: IntArray

    def features(
        self, interceptor: Interceptor, fit: IntArray | None = None
    ) -> Iterator[tuple[Layer, Tensor]]:
        return interceptor.features(
            self.batches, fit=fit, seed=self.seed, others=self.others, values=self.values
        )

    def pieces(
        self, interceptor: Interceptor, rows: int, chosen: IntArray | slice = slice(None)
    ) -> Iterator[Tensor]:
        """Yield one layer's features of the chosen batches, a limited number at a time."""
        batches, values = self.batches[chosen], self.values[chosen]
        for place, start in enumerate(range(0, len(batches), rows)):
            part = slice(start, start + rows)
            some = _ObservedBatches(batches[part], self.seed + place, self.others, values[part])
            ((_, updates),) = some.features(interceptor)
            yield updates


@dataclass(frozen=True)
class RoundObservation:
    """One round as an adversary sees it.

    Attributes:
        records: as the clients feed them to it.
        reduce: of each layer's update, as ``Interceptor`` takes it.
        memory: bytes that one chunk of work may take.
        latest: where the context is kept for other rounds and repetitions.
    """

    target: Target
    records: Records
    layers: tuple[Layer, ...]
    sharing: SharingProtocol
    reduce: str | None = None
    memory: int = 1 << 30
    seed: int = 0
    latest: Latest = field(default_factory=Latest, repr=False, compare=False)

    def features(
        self, split: GameSplit, *, adaptive: bool
    ) -> Iterator[tuple[str | None, FloatArray, FloatArray]]:
        """Yield each layer's features of own and released batches, then those of all layers.

        Args:
            split: whose batches.
            adaptive: whether the adversary defends its own updates as the clients do.

        Yields:
            The layer's name, (own batches, features) and (trials, features).
        """
        wholes: list[tuple[FloatArray, FloatArray]] = []
        for layer, mine, theirs in self._by_layer(split, adaptive=adaptive):
            wholes.append((mine.cpu().numpy(), theirs.cpu().numpy()))
            yield layer.name, *wholes[-1]
        if len(wholes) == 1:
            yield None, *wholes[0]
            return
        mine_of_all, theirs_of_all = zip(*wholes, strict=True)
        yield None, np.concatenate(mine_of_all, axis=1), np.concatenate(theirs_of_all, axis=1)

    def interceptor(self, layers: Sequence[Layer]) -> Interceptor:
        """The interceptor of the clients' updates of some layers."""
        return Interceptor(
            self.target,
            self.records,
            layers,
            sharing=self.sharing,
            reduce=self.reduce,
            memory=self.memory,
            seed=self.seed,
            context=self._kept or self._context(),
        )

    @property
    def note(self) -> str:
        """The report's note on how updates are computed; empty where there is none."""
        return self.interceptor(self.layers).note

    def _by_layer(
        self, split: GameSplit, *, adaptive: bool
    ) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Each layer's features of the adversary's own batches and of the released ones."""
        known = adaptive or not self.sharing.chain.defenses
        together = tuple(
            layer
            for layer in self.layers
            if known or self._visibility(layer).reduction.kind != "pca"
        )
        own: Iterator[tuple[Layer, Tensor]] = iter(())
        released: Iterator[tuple[Layer, Tensor]] = iter(())
        if together:
            shadow = split.parts.shadow
            clients, his = self.interceptor(together), self._adversarys(adaptive=adaptive)
            mine = clients if his is self else his.interceptor(together)
            own = self._mine(split).features(mine, shadow)
            released = self._theirs(split).features(clients, shadow)
        for layer in self.layers:
            if layer in together:
                yield layer, next(own)[1], next(released)[1]
            else:
                yield layer, *self._unaware(layer, split)

    def _visibility(self, layer: Layer) -> Visibility:
        return Visibility.of(layer, self.sharing, parse_reduction(self.reduce), self.seed)

    def _unaware(self, layer: Layer, split: GameSplit) -> tuple[Tensor, Tensor]:
        """Compute component features for an adversary that does not know of the defense.

        He finds them on updates of his own, which nothing was done to, and projects on them what he
        sees. Of a layer too large for the memory it is a random part of the elements, the same for
        both.

        Returns:
            (own batches, components) and (released batches, components).
        """
        visibility = self._visibility(layer)
        components, elements = visibility.reduction.size, visibility.elements
        plain = replace(self, reduce="none")
        most = max(self.memory // (64 * (components + 1)), 1)
        if elements > most:
            elements = most
            fewer = replace(self.sharing, fraction=None, elements=elements)
            plain = replace(plain, sharing=fewer)
        rows = max(self.memory // (16 * elements), components + 1)
        fit = len(split.shadow.labels)
        chosen = np.linspace(0, fit - 1, min(fit, _MOST, rows)).astype(np.int64)
        own = plain._adversarys(adaptive=False).interceptor((layer,))
        released = plain.interceptor((layer,))
        mine, theirs = self._mine(split), self._theirs(split)
        sample = torch.cat(list(mine.pieces(own, rows, chosen)))
        centre = sample.mean(dim=0)
        axes = torch.linalg.svd(sample - centre, full_matrices=False).Vh[:components].T
        ours, others = (
            torch.cat([(piece - centre) @ axes for piece in looked.pieces(interceptor, rows)])
            for looked, interceptor in ((mine, own), (theirs, released))
        )
        return ours, others

    def _mine(self, split: GameSplit) -> _ObservedBatches:
        return _ObservedBatches(
            split.own, number(self.seed, "own updates"), split.parts.shadow, split.own_values
        )

    def _theirs(self, split: GameSplit) -> _ObservedBatches:
        """Select the released batches; other clients' records come from the test set."""
        if self.sharing.others and not len(split.parts.test):
            raise UsageError(
                f"--others {self.sharing.others}: every record is the adversary's or is guessed, "
                "none is left for other clients; give more records (or users)"
            )
        released = split.observed
        seed = number(self.seed, "released updates")
        return _ObservedBatches(released.indices, seed, split.parts.test, released.labels)

    def _adversarys(self, *, adaptive: bool) -> RoundObservation:
        """How the adversary computes its own updates, without the clients' private layers."""
        return self._knowing if adaptive else self._unknowing

    @cached_property
    def _kept(self) -> Context | None:
        """Keep the round's weights for all adversaries, where the model is small enough to copy."""
        size = sum(parameter.nbytes for parameter in self.target.model.parameters())
        if size > self.memory // _KEPT_SHARE:
            return None
        return self._context()

    def _context(self) -> Context:
        of = self.target, self.records, self.sharing
        return context_of(self.latest, *of, memory=self.memory)

    @cached_property
    def _knowing(self) -> RoundObservation:
        target = with_other_secrets(self.target, torch_rng(self.seed, "secrets"))
        return self if target is self.target else replace(self, target=target)

    @cached_property
    def _unknowing(self) -> RoundObservation:
        target = seen_by_outsiders(self.target)
        if target is self.target and not self.sharing.defenses:
            return self
        return replace(self, target=target, sharing=replace(self.sharing, defenses=()))
