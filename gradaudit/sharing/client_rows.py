"""Shared updates as rows: formed chunk by chunk, defended, averaged with other clients'."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from gradaudit.defenses import Chain
from gradaudit.models.target import Layer
from gradaudit.randomness import torch_rng
from gradaudit.sharing.draws import shares_of
from gradaudit.sharing.rows import QUICK_BYTES, Dense, GradientRows
from gradaudit.sharing.share import Clients
from gradaudit.sharing.stream import Piece, Stream, collected

_COPIES = 4
"""Of an update while it is defended."""


@dataclass
class Former:
    """Makes many clients' updates from records' gradients, or one by one where that cannot be.

    Attributes:
        clients: one by one.
        used: the records that batches are made of, by their indices.
        records: the records' gradients with a layer a parameter; None where records have none of
            their own, or the update is no mean of them.
        memory: bytes that records' gradients may take.
        weights: (used,) what each record counts in the loss; None where all count alike.
    """

    clients: Clients
    used: Tensor
    records: Stream | None
    memory: int
    weights: Tensor | None = None
    _held: dict[str, GradientRows] = field(default_factory=dict)

    def updates(
        self, batches: Tensor, layers: Sequence[Layer], first: int, seed: int
    ) -> dict[str, Tensor]:
        """Updates (clients, elements) by parameter.

        Args:
            batches: (clients, k) indices into ``used``.
            layers: the parameters, each as a layer.
            first: number of the first client, which decides its random numbers.
            seed: of them.
        """
        if not self.mixes(layers):
            return self._one_by_one(batches, layers, first, seed)
        if not {layer.name for layer in layers} <= set(self._held):
            assert self.records is not None
            self._held = {}
            self._held = collected(self.records, layers)
        view = self.clients.view
        weights = shares_of(batches, self.weights).to(view.device, view.dtype)
        rows = batches.to(view.device)
        return {layer.name: self._held[layer.name].mixed(rows, weights) for layer in layers}

    def mixes(self, layers: Iterable[Layer]) -> bool:
        """Whether these parameters' updates are made from records' gradients."""
        if self.records is None:
            return False
        return sum(map(self.records.bytes_of, layers)) * len(self.records) <= self.memory

    def _one_by_one(
        self, batches: Tensor, layers: Sequence[Layer], first: int, seed: int
    ) -> dict[str, Tensor]:
        device = self.clients.target.device
        updates = [
            self.clients.update(
                self.used[batch], torch_rng(seed, "sharing", "client", number, device=device)
            )
            for number, batch in enumerate(batches, start=first)
        ]
        return {
            layer.name: torch.stack([update[layer.name] for update in updates]) for layer in layers
        }


@dataclass(frozen=True)
class ClientRows:
    """What is seen of many updates, one row each.

    Attributes:
        former: makes the updates.
        batches: (rows, clients, k) indices into the former's ``used``; a row is the mean over its
            clients' defended updates.
        chain: the defenses.
        parameters: every shared parameter as a layer, by name.
        seed: of noise and of clients.
        memory: bytes that updates may take at a time.
        silent: parameters to which defenses that only add noise add none.
        values: (rows,) private values of the first client's batches, which his defenses know; None
            where there are none. Of the others nothing is known.
    """

    former: Former
    batches: Tensor
    chain: Chain
    parameters: Mapping[str, Layer]
    seed: int
    memory: int
    silent: Container[str] = ()
    values: Tensor | None = None

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.former.clients.view.dtype.itemsize

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of a row."""
        return self.itemsize * layer.parameters

    def factored(self, layer: Layer) -> bool:
        """Updates are formed."""
        return False

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows of these layers, some layers after the others, chunk by chunk."""
        for together in self._portions(layers):
            yield from self._of_portion(together)

    def _portions(self, layers: Iterable[Layer]) -> Iterator[list[Layer]]:
        """Layers whose records' gradients are held together; last, those that are not held."""
        held: list[Layer] = []
        rest: list[Layer] = []
        for layer in layers:
            if not self.former.mixes(self._needed([layer])):
                rest.append(layer)
            elif self.former.mixes(self._needed([*held, layer])):
                held.append(layer)
            else:
                yield held
                held = [layer]
        yield from filter(None, (held, rest))

    def _of_portion(self, layers: list[Layer]) -> Iterator[Piece]:
        needed = self._needed(layers)
        generators = self._generators()
        step = self._chunk(needed)
        for start in range(0, len(self), step):
            update = self._defended(start, start + step, needed, generators)
            for layer in layers:
                parts = [update[name] for name in layer.parameter_names]
                rows = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
                yield slice(start, start + len(rows)), layer, Dense(rows)

    def _defended(
        self,
        start: int,
        stop: int,
        needed: Sequence[Layer],
        generators: Callable[[int, str], torch.Generator],
    ) -> dict[str, Tensor]:
        batches = self.batches[start:stop]
        count, clients, size = batches.shape
        each = batches.flatten(0, 1)
        raw = self.former.updates(each, needed, start * clients, self.seed)
        done = self.chain.apply(
            raw,
            records=size,
            generators=generators,
            silent=self.silent,
            values=self._values(start, stop, clients),
        )
        if clients == 1:
            return done
        return {name: rows.view(count, clients, -1).mean(dim=1) for name, rows in done.items()}

    def _values(self, start: int, stop: int, clients: int) -> Tensor | None:
        if self.values is None:
            return None
        own = self.values[start:stop, None]
        return torch.cat([own, own.new_full((len(own), clients - 1), -1)], dim=1).flatten()

    def _needed(self, layers: Sequence[Layer]) -> list[Layer]:
        """The parameters of these layers, or all where a defense looks at the whole update."""
        names = {name for layer in layers for name in layer.parameter_names}
        if any(map(self.chain.couples, names)):
            names = set(self.parameters)
        return [parameter for name, parameter in self.parameters.items() if name in names]

    def _chunk(self, needed: Sequence[Layer]) -> int:
        elements = sum(parameter.parameters for parameter in needed)
        each = self.itemsize * elements * self.batches.shape[1]
        return max(1, min(self.memory // _COPIES, QUICK_BYTES) // each)

    def _generators(self) -> Callable[[int, str], torch.Generator]:
        """A generator for every defense and parameter, which goes on from chunk to chunk."""
        device = self.former.clients.target.device

        @cache
        def generator(defense: int, parameter: str) -> torch.Generator:
            words = "sharing", "defense of updates", defense, parameter
            return torch_rng(self.seed, *words, device=device)

        return generator
