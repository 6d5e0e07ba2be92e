"""One client's whole update, as it is shared: a gradient, or FedAvg's local training."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.defenses.defense_chain import squared_norms
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import mean_gradient, per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.gradient_rows import QUICK_BYTES
from gradaudit.sharing.protocol import SharingProtocol, mean_update

_COPIES = 6
"""Copies of a client's weights while it trains, with gradients and an optimizer's memory."""


def seen(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    sharing: SharingProtocol,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 1 << 30,
    noise: bool = True,
) -> dict[str, Tensor]:
    """The visible mean update of all clients that the records are dealt out to.

    Each of the ``1 + others`` clients has as many of the records, in their order. The arguments
    and the errors are those of ``share``, which gives each client's update.
    """
    parts = zip(inputs.chunk(sharing.clients), labels.chunk(sharing.clients), strict=True)
    one = partial(share, target, dtype=dtype, memory=memory, noise=noise)
    return mean_update([one(x, y, sharing, generator) for x, y in parts])


def share(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    sharing: SharingProtocol,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 1 << 30,
    noise: bool = True,
) -> dict[str, Tensor]:
    """Make one client's update for one batch, after all defenses of updates.

    With FedSGD it is the gradient of the batch's mean loss; with FedAvg (w_0 − w_E)/rate, the sum
    of the moves of local training, so that one step of SGD is FedSGD exactly. ``others``,
    ``fraction`` and ``elements`` are no client's affair and play no part.

    Args:
        target: the audited model; it is left as it was. A defense that changes the model must be
            in it.
        inputs: (records, …), the batch.
        labels: (records, …).
        sharing: how the update is made.
        generator: for dropout, local shuffling and noise; on the target's device.
        dtype: of the computation.
        memory: bytes that the gradients of single records may take.
        noise: whether defenses that only add noise add it; they clip all the same.

    Returns:
        The update by name of every shared parameter, in the parameter's shape.

    Raises:
        AuditError: the model cannot be run on the batch.
        NotApplicable: a defense clips single records, which the model couples or the loss weighs.
        UsageError: the defenses cannot be applied to this model.
    """
    clients = Clients(target, inputs, labels, sharing, dtype=dtype, memory=memory)
    everyone = torch.arange(len(inputs))
    update = {name: rows[None] for name, rows in clients.update(everyone, generator).items()}
    defended = sharing.chain.apply(
        update,
        records=len(inputs),
        generators=lambda _index, _name: generator,
        silent=() if noise else update,
    )
    shapes = {name: p.shape for name, p in target.model.named_parameters()}
    return {name: rows.reshape(shapes[name]) for name, rows in defended.items()}


class Clients:
    """Clients' updates, one after the other, before anything is done to an update as a whole.

    Attributes:
        target: the audited model.
        view: the same as a function.
        inputs: (records, …) that clients draw their batches from.
        labels: (records, …).
        sharing: how updates are made.
        names: the parameters that are shared.
        memory: bytes that the gradients of single records may take.
    """

    def __init__(
        self,
        target: Target,
        inputs: Tensor,
        labels: Tensor,
        sharing: SharingProtocol,
        *,
        dtype: torch.dtype,
        memory: int,
    ) -> None:
        """Clients with these records; the errors are those of ``share``."""
        self.target, self.inputs, self.labels = target, inputs, labels
        self.sharing, self.memory = sharing, memory
        self.names = sharing.parameters(target.model)
        self.view = FunctionalModel.of(target, dtype=dtype)
        self.view.check(self.view.cast(inputs[:2]), self.view.cast(labels[:2]))
        _expect_equal_weights(self.view, labels, sharing)

    def update(self, batch: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The flattened update for the records of these indices, by parameter."""
        drawn = torch.randint(1 << 62, (), generator=generator, device=generator.device)
        inputs, labels = self.inputs[batch], self.labels[batch]
        if any(defense.of_records for defense in self.sharing.chain.acting):
            return self._of_clipped_records(inputs, labels, int(drawn))
        view = replace(self.view, seed=int(drawn))
        records, targets = view.cast(inputs), view.cast(labels)
        training = self.sharing.training
        if training is None:
            update = mean_gradient(view, self.names, records, targets)
            return {name: gradient.flatten() for name, gradient in update.items()}
        every = list(view.parameters)  # all are trained, shared or not

        def gradient(weights: dict[str, Tensor], step: tuple[int, Tensor]) -> dict[str, Tensor]:
            number, rows = step
            local = replace(view, parameters=weights, seed=view.seed + number)
            return mean_gradient(local, every, records[rows], targets[rows])

        steps = enumerate(training.drawn(len(records), generator))
        update = training.update(view.parameters, steps, gradient)
        return {name: update[name].flatten() for name in self.names}

    def updates(self, batches: Tensor, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """The updates of clients with these batches (clients, k): (clients, elements).

        Clients that train do so together, where the model can be mapped over and draws nothing.
        """
        if not self._train_together:
            pairs = zip(batches, generators, strict=True)
            updates = [self.update(batch, draws) for batch, draws in pairs]
            return {name: torch.stack([update[name] for update in updates]) for name in self.names}
        elements = sum(p.numel() for p in self.view.parameters.values())
        memory = min(QUICK_BYTES, self.memory // 2)
        some = max(1, memory // (_COPIES * elements * self.view.dtype.itemsize))
        parts = [
            self._trained(batches[start : start + some], generators[start : start + some])
            for start in range(0, len(batches), some)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in self.names}

    def _trained(self, batches: Tensor, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """The ``update`` of each client, with the same draws."""
        training, view = self.sharing.training, self.view
        assert training is not None
        for draws in generators:
            torch.randint(1 << 62, (), generator=draws, device=draws.device)
        orders = [training.drawn(batches.shape[1], draws) for draws in generators]
        records, targets = view.cast(self.inputs[batches]), view.cast(self.labels[batches])
        clients = torch.arange(len(batches), device=records.device)[:, None]

        def gradients(weights: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
            return _gradients(view, weights, records[clients, rows], targets[clients, rows])

        start = {name: p.expand(len(batches), *p.shape) for name, p in view.parameters.items()}
        steps = [torch.stack(step).to(records.device) for step in zip(*orders, strict=True)]
        trained = training.update(start, steps, gradients)
        return {name: trained[name].flatten(1) for name in self.names}

    @cached_property
    def _train_together(self) -> bool:
        """Whether clients train, and can be mapped over: found by trying."""
        view, pair = self.view, torch.arange(min(2, len(self.inputs))).expand(2, -1)
        records, targets = view.cast(self.inputs[pair]), view.cast(self.labels[pair])
        if self.sharing.training is None or view.stochastic(records[0]):
            return False
        start = {name: p.expand(2, *p.shape) for name, p in view.parameters.items()}
        try:
            _gradients(view, start, records, targets)
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def _of_clipped_records(self, inputs: Tensor, labels: Tensor, seed: int) -> dict[str, Tensor]:
        """The mean of the records' gradients, each multiplied by its factors."""
        layers = parameters_as_layers(self.target, self.names)
        dtype, factors_of = self.view.dtype, self.sharing.chain.record_factors
        total = {name: p.new_zeros(p.numel()) for name, p in self.view.parameters.items()}
        for chunk in per_sample_gradients(
            self.target, inputs, labels, layers, dtype=dtype, memory=self.memory, seed=seed
        ):
            factors = factors_of({name: squared_norms(rows) for name, rows in chunk.items()})
            for name, rows in chunk.items():
                factor = factors[name].to(rows) if name in factors else rows.new_ones(len(rows))
                total[name] += factor @ rows / len(inputs)
        return {name: total[name] for name in self.names}


def _gradients(
    view: FunctionalModel, weights: dict[str, Tensor], records: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Gradients of clients' losses at their weights (clients, …), on records (clients, k, …)."""
    with sdpa_kernel(SDPBackend.MATH):
        gradients: dict[str, Tensor] = torch.func.vmap(torch.func.grad(view.batch_loss))(
            weights, records, targets
        )
    return gradients


def _expect_equal_weights(view: FunctionalModel, labels: Tensor, sharing: SharingProtocol) -> None:
    """Adds noise to plain sums and means of clipped records."""
    clips = [str(defense) for defense in sharing.chain.acting if defense.of_records]
    weights = view.loss.weights(view.cast(labels)) if clips else None
    if weights is not None and bool((weights != weights[0]).any()):
        raise NotApplicable(
            f"--defense {clips[0]}: clips single records and takes their plain mean, but "
            f"--loss {view.loss.name} weighs them; use per=release, or a loss without weights"
        )


def parameters_as_layers(target: Target, names: Sequence[str]) -> tuple[Layer, ...]:
    """A layer of its own for every parameter, for the engines that go by layers."""
    sizes = {name: parameter.numel() for name, parameter in target.model.named_parameters()}
    return tuple(Layer(n, "", index, (n,), sizes[n]) for index, n in enumerate(names))
