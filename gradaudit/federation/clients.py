"""A client with its private part and its training, and the server."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.core.randomness import torch_rng
from gradaudit.data.common.packing import arguments
from gradaudit.data.records import Records
from gradaudit.defenses.attachment import private_names
from gradaudit.errors import AuditError
from gradaudit.federation.canaries import CanaryClients, Contribution, weighted_mean
from gradaudit.federation.settings import TrainingOptions
from gradaudit.gradients.functional import drawing_from, running
from gradaudit.models.hf_adapter import frozen_below
from gradaudit.models.module_kinds import BATCH_NORMS
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share

State = Mapping[str, Tensor]
Update = dict[str, Tensor]


@dataclass
class Client:
    """A client: its records, and the part of the model that it never shares.

    ``private`` are parameters and buffers of its model that it never shares, by name.
    """

    number: int
    records: Records
    private: dict[str, Tensor] = field(default_factory=dict)


Clients = Sequence[Client]


class ClientModel:
    """The single copy of the model on which all clients train in turn.

    The target has the defenses that change it, ``sharing`` is what a client's update passes through
    before it is shared, and ``batch_size`` the records in a step, None for all of a client's.
    ``canaries``, if there are any, join the clients where updates are averaged.

    Raises:
        UsageError: the defenses cannot be applied to this model.
    """

    def __init__(
        self,
        target: Target,
        options: TrainingOptions,
        batch_size: int | None,
        sharing: SharingProtocol,
        seed: int,
    ) -> None:
        self.target = replace(target, model=copy.deepcopy(target.model))
        self.options, self.batch_size, self.sharing, self.seed = options, batch_size, sharing, seed
        model = self.target.model
        self.private = private_names(model)
        self.names = sharing.parameters(model)
        parameters = dict(model.named_parameters())
        self.shared = {name: parameters[name] for name in self.names}
        self._own = [p for n, p in parameters.items() if n in self.private]
        self._frozen = {n: t for n, t in model.state_dict().items() if n in frozen_below(model)}
        self._couples = any(isinstance(module, BATCH_NORMS) for module in model.modules())
        self.canaries: CanaryClients | None = None

    def mean(self, sent: Iterable[Contribution], round_: int) -> Contribution:
        """Returns the weighted mean of the clients' updates and those of included canaries."""
        if self.canaries is None:
            return weighted_mean(sent)
        norms: list[float] = []
        mean = weighted_mean(_noting_norms(sent, norms))
        return self.canaries.joined(mean, norms, round_)

    def gradient(self, client: Client, state: State, round_: int) -> Contribution:
        """Returns the gradient of one batch, and takes one step of the private part."""
        with self._working(client, state, round_) as draws:
            rows = next(iter(self._batches(len(client.records), draws)))
            clipped = self._of_clipped_records(client, rows, round_)
            with _thawed(self._own):
                loss = self._differentiate(client, rows)
            update = {name: _gradient(p) for name, p in self.shared.items()}
            with torch.no_grad():
                for parameter in self._own:
                    parameter.sub_(self.options.rate * _gradient(parameter))
            self._keep_private(client)
            shared = clipped or self._defended(update, client, len(rows), round_)
            (number,) = self._finite([loss], client, round_)
            return Contribution(shared, self._buffers(), len(client.records), number)

    def training(self, client: Client, state: State, round_: int) -> Contribution:
        """Trains for ``epochs`` passes over the client's records, from the server's weights on."""
        before = {name: state[name].to(p.device) for name, p in self.shared.items()}
        with self._working(client, state, round_) as draws, _thawed(self._own):
            optimizer = make_optimizer([*self.shared.values(), *self._own], self.options)
            losses, sizes = [], []
            for _ in range(self.options.epochs):
                for rows in self._batches(len(client.records), draws):
                    losses.append(self._differentiate(client, rows))
                    sizes.append(len(rows))
                    optimizer.step()
            numbers = self._finite(losses, client, round_)
            mean = sum(map(mul, numbers, sizes)) / sum(sizes)
            rate = self.options.rate
            update = {n: (before[n] - p.detach()) / rate for n, p in self.shared.items()}
            self._keep_private(client)
            shared = self._defended(update, client, len(client.records), round_)
            return Contribution(shared, self._buffers(), len(client.records), mean)

    def _of_clipped_records(self, client: Client, rows: Tensor, round_: int) -> Update | None:
        """The shared gradient where single records are clipped; None where they are not."""
        if not any(defense.of_records for defense in self.sharing.chain.acting):
            return None
        inputs, labels = client.records.inputs[rows], client.records.labels[rows]
        draws, dtype = self._noise(client, round_), next(iter(self.shared.values())).dtype
        return share(self.target, inputs, labels, self.sharing, draws, dtype=dtype)

    def _defended(self, update: Update, client: Client, records: int, round_: int) -> Update:
        """Applies the defenses to an update that is a mean over so many records."""
        if not self.sharing.chain.acting:
            return update
        draws = self._noise(client, round_)
        rows = {name: tensor.reshape(1, -1) for name, tensor in update.items()}
        done = self.sharing.chain.apply(rows, records=records, generators=lambda _i, _n: draws)
        return {name: done[name].reshape(p.shape) for name, p in self.shared.items()}

    def _noise(self, client: Client, round_: int) -> torch.Generator:
        device = self.target.device
        return torch_rng(self.seed, "federation", "defense", round_, client.number, device=device)

    def _differentiate(self, client: Client, rows: Tensor) -> Tensor:
        """Puts the gradients of the rows' loss on the parameters, and returns the loss."""
        model, device = self.target.model, self.target.device
        dtype = next(iter(self.shared.values())).dtype
        model.zero_grad(set_to_none=True)
        inputs = _cast(client.records.inputs[rows], device, dtype)
        labels = _cast(client.records.labels[rows], device, dtype)
        given, named = arguments(self.target.parts, inputs)
        measure = self.target.loss
        loss = measure.of_batch(measure.outputs_of(model, given, named), labels)
        torch.autograd.backward(loss)
        return loss.detach()

    def _finite(self, losses: Sequence[Tensor], client: Client, round_: int) -> list[float]:
        """Returns the losses, read once after all steps; raises an error where one is infinite."""
        numbers: list[float] = torch.stack(list(losses)).tolist()
        for loss in numbers:
            if not isfinite(loss):
                why = f"client {client.number}'s loss is {loss:g}"
                raise diverged(round_, self.options.rate, why)
        return numbers

    def _batches(self, records: int, draws: torch.Generator) -> Iterable[Tensor]:
        """Yields a client's records in batches, in a fresh order.

        Where BatchNorm couples the records, a last batch of one joins the one before.
        """
        size = self.batch_size or records
        if size >= records:
            return [torch.arange(records)]
        batches = list(torch.split(torch.randperm(records, generator=draws), size))
        if self._couples and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    @contextmanager
    def _working(self, client: Client, state: State, round_: int) -> Iterator[torch.Generator]:
        """Yields the model as the client has it, in its mode, with random draws of its own."""
        draws = torch_rng(self.seed, "federation", "client", round_, client.number)
        self.target.model.load_state_dict({**self._frozen, **state, **client.private})
        with (
            running(self.target.model, self.target.mode),
            drawing_from(draws.initial_seed() ^ 1, self.target.device),
        ):
            yield draws

    def _keep_private(self, client: Client) -> None:
        state = self.target.model.state_dict()
        client.private = {name: state[name].detach().clone() for name in self.private}

    def _buffers(self) -> dict[str, Tensor]:
        kept = self.target.model.state_dict().keys() - set(self.private)
        buffers = self.target.model.named_buffers()
        return {name: buffer.detach().clone() for name, buffer in buffers if name in kept}


def _noting_norms(sent: Iterable[Contribution], norms: list[float]) -> Iterator[Contribution]:
    for one in sent:
        squares = (float(part.double().square().sum()) for part in one.update.values())
        norms.append(sum(squares) ** 0.5)
        yield one


@contextmanager
def _thawed(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Make a client's own parameters trainable, which are frozen for all others."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)


def make_optimizer(
    parameters: Iterable[nn.Parameter], options: TrainingOptions
) -> torch.optim.Optimizer:
    """Returns the optimizer that the options name."""
    if options.optimizer == "adam":
        return torch.optim.Adam(parameters, options.rate, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        parameters, options.rate, options.momentum, weight_decay=options.weight_decay
    )


def diverged(round_: int, rate: float, what: str) -> AuditError:
    """Returns the error message of a training that diverged, with the remedy."""
    return AuditError(
        f"the training diverged in round {round_}: {what}; lower --rate (it is {rate:g}), or look "
        "at the scale of the inputs"
    )


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Returns the gradient of a parameter, zero where the loss does not depend on it."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.detach().clone()


def _cast(data: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    dtype = dtype if data.is_floating_point() else data.dtype
    return data.to(device, dtype, non_blocking=device.type != "cpu")


class Server:
    """The server: the shared model, first a copy of the target's, and the server's optimizer."""

    def __init__(self, target: Target, options: TrainingOptions) -> None:
        self.model = copy.deepcopy(target.model)
        self.rate = options.rate
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = make_optimizer(self.parameters.values(), options)
        self._kept_back = {*private_names(self.model), *frozen_below(self.model)}

    def state(self) -> dict[str, Tensor]:
        """Returns a copy of the shared weights and buffers, without private or frozen ones."""
        state = self.model.state_dict().items()
        return {n: t.detach().clone() for n, t in state if n not in self._kept_back}

    def step(self, gradient: Mapping[str, Tensor]) -> None:
        """Take one step of the server's optimizer along the mean gradient."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradient[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def move(self, update: Mapping[str, Tensor]) -> None:
        """Moves the weights by an update that was divided by the rate: w ← w − rate · update."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.sub_(self.rate * update[name])

    def set_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Replace the running statistics."""
        self.model.load_state_dict({**self.model.state_dict(), **buffers})

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        return bool(torch.stack([p.isfinite().all() for p in self.parameters.values()]).all())

    def memory(self) -> dict[str, Tensor]:
        """Returns what later rounds need: weights, buffers and optimizer state by name."""
        kept = {f"model.{name}": tensor for name, tensor in self.state().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if value is not None:
                    kept[f"optimizer.{index}.{key}"] = torch.as_tensor(value).detach().clone()
        return kept

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Restore what ``memory`` returned.

        Raises:
            AuditError: it does not fit the model.
        """
        weights = {n.removeprefix("model."): t for n, t in memory.items() if n.startswith("model.")}
        try:
            self.model.load_state_dict({**self.model.state_dict(), **weights})
        except RuntimeError as error:
            raise AuditError(f"the kept state does not fit the model: {error}") from error
        entries: dict[int, dict[str, Any]] = {}
        for name in (name for name in memory if name.startswith("optimizer.")):
            _, index, key = name.split(".", 2)
            entries.setdefault(int(index), {})[key] = memory[name]
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": entries})
