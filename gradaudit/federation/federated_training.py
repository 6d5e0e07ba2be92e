"""Runs a federated training round by round, by ``train_rounds``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torch import Tensor

from gradaudit.accuracy import TaskAccuracy, task_accuracy
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses.attachment import private_names, private_parts
from gradaudit.defenses.base import Defense
from gradaudit.errors import UsageError
from gradaudit.federation.algorithms import Algorithm, choose_algorithm
from gradaudit.federation.canaries import CanaryClients, longest
from gradaudit.federation.clients import Client, ClientModel, Server, diverged
from gradaudit.federation.partition import Indices, partition
from gradaudit.federation.settings import TrainingOptions
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target
from gradaudit.progress import Progress, Silent
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import defended_target


@dataclass(frozen=True)
class Round:
    """The shared model after a round.

    Its number is 0 before the first one. ``state`` has shared weights and buffers by name, on the
    CPU, and ``private`` what the first client keeps to itself, where a defense gives clients a
    private part; together they are the model as that client has it. The loss is the mean of the
    records as they were trained on, None before the first round; accuracies are None where there
    are no such records or the round was not scored.
    """

    number: int
    state: dict[str, Tensor]
    private: dict[str, Tensor]
    loss: float | None
    train: TaskAccuracy | None
    test: TaskAccuracy | None


class FederatedTraining:
    """A training after ``number`` rounds, which can go on or return to an earlier ``memory``.

    The given target has initial weights, loss, and the mode in which clients run the model; its
    own is the model with the defenses that change it. ``records`` is what the clients hold
    together, ``parts`` are the indices of each one's, and ``defenses`` what a client does to what
    it shares, in order, and to its model.

    Raises:
        UsageError: an option does not go with another, or a client would get no record.
        AuditError: the model cannot be run on the records, or the labels do not fit.
        NotApplicable: a defense cannot be built into the model.
    """

    def __init__(
        self,
        target: Target,
        records: Records,
        options: TrainingOptions,
        *,
        defenses: Sequence[Defense[Any]] = (),
        seed: int = 0,
        test: Records | None = None,
    ) -> None:
        self.algorithm = choose_algorithm(options.algorithm)
        _expect(options, self.algorithm)
        self.target = defended_target(target, defenses, seed)
        self.records, self.test = records, test
        model = FunctionalModel.of(self.target, dtype=next(self.target.model.parameters()).dtype)
        model.check(model.cast(records.inputs[:2]), model.cast(records.labels[:2]))
        draws = rng(seed, "federation", "partition")
        self.parts = partition(options.partition, records.labels.numpy(), options.clients, draws)
        self.clients = self._make_clients(self.parts, seed)
        self.server = Server(self.target, options)
        size = options.batch_size or self.algorithm.batch_size
        sharing = SharingProtocol(
            defenses=tuple(defenses), algorithm="fedsgd" if self.algorithm.one_step else "fedavg"
        )
        self._client_model = ClientModel(self.target, options, size, sharing, seed)
        self.canaries = self._make_canaries(options, sharing, seed)
        self._client_model.canaries = self.canaries
        self._rate = options.rate
        self.number = 0
        self.loss: float | None = None

    def _make_clients(self, parts: Sequence[Indices], seed: int) -> list[Client]:
        """Returns clients with private parts of their own; the first has the target's."""
        model = self.target.model
        clients = []
        for number, part in enumerate(parts):
            for private in private_parts(model) if number else ():
                private.draw(torch_rng(seed, "federation", "private part", number))
            drawn = {name: model.state_dict()[name].clone() for name in private_names(model)}
            clients.append(Client(number, self.records.take(part), drawn))
        if clients[0].private:
            model.load_state_dict({**model.state_dict(), **clients[0].private})
        return clients

    def _make_canaries(
        self, options: TrainingOptions, sharing: SharingProtocol, seed: int
    ) -> CanaryClients | None:
        """The canaries that are asked for; each counts as much as the typical client does."""
        if not options.canaries:
            return None
        return CanaryClients(
            count=options.canaries,
            norm=longest(sharing),
            records=round(median(map(len, self.parts))),
            shapes={name: p.shape for name, p in self._client_model.shared.items()},
            sharing=sharing,
            seed=seed,
            device=self.target.device,
        )

    def advance(self) -> None:
        """Train one more round.

        Raises:
            AuditError: the training diverged.
        """
        number = self.number + 1
        self.loss = self.algorithm.round(self.server, self.clients, self._client_model, number)
        if not self.server.finite:
            raise diverged(number, self._rate, "weights are not finite")
        self.number = number

    def snapshot(self, *, scored: bool = True) -> Round:
        """The shared model as it is now."""
        now = replace(self.target, model=self.server.model)
        train = task_accuracy(now, self.records) if scored else None
        test = task_accuracy(now, self.test) if scored and self.test else None
        state, private = map(_copied, (self.server.state(), self.clients[0].private))
        return Round(self.number, state, private, self.loss, train, test)

    def memory(self) -> dict[str, Tensor]:
        """All that later rounds need, by name."""
        kept = {f"server.{name}": tensor for name, tensor in self.server.memory().items()}
        for client in self.clients:
            kept |= {f"client.{client.number}.{n}": tensor for n, tensor in client.private.items()}
        return kept | (self.canaries.memory() if self.canaries else {})

    def restore(self, number: int, memory: Mapping[str, Tensor]) -> None:
        """Go to the state after ``number`` rounds.

        Raises:
            AuditError: the memory does not fit the model.
        """
        of_server = (item for item in memory.items() if item[0].startswith("server."))
        self.server.restore({name.removeprefix("server."): kept for name, kept in of_server})
        for client in self.clients:
            prefix = f"client.{client.number}."
            client.private = {name: memory[prefix + name] for name in client.private}
        if self.canaries:
            self.canaries.restore(memory)
        self.number = number


def train_rounds(
    target: Target,
    records: Records,
    options: TrainingOptions,
    *,
    defenses: Sequence[Defense[Any]] = (),
    seed: int = 0,
    test: Records | None = None,
    scored: bool = True,
    progress: Progress | None = None,
) -> Iterator[Round]:
    """Train federatedly and yield the shared model before the first and after every round.

    The same arguments, which are those of ``FederatedTraining``, give the same numbers. The target
    is left as it was; ``scored`` says whether accuracies are wanted.

    Raises:
        UsageError: as ``FederatedTraining``.
        AuditError: as ``FederatedTraining``, or the training diverged.
        NotApplicable: a defense cannot be built into the model, or used with the algorithm.
    """
    training = FederatedTraining(target, records, options, defenses=defenses, seed=seed, test=test)
    with (progress or Silent()).task("training", options.rounds) as advance:
        yield training.snapshot(scored=scored)
        for _ in range(options.rounds):
            training.advance()
            advance(1)
            yield training.snapshot(scored=scored)


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in state.items()}


def _expect(options: TrainingOptions, algorithm: Algorithm) -> None:
    if algorithm.one_step and options.epochs > 1:
        raise UsageError(
            f"--epochs {options.epochs}: with {options.algorithm} a client takes one step a round; "
            "leave it out, or use --algorithm fedavg"
        )
    if options.optimizer == "adam" and options.momentum:
        raise UsageError("--momentum: only --optimizer sgd has it; leave it out with adam")
    if options.canaries and not algorithm.averages:
        raise UsageError(
            f"--canaries: with {options.algorithm} there is no mean that canaries could join; "
            "use --algorithm fedavg or fedsgd"
        )
