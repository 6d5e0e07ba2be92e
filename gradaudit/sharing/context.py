"""State that an interceptor keeps between calls, and the updates of a call."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core.latest import Latest
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import COMPANY
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.draws import shares_of
from gradaudit.sharing.gradient_rows import (
    QUICK_BYTES,
    Piece,
    RecordRows,
    weighted_sums,
)
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import Clients, parameters_as_layers

Indices = NDArray[np.int64]

_COPIES = 4
"""Copies of an update while it is defended."""
_KEPT = 2
"""Sets of records whose clipping factors are kept: those that are fitted on, and the batches'."""
_SHARE = 8
"""One of so many parts of the memory is the most that a kept model may take."""


@dataclass
class ClientRows:
    """Shared updates, one row each: formed chunk by chunk, defended, averaged with other clients'.

    They are made from records' gradients, or one by one where that cannot be.

    Attributes:
        clients: make updates one by one.
        parameters: every shared parameter as a layer, by name.
        used: the records that batches are made of, by their indices.
        records: their gradients with a layer a parameter; None where records have none of their
            own, or the update is no mean of them.
        weights: (used,) what each record counts in the loss; None where all count alike.
        batches: (rows, clients, k) indices into ``used``; a row is the mean over its clients'
            defended updates.
        seed: of noise and of clients.
        memory: bytes that gradients may take: half of them records', a quarter updates.
        silent: parameters to which defenses that only add noise add none.
        values: (rows,) private values of the first client's batches, which his defenses know; None
            where there are none. Of the others nothing is known.
    """

    clients: Clients
    parameters: Mapping[str, Layer]
    used: Tensor
    records: RecordRows | None
    weights: Tensor | None
    batches: Tensor
    seed: int
    memory: int
    silent: Container[str] = ()
    values: Tensor | None = None
    _held: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.clients.view.dtype.itemsize

    def bytes_of(self, layer: Layer) -> int:
        """Bytes of a row."""
        return self.itemsize * layer.parameters

    def pieces(self, layers: Iterable[Layer]) -> Iterator[Piece]:
        """The rows of these layers, some layers after the others, chunk by chunk."""
        for together in self._portions(layers):
            yield from self._of_portion(together)

    def _portions(self, layers: Iterable[Layer]) -> Iterator[list[Layer]]:
        """Layers whose records' gradients are held together; last, those that are not held."""
        held: list[Layer] = []
        rest: list[Layer] = []
        for layer in layers:
            if not self._mixes(self._needed([layer])):
                rest.append(layer)
            elif self._mixes(self._needed([*held, layer])):
                held.append(layer)
            else:
                yield held
                held = [layer]
        yield from filter(None, (held, rest))

    def _of_portion(self, layers: list[Layer]) -> Iterator[Piece]:
        needed = self._needed(layers)
        generators = self._generators()
        row = self.itemsize * sum(p.parameters for p in needed) * self.batches.shape[1]
        step = max(1, min(self.memory // 4 // _COPIES, QUICK_BYTES) // row)
        for start in range(0, len(self), step):
            update = self._defended(start, start + step, needed, generators)
            for layer in layers:
                parts = [update[name] for name in layer.parameter_names]
                rows = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
                yield slice(start, start + len(rows)), layer, rows

    def _defended(
        self,
        start: int,
        stop: int,
        needed: Sequence[Layer],
        generators: Callable[[int, str], torch.Generator],
    ) -> dict[str, Tensor]:
        batches = self.batches[start:stop]
        count, clients, size = batches.shape
        done = self.clients.sharing.chain.apply(
            self._raw(batches.flatten(0, 1), needed, start * clients),
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
        first = self.values[start:stop, None]
        return torch.cat([first, first.new_full((len(first), clients - 1), -1)], dim=1).flatten()

    def _raw(self, batches: Tensor, needed: Sequence[Layer], first: int) -> dict[str, Tensor]:
        """Updates (clients, elements) by parameter, of batches (clients, k) of ``used``.

        A client's number, from ``first`` on, decides his random numbers.
        """
        if not self._mixes(needed):
            return self._one_by_one(batches, needed, first)
        if not {layer.name for layer in needed} <= set(self._held):
            self._held = {}  # before others are held
            parts: dict[str, list[Tensor]] = {}
            assert self.records is not None
            for _, layer, rows in self.records.pieces(needed):
                parts.setdefault(layer.name, []).append(rows)
            self._held = {name: torch.cat(rows) for name, rows in parts.items()}
        view = self.clients.view
        weights = shares_of(batches, self.weights).to(view.device, view.dtype)
        chosen = batches.to(view.device)
        return {
            layer.name: weighted_sums(self._held[layer.name], chosen, weights) for layer in needed
        }

    def _mixes(self, needed: Iterable[Layer]) -> bool:
        """Whether these parameters' updates are made from records' gradients."""
        if self.records is None:
            return False
        return sum(map(self.records.bytes_of, needed)) * len(self.records) <= self.memory // 2

    def _one_by_one(
        self, batches: Tensor, needed: Sequence[Layer], first: int
    ) -> dict[str, Tensor]:
        words, device = (self.seed, "sharing", "client"), self.clients.target.device
        numbers = range(first, first + len(batches))
        generators = [torch_rng(*words, number, device=device) for number in numbers]
        updates = self.clients.updates(self.used[batches], generators)
        return {layer.name: updates[layer.name] for layer in needed}

    def _needed(self, layers: Sequence[Layer]) -> list[Layer]:
        """The parameters of these layers, or all where a defense looks at the whole update."""
        names = {name for layer in layers for name in layer.parameter_names}
        if any(map(self.clients.sharing.chain.couples, names)):
            names = set(self.parameters)
        return [parameter for name, parameter in self.parameters.items() if name in names]

    def _generators(self) -> Callable[[int, str], torch.Generator]:
        """A generator for every defense and parameter, which goes on from chunk to chunk."""

        @cache
        def generator(defense: int, parameter: str) -> torch.Generator:
            words = "sharing", "defense of updates", defense, parameter
            return torch_rng(self.seed, *words, device=self.clients.target.device)

        return generator


Stream = RecordRows | ClientRows
"""What gives rows of gradients layer by layer, piece by piece, the same ones every time."""


class Context:
    """A target, its records and how updates are shared.

    Attributes:
        target: the audited model.
        records: that batches are made of.
        sharing: how updates are made and what of them is seen.
        memory: bytes that gradients may take.
        clients: make updates one by one.
        dtype: of the computation.
        parameters: every shared parameter as a layer, by name.
        engine: single records' gradients; None where there are none, or updates are no means of
            them.
        note: for the report, why there is no engine and which defenses do nothing; else empty.
    """

    def __init__(
        self,
        target: Target,
        records: Records,
        sharing: SharingProtocol,
        dtype: torch.dtype,
        memory: int,
    ) -> None:
        """Look whether the model can be run, with the errors of ``Interceptor``."""
        self.target, self.records, self.sharing = target, records, sharing
        self.memory, self.dtype = memory, dtype
        self.clients = Clients(
            target, records.inputs, records.labels, sharing, dtype=dtype, memory=memory
        )
        layers = parameters_as_layers(target, self.clients.names)
        self.parameters = {layer.name: layer for layer in layers}
        self.engine, without = _engine(self.clients, layers)
        self.note = "; ".join(filter(None, [without, sharing.chain.idle(target.mode)]))
        self._factors: dict[bytes, dict[str, Tensor]] = {}
        self._independent = COMPANY

    def record_rows(self, indices: Indices, layers: Iterable[Layer]) -> RecordRows:
        """The gradients of these records by these layers, clipped where a defense clips them."""
        assert self.engine is not None
        rows = torch.from_numpy(indices)
        inputs, labels = self.records.inputs[rows], self.records.labels[rows]
        gradients = replace(self.engine.gradients, inputs=inputs, labels=labels)
        plain = replace(self.engine, gradients=gradients)
        clipping = self._clipping(indices, plain)
        first = {layer.name: layer.parameter_names[0] for layer in layers}
        factors = {name: clipping[p] for name, p in first.items() if p in clipping}
        return replace(plain, factors=factors)

    def weights(self, indices: Tensor) -> Tensor | None:
        """Weights of these records in the loss, (records,); None where all are equal."""
        return self.target.loss.weights(self.clients.view.cast(self.records.labels[indices]))

    def expect_independent(self, size: int) -> None:
        """Test records for coupling in batches of this size; coupled ones have no engine.

        Raises:
            NotApplicable: they are not, and a defense clips single records.
        """
        if self.engine is None or size <= self._independent:
            return
        chosen = rng(0, "coupling", size).permutation(len(self.records))[:size]
        inputs, labels = self.records.inputs[chosen], self.records.labels[chosen]
        if coupled := self.clients.view.coupling_of_many(inputs, labels):
            self.engine, without = None, _without_engine(self.clients, coupled)
            self.note = "; ".join(filter(None, [without, self.note]))
        self._independent = size

    def client_rows(
        self,
        clients: Tensor,
        seed: int,
        *,
        silent: Container[str] = (),
        values: Tensor | None = None,
    ) -> ClientRows:
        """The updates of these clients, (rows, clients, k) indices of records.

        ``silent`` are parameters to which defenses that only add noise add none, ``values`` the
        first clients' private values, (rows,).
        """
        used, rows = torch.unique(clients, return_inverse=True)
        records = None
        if self.engine is not None:
            records = self.record_rows(used.numpy(), self.parameters.values())
        made_from = self.clients, self.parameters, used, records, self.weights(used)
        return ClientRows(*made_from, rows, seed, self.memory, silent, values)

    def _clipping(self, indices: Indices, rows: RecordRows) -> dict[str, Tensor]:
        """The factors of these records by parameter, from their whole gradients' norms."""
        chain = self.sharing.chain
        if not any(defense.of_records for defense in chain.acting):
            return {}
        key = indices.tobytes()
        if key not in self._factors:
            squares: dict[str, list[Tensor]] = {}
            defended = [layer for layer in self.parameters.values() if chain.of(layer.name)]
            for _, layer, piece in rows.pieces(defended):
                norms: Tensor = torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64)
                squares.setdefault(layer.name, []).append(norms.square())
            whole = {name: torch.cat(parts) for name, parts in squares.items()}
            latest = key, chain.record_factors(whole)
            self._factors = dict([*self._factors.items(), latest][-_KEPT:])
        return self._factors[key]


def context_of(
    latest: Latest,
    target: Target,
    records: Records,
    sharing: SharingProtocol,
    *,
    dtype: torch.dtype = torch.float32,
    memory: int,
) -> Context:
    """The latest context, where it is of the same: else it takes some twenty passes of a record.

    It holds two copies of the model, and is not kept where these take much of the memory.
    """
    size = sum(parameter.nbytes for parameter in target.model.parameters())
    keeper = latest if 2 * size <= memory // _SHARE else Latest()
    return keeper.of(Context, target, records, sharing=sharing, dtype=dtype, memory=memory)


def _engine(clients: Clients, layers: tuple[Layer, ...]) -> tuple[RecordRows | None, str]:
    """Single records' gradients; or why there are none."""
    if clients.sharing.algorithm == "fedavg":
        return None, "local training is run client by client"
    view, memory = clients.view, clients.memory
    sample = view.cast(clients.inputs[:2])
    coupled = view.coupling(sample, view.cast(clients.labels[:2]))
    if coupled:
        return None, _without_engine(clients, coupled)
    if view.stochastic(sample):
        return None, "updates are computed batch by batch: the model draws random numbers"
    drawn_from = clients.target, clients.inputs, clients.labels, layers
    gradients = per_sample_gradients(*drawn_from, dtype=view.dtype, memory=memory // 2)
    return RecordRows(gradients), ""


def _without_engine(clients: Clients, coupled: str) -> str:
    clips = [str(d) for d in clients.sharing.chain.acting if d.of_records]
    if clips:
        raise NotApplicable(
            f"{clips[0]} clips single records, which have no gradients of their own: {coupled}; "
            f"use per=release{' or --mode eval' if clients.view.mode == 'train' else ''}"
        )
    return f"updates are computed batch by batch: {coupled}"
