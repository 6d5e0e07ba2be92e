"""Thousands of shared updates at once, layer by layer, reduced to features."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.models.target import Layer, Target
from gradaudit.randomness import number
from gradaudit.sharing import draws
from gradaudit.sharing.averaging import averaged, noisy
from gradaudit.sharing.context import Context, Indices, refuse_hidden
from gradaudit.sharing.fitting import Fitted, Project, fit_components
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.reduction import parse_reduction
from gradaudit.sharing.rows import room
from gradaudit.sharing.stream import Stream, together
from gradaudit.sharing.visibility import Visibility

LARGEST_FIT = 500
"""Records, or batches, that principal components are fitted on at most."""


class Interceptor:
    """What an adversary sees of many batches of records.

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

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: a defense clips single records, which the model couples.
            UsageError: the reduction or the defenses are wrong, or a layer is hidden.
        """
        sharing = sharing or SharingProtocol()
        asked = parse_reduction(reduce)
        refuse_hidden(layers, sharing)
        self.layers, self.seed = tuple(layers), seed
        self.visibilities = {
            layer.name: Visibility.of(layer, sharing, asked, seed, memory) for layer in layers
        }
        self._context = Context.of(target, records, sharing, dtype, memory)
        self._fitted_records, self._fitted_updates = Fitted(memory // 4), Fitted(memory // 4)

    @property
    def note(self) -> str:
        """What the report should say of how updates were computed; empty if nothing."""
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
        clients = draws.with_others(
            batches, len(self._context.records), self._context.sharing.others, others, seed
        )
        fitted = np.unique(batches if fit is None else fit)
        groups = together(
            self.layers, partial(self._bytes, len(batches)), self._context.memory // 2
        )
        for layers in groups:
            linear = [layer for layer in layers if self.linear(layer)]
            formed = [layer for layer in layers if not self.linear(layer)]
            found = self._averaged(linear, clients, fitted, seed) if linear else {}
            found |= self._formed(formed, clients, fitted, seed, values) if formed else {}
            for layer in layers:
                yield layer, found.pop(layer.name)

    def whole(
        self,
        batches: Indices,
        *,
        fit: Indices | None = None,
        seed: int = 0,
        others: Indices | None = None,
        values: Indices | None = None,
    ) -> Tensor:
        """All layers' features side by side, (batches, features), as ``features`` makes them."""
        found = self.features(batches, fit=fit, seed=seed, others=others, values=values)
        return torch.cat([features for _, features in found], dim=1)

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
        """Reduce records, average them, add noise."""
        context = self._context
        sample = draws.at_most(fitted, LARGEST_FIT, number(self.seed, "sharing", "fit"))
        projections = self._projections(
            layers, self._fitted_records, fitted, lambda: context.record_rows(sample, layers)
        )
        used, rows = torch.unique(clients, return_inverse=True)
        stream = context.record_rows(used.numpy(), layers)
        shares = draws.shares_of(rows, context.weights(used))
        means = averaged(
            stream,
            layers,
            self.visibilities,
            projections,
            rows,
            shares,
            context.dtype,
            context.memory,
        )
        return {
            layer.name: self._add_noise(means[layer.name], layer, clients, seed) for layer in layers
        }

    def _formed(
        self,
        layers: Sequence[Layer],
        clients: Tensor,
        fitted: Indices,
        seed: int,
        values: Indices | None,
    ) -> dict[str, Tensor]:
        """Form updates, defend and reduce them."""
        context, size = self._context, clients.shape[2]
        own = number(self.seed, "sharing", "fit")
        projections = self._projections(
            layers,
            self._fitted_updates,
            np.append(fitted, size),
            lambda: context.client_rows(
                draws.batches_of(fitted, size, LARGEST_FIT, own), own, silent=context.parameters
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
        found: dict[str, Tensor] = {}
        for where, layer, rows in stream.pieces(layers):
            name = layer.name
            known = projections.get(name)
            part = known(rows) if known else self.visibilities[name].pooled(rows)
            if name not in found:
                found[name] = room(len(stream), part.shape[1], context.dtype)
            found[name][where] = part
        for layer in late:
            self._add_noise(found[layer.name], layer, clients, seed)
        return found

    def _add_noise(self, features: Tensor, layer: Layer, clients: Tensor, seed: int) -> Tensor:
        """Features with the noise on each client's update, in place."""
        context, sizes = self._context, (clients.shape[1], clients.shape[2])
        chain, device = context.sharing.chain, context.target.device
        return noisy(features, layer, chain, sizes, seed, context.memory, device)

    def _noise_is_last(self, layer: Layer) -> bool:
        """Whether noise is added after updates and their reduction, which are linear in it."""
        reduction = self.visibilities[layer.name].reduction
        return reduction.linear and self._context.sharing.chain.ends_in_noise(
            layer.parameter_names[0], isotropic=reduction.kind == "pca"
        )

    def _projections(
        self, layers: Sequence[Layer], known: Fitted, key: Indices, stream: Callable[[], Stream]
    ) -> dict[str, Project]:
        """The projections of the layers that are reduced to principal components."""
        turned = [
            layer for layer in layers if self.visibilities[layer.name].reduction.kind == "pca"
        ]
        return known.of(
            turned,
            key.tobytes(),
            lambda missing: fit_components(
                stream(), missing, self.visibilities, self._context.memory // 2
            ),
        )

    def _bytes(self, batches: int, layer: Layer) -> int:
        """That a layer's features of so many batches take."""
        return batches * self.visibilities[layer.name].features * self._context.dtype.itemsize
