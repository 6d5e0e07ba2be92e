"""What does not change from one call of an interceptor to the next."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.client_rows import ClientRows, Former
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import Clients, parameters_as_layers
from gradaudit.sharing.stream import RecordRows

Indices = NDArray[np.int64]

_KEPT = 2
"""Sets of records whose clipping factors are kept: those that are fitted on, and the batches'."""


@dataclass
class Context:
    """A target, its records and how updates are shared.

    Attributes:
        target: the audited model.
        records: that batches are made of.
        sharing: how updates are made and what of them is seen.
        clients: make updates one by one.
        parameters: every shared parameter as a layer, by name.
        engine: single records' gradients; None where there are none, or updates are no means of
            them.
        note: for the report, why there is no engine and which defenses do nothing; else empty.
        memory: bytes that gradients may take.
    """

    target: Target
    records: Records
    sharing: SharingProtocol
    clients: Clients
    parameters: Mapping[str, Layer]
    engine: RecordRows | None
    note: str
    memory: int
    _factors: dict[bytes, dict[str, Tensor]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        target: Target,
        records: Records,
        sharing: SharingProtocol,
        dtype: torch.dtype,
        memory: int,
    ) -> Context:
        """Look whether the model can be run and its records have gradients of their own.

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: a defense clips single records, which the model couples.
            UsageError: the defenses do not fit the model.
        """
        clients = Clients.of(
            target, records.inputs, records.labels, sharing, dtype=dtype, memory=memory
        )
        layers = parameters_as_layers(target, clients.names)
        engine, note = _engine(clients, layers)
        note = "; ".join(filter(None, [note, sharing.chain.idle(target.mode)]))
        named = {layer.name: layer for layer in layers}
        return cls(target, records, sharing, clients, named, engine, note, memory)

    @property
    def dtype(self) -> torch.dtype:
        """Of the computation."""
        return self.clients.view.dtype

    def record_rows(self, indices: Indices, layers: Iterable[Layer]) -> RecordRows:
        """The gradients of these records by these layers, clipped where a defense clips them."""
        assert self.engine is not None
        rows = torch.from_numpy(indices)
        plain = self.engine.of_records(self.records.inputs[rows], self.records.labels[rows])
        clipping = self._clipping(indices, plain)
        first = {layer.name: layer.parameter_names[0] for layer in layers}
        factors = {name: clipping[p] for name, p in first.items() if p in clipping}
        return replace(plain, factors=factors)

    def weights(self, indices: Tensor) -> Tensor | None:
        """What these records count in the loss, (records,); None where all count alike."""
        return self.target.loss.weights(self.clients.view.cast(self.records.labels[indices]))

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
        former = Former(self.clients, used, records, self.memory // 2, self.weights(used))
        more = self.parameters, seed, self.memory // 4, silent, values
        return ClientRows(former, rows, self.sharing.chain, *more)

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
                squares.setdefault(layer.name, []).append(piece.squares())
            norms = {name: torch.cat(parts) for name, parts in squares.items()}
            latest = key, chain.record_factors(norms)
            self._factors = dict([*self._factors.items(), latest][-_KEPT:])
        return self._factors[key]


def _engine(clients: Clients, layers: tuple[Layer, ...]) -> tuple[RecordRows | None, str]:
    """Single records' gradients; or why there are none."""
    if clients.sharing.algorithm == "fedavg":
        return None, "local training is run client by client"
    view = clients.view
    sample = view.cast(clients.inputs[:2])
    coupled = view.coupling(sample, view.cast(clients.labels[:2]))
    clips = [str(d) for d in clients.sharing.chain.acting if d.of_records]
    if coupled and clips:
        raise NotApplicable(
            f"{clips[0]} clips single records, which have no gradients of their own: {coupled}; "
            "use per=release or --mode eval"
        )
    if coupled:
        return None, f"updates are computed batch by batch: {coupled}"
    if view.stochastic(sample):
        return None, "updates are computed batch by batch: the model draws random numbers"
    memory = clients.memory
    gradients = per_sample_gradients(
        clients.target,
        clients.inputs,
        clients.labels,
        layers,
        dtype=view.dtype,
        memory=memory // 2,
    )
    return RecordRows(gradients, memory // 4), ""


def refuse_hidden(layers: Iterable[Layer], sharing: SharingProtocol) -> None:
    """Refuse to look at layers that are never shared.

    Raises:
        UsageError: one of them is hidden.
    """
    for layer in layers:
        if layer.name in sharing.hidden:
            raise UsageError(f"layer {layer.name} is hidden, so nothing of it is shared")
