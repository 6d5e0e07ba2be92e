"""Thousands of shared updates at once, layer by layer, reduced to features."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gradaudit.core.randomness import number, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.models.target import Layer, Target
from gradaudit.sharing import draws
from gradaudit.sharing.context import Context, Indices
from gradaudit.sharing.gradient_rows import RecordRows, empty_rows, mix, together
from gradaudit.sharing.principal import KnownProjections, PrincipalProjection
from gradaudit.sharing.protocol import SharingProtocol, Visibility
from gradaudit.sharing.reduction import parse_reduction

_COPIES = 4
"""Copies of features while noise is added to them."""
LARGEST_FIT = 500
"""Records, or batches, that principal components are fitted on at most."""


class Interceptor:
    """An interceptor: the updates of many batches of records as an adversary sees them.

    An update is linear in its records' gradients where no defense acts on it but the clipping of
    single records and noise, and its reduction is linear: then records are reduced first and
    averaged after, and Gaussian noise is added to the features, where it has the same law.
    Elsewhere updates are formed from the records' gradients chunk by chunk, defended and reduced;
    there, too, noise is added to the features where it is the last that is done to an update.
    Where records have no gradients of their own (BatchNorm or dropout in training mode, FedAvg)
    updates are computed one after the other; ``note`` says so. So they are where the records'
    gradients of one layer are too large for the memory.

    Attributes:
        layers: whose updates are looked at.
        visibilities: what is seen of each of them.
        seed: of everything that is the same in all calls: the elements that are seen, and what
            principal components are fitted on.
        note: what the report should say of how updates were computed; empty if nothing.
    """

    def __init__(
        self,
        target: Target,
        records: Records,
        layers: Sequence[Layer],
        *,
        sharing: SharingProtocol | None = None,
        reduce: str | None = None,
        dtype: torch.dtype = torch.float32,
        memory: int = 1 << 30,
        seed: int = 0,
        context: Context | None = None,
    ) -> None:
        """Look once whether the model can be run and its records have gradients of their own.

        Args:
            target: the audited model; it is left as it was.
            records: that batches are made of.
            layers: whose updates are looked at.
            sharing: how updates are made and what of them is seen.
            reduce: ``none``, ``maxpool:3``, ``pca:50``, ``subset:48``; None is none up to 10,000
                visible elements, else ``subset:10000`` (``subset:2000`` where memory is short).
            dtype: of the computation.
            memory: bytes that gradients may take, besides the features of one layer.
            seed: of the elements that are seen and of what components are fitted on.
            context: one of the same target, records, sharing, dtype and memory, if there is one.

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: a defense clips single records, which the model couples.
            UsageError: the reduction or the defenses are wrong, or a layer is hidden.
        """
        sharing = sharing or SharingProtocol()
        asked = parse_reduction(reduce)
        if hidden := next((layer.name for layer in layers if layer.name in sharing.hidden), None):
            raise UsageError(f"layer {hidden} is hidden, so nothing of it is shared")
        self.layers, self.seed = tuple(layers), seed
        self.visibilities = {
            layer.name: Visibility.of(layer, sharing, asked, seed, memory) for layer in layers
        }
        self._context = context or Context(target, records, sharing, dtype, memory)
        self._of_records = KnownProjections(self.visibilities, memory)
        self._of_updates = KnownProjections(self.visibilities, memory)

    @property
    def note(self) -> str:
        """Returns the report's note on how updates are computed; empty where there is none."""
        return self._context.note

    def features(
        self,
        batches: Indices,
        *,
        fit: Indices | None = None,
        seed: int = 0,
        others: Indices | None = None,
        values: Indices | None = None,
    ) -> Iterator[tuple[Layer, Tensor]]:
        """Each layer's features of every batch, one layer after the other.

        Args:
            batches: (batches, k) indices into the records.
            fit: the records that principal components are fitted on, at most 500 of them; None
                is those of the batches. Calls with the same ones find the same components. They
                are fitted on single records' gradients, which have the principal axes of their
                means; on as many random batches of k where updates are not linear; and without
                the noise of ``dp``, which an adversary need not add to his own.
            seed: of noise, of local training and of other clients' batches.
            others: the records of other clients, who each draw k with replacement; None is all
                that are in no batch. Or what those of each batch drew, (batches, others, k).
            values: (batches,) the private value of each, which its client's defenses know; −1, or
                None for all, where there is none.

        Yields:
            The layer and its features (batches, features), float32 (or ``dtype``) on the CPU.

        Raises:
            UsageError: there are no records for other clients.
        """
        self._context.expect_independent(batches.shape[1])
        clients = draws.with_others(
            batches, len(self._context.records), self._context.sharing.others, others, seed
        )
        fitted = np.unique(batches if fit is None else fit)
        element = len(batches) * self._context.dtype.itemsize
        sizes = {n: element * seen.features for n, seen in self.visibilities.items()}
        memory = self._context.memory // 2
        for layers in together(self.layers, lambda layer: sizes[layer.name], memory):
            linear = [layer for layer in layers if self.linear(layer)]
            formed = [layer for layer in layers if not self.linear(layer)]
            ready = self._averaged(linear, clients, fitted, seed) if linear else {}
            ready |= self._formed(formed, clients, fitted, seed, values) if formed else {}
            for layer in layers:
                yield layer, ready.pop(layer.name)

    def linear(self, layer: Layer) -> bool:
        """Whether a layer's records are reduced before they are averaged."""
        reduction = self.visibilities[layer.name].reduction
        defenses = self._context.sharing.chain.of(layer.parameter_names[0])
        turned = reduction.kind == "pca"
        return (
            self._context.engine is not None
            and reduction.linear
            and all(d.of_records and d.additive and (d.isotropic or not turned) for d in defenses)
        )

    def _averaged(
        self, layers: Sequence[Layer], clients: Tensor, fitted: Indices, seed: int
    ) -> dict[str, Tensor]:
        context = self._context
        sample = draws.at_most(fitted, LARGEST_FIT, number(self.seed, "sharing", "fit"))
        projections = self._of_records.of(
            layers, fitted.tobytes(), lambda: context.record_rows(sample, layers)
        )
        used, rows = torch.unique(clients, return_inverse=True)
        stream = context.record_rows(used.numpy(), layers)
        shares = draws.shares_of(rows, context.weights(used)) / rows.shape[1]
        means = self._means(stream, layers, projections, rows.flatten(1), shares.flatten(1))
        for layer in layers:
            self._add_noise(means[layer.name], layer, clients, seed)
        return means

    def _means(
        self,
        stream: RecordRows,
        layers: Sequence[Layer],
        projections: Mapping[str, PrincipalProjection],
        rows: Tensor,
        shares: Tensor,
    ) -> dict[str, Tensor]:
        """The means over batches of reduced records, (batches, features) on the CPU, by layer.

        Of the stream's rows (batches, clients · k), in such shares. Records' features are held and
        averaged at the end; those of a layer that would take more than half of the memory are
        added to the batches piece by piece.
        """
        dtype = self._context.dtype
        held: dict[str, list[Tensor]] = {}
        sums: dict[str, Tensor] = {}
        for where, layer, piece in stream.pieces(layers):
            name, visibility = layer.name, self.visibilities[layer.name]
            known = projections.get(name)
            part = known(piece) if known else visibility.pooled(piece)
            row = stream.itemsize * visibility.features
            if row * len(stream) <= self._context.memory // 2:
                held.setdefault(name, []).append(part)
                continue
            if name not in sums:
                sums[name] = torch.zeros(len(rows), part.shape[1], dtype=dtype)
            _add(sums[name], part, where, rows, shares)
        for name in list(held):
            records = torch.cat(held.pop(name))
            sums[name] = empty_rows(len(rows), records.shape[1], dtype)
            mix(records, rows, shares.to(dtype), sums[name])
            del records  # before those of another layer are joined
        return sums

    def _formed(
        self,
        layers: Sequence[Layer],
        clients: Tensor,
        fitted: Indices,
        seed: int,
        values: Indices | None,
    ) -> dict[str, Tensor]:
        context, size = self._context, clients.shape[2]
        drawn = number(self.seed, "sharing", "fit")
        projections = self._of_updates.of(
            layers,
            np.append(fitted, size).tobytes(),
            lambda: context.client_rows(
                draws.batches_of(fitted, size, LARGEST_FIT, drawn), drawn, silent=context.parameters
            ),
        )
        late = [layer for layer in layers if self._noise_is_last(layer)]
        silent = {name for layer in late for name in layer.parameter_names}
        stream = context.client_rows(
            clients,
            seed,
            silent=silent,
            values=None if values is None else torch.from_numpy(values),
        )
        features: dict[str, Tensor] = {}
        for where, layer, rows in stream.pieces(layers):
            name = layer.name
            known = projections.get(name)
            part = known(rows) if known else self.visibilities[name].pooled(rows)
            if name not in features:
                features[name] = empty_rows(len(stream), part.shape[1], context.dtype)
            features[name][where] = part
        for layer in late:
            self._add_noise(features[layer.name], layer, clients, seed)
        return features

    def _add_noise(self, features: Tensor, layer: Layer, clients: Tensor, seed: int) -> None:
        """The noise that a layer's defenses add to each client's update, on (batches, features)."""
        context, (_, count, records) = self._context, clients.shape
        width, device = features.shape[1], context.target.device
        row = _COPIES * features.element_size() * width * count * records
        step = max(1, context.memory // row)
        for index, defense in enumerate(context.sharing.chain.acting):
            if not (defense.additive and defense.defends(layer.parameter_names[0])):
                continue
            words = "sharing", "noise on features", index, layer.name
            generator = torch_rng(seed, *words, device=device)
            for part in torch.split(features, step):
                zeros = torch.zeros(len(part) * count, width, dtype=features.dtype, device=device)
                noise = defense.apply(zeros, records=records, generator=generator)
                part += noise.view(len(part), count, -1).mean(dim=1).cpu()

    def _noise_is_last(self, layer: Layer) -> bool:
        """Whether noise is added after updates and their reduction, which are linear in it."""
        reduction = self.visibilities[layer.name].reduction
        return reduction.linear and self._context.sharing.chain.ends_in_noise(
            layer.parameter_names[0], isotropic=reduction.kind == "pca"
        )


def _add(sums: Tensor, part: Tensor, where: slice, rows: Tensor, shares: Tensor) -> None:
    """Add rows of records to the means of the batches that they are in."""
    batch, place = ((rows >= where.start) & (rows < where.stop)).nonzero(as_tuple=True)
    chosen = part.cpu()[rows[batch, place] - where.start]
    sums.index_add_(0, batch, chosen.mul_(shares[batch, place, None].to(chosen)))
