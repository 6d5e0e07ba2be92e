"""Starts a Flower server's strategy without clients, to see its messages and its release.

The ``ServerApp`` runs up to ``strategy.start``, or in legacy apps up to the workflow or the
``start_grid`` that would begin the first round; nothing is sent. Secure sums are made by Flower's
own arithmetic without masks: these cancel in the sum, and whole numbers modulo a range do not.

Source: flwr 1.41, ``serverapp/strategy``, ``server/compat/app.py`` and
``server/workflow`` (``default_workflows.py``, ``secaggplus_workflow.py``).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partialmethod
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_mod, parameters_multiply
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.compat.common import recorddict_compat as compat
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import Strategy as LegacyBase
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, server_app
from flwr.serverapp.strategy import Strategy

from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.flower_messages import (
    arrays_of,
    asked,
    context_of,
    record_of,
)
from gradaudit.audits.job.loading.chains import Fault, fault
from gradaudit.core.text import first_line
from gradaudit.errors import UsageError

_MOST_WAITED_FOR = 1000
_LARGE, _SAME = 0.9875, 0.01
"""Share of the clipping range that a large weight has (7.9 of 8), and what a mean may be off by."""
_FEWEST = ("min_available_nodes", "min_available_clients", "min_train_nodes", "min_fit_clients")
_SIGNATURE = signature(Strategy.start)


class FirstRoundStarted(BaseException):
    """Raised in place of the first round, with the strategy and arrays that would start it.

    Attributes:
        strategy: outermost, as one that asks and aggregates by messages.
        arrays: the first ones; None where they come from a client.
        rounds: that would be run.
        config: what the clients are sent beside the arrays.
        secure: the workflow by which updates are summed securely; None where each is seen.
    """

    def __init__(
        self, strategy: Any, arrays: Any, rounds: int, config: Any = None, secure: Any = None
    ) -> None:
        super().__init__()
        self.strategy, self.arrays, self.rounds = strategy, arrays, rounds
        self.config, self.secure = config, secure


def _refuse(*_: Any, **__: Any) -> Any:
    """Raise an error instead of reaching a client."""
    raise RuntimeError("gradaudit sends no messages")


class UnreachableGrid(Grid):
    """A grid whose clients can be counted but not reached."""

    run: Any = SimpleNamespace(run_id=1)
    set_run = push_messages = pull_messages = send_and_receive = _refuse

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def create_message(self, content: Any, message_type: str, dst_node_id: int, *_: Any) -> Any:
        """Make a message to a client."""
        return asked(content, message_type, dst_node_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the clients."""
        return range(10, 10 + self.clients)

    def get_nodes(self) -> Iterable[Any]:
        """Return the clients."""
        return [SimpleNamespace(node_id=node) for node in self.get_node_ids()]


class CountedClient(ClientProxy):
    """A legacy server's client that can be counted but not reached."""

    get_properties = get_parameters = fit = evaluate = reconnect = _refuse

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node


class LegacyStrategy:
    """A legacy strategy adapted to today's interface, which uses messages.

    Attributes:
        legacy: the strategy itself, outermost.
        secure: the workflow that sums updates securely; None where the strategy gets each.
        keys: of the arrays, which legacy parameters have in order alone.
    """

    def __init__(self, legacy: Any, secure: Any = None) -> None:
        self.legacy, self.secure, self.keys = legacy, secure, tuple[str, ...]()

    def _configure(self, kind: str, number: int, arrays: Any, _: Any, grid: Any) -> list[Message]:
        """Make the messages that ask clients to train, or to evaluate."""
        manager = SimpleClientManager()
        for node in grid.get_node_ids():
            manager.register(CountedClient(node))
        self.keys = tuple(arrays)
        parameters = compat.arrayrecord_to_parameters(arrays, keep_input=True)
        task = "fit" if kind == "train" else "evaluate"
        record = getattr(compat, f"{task}ins_to_recorddict")
        chosen = getattr(self.legacy, f"configure_{task}")(number, parameters, manager)
        return [asked(record(ins, True), kind, proxy.node_id) for proxy, ins in chosen]

    configure_train = partialmethod(_configure, "train")
    configure_evaluate = partialmethod(_configure, "evaluate")

    def aggregate_train(self, number: int, replies: Iterable[Message]) -> tuple[Any, None]:
        """Aggregate the clients' replies into the arrays that the strategy releases."""
        answers = [compat.recorddict_to_fitres(each.content, keep_input=True) for each in replies]
        if self.secure is not None:
            given = [parameters_to_ndarrays(each.parameters) for each in answers]
            mean = secure_mean(self.secure, given, [each.num_examples for each in answers])
            for each in answers:
                each.parameters = ndarrays_to_parameters(mean)
        results = [(CountedClient(10 + i), each) for i, each in enumerate(answers)]
        parameters, _ = self.legacy.aggregate_fit(number, results, [])
        if parameters is None:
            return None, None
        released = compat.parameters_to_arrayrecord(parameters, keep_input=True)
        return record_of(arrays_of(released, self.keys)), None


def _start(*given: Any, **named: Any) -> None:
    bound = _SIGNATURE.bind(*given, **named)
    bound.apply_defaults()
    keys = ("self", "initial_arrays", "num_rounds", "train_config")
    raise FirstRoundStarted(*(bound.arguments[key] for key in keys))


def _run(workflow: Any, grid: Any, context: Any) -> None:
    fit = workflow.fit_workflow
    secure = fit if isinstance(fit, SecAggPlusWorkflow) else None
    raise _legacy(context.strategy, context.config.num_rounds, secure)


def _start_grid(*, server: Any, config: Any, strategy: Any, **_: Any) -> None:
    if strategy is None and server is not None:
        strategy = server.strategy
    raise _legacy(strategy or LegacyFedAvg(), getattr(config, "num_rounds", 1))


def _legacy(strategy: Any, rounds: int, secure: Any = None) -> FirstRoundStarted:
    parameters = strategy.initialize_parameters(SimpleClientManager())
    made = parameters and compat.parameters_to_arrayrecord(parameters, keep_input=True)
    return FirstRoundStarted(LegacyStrategy(strategy, secure), made, rounds, secure=secure)


@contextmanager
def _stopping() -> Iterator[None]:
    """Make every start of the first round raise ``Started``."""
    ways: list[tuple[Any, str, Callable[..., None]]] = [
        (Strategy, "start", _start),
        (DefaultWorkflow, "__call__", _run),
        (server_app, "start_grid", _start_grid),
    ]
    before = [getattr(owner, name) for owner, name, _ in ways]
    try:
        for owner, name, way in ways:
            setattr(owner, name, way)
        yield
    finally:
        for (owner, name, _), kept in zip(ways, before, strict=True):
            setattr(owner, name, kept)


def started(app: Any, config: Mapping[str, Any]) -> tuple[FirstRoundStarted | None, str]:
    """Capture the server's strategy as it would start, or say why that fails."""
    try:
        with _stopping():
            app(UnreachableGrid(_MOST_WAITED_FOR), context_of(config, 1))
    except FirstRoundStarted as found:
        return found, ""
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        return None, f"the ServerApp stops before strategy.start: {first_line(error)}"
    return None, "the ServerApp never calls strategy.start"


def _uncounted(accountant: Any) -> Any:
    """A replacement for an accountant in simulated releases, which counts nothing."""
    spent = SimpleNamespace(epsilon=0.0, delta=0.0, num_releases=0)
    return SimpleNamespace(
        config=accountant.config,
        would_exceed=lambda event: False,
        compose=lambda event: None,
        get_privacy_spent=lambda: spent,
    )


class FlowerServer:
    """A strategy captured at its start, and the messages that it would send.

    Attributes:
        started: what it would start with.
        arrays: that the clients receive.
        config: of the run.
        clients: that are online.
        file: of the ServerApp, relative to the job's folder.
    """

    def __init__(
        self,
        found: FirstRoundStarted,
        arrays: ArrayRecord,
        clients: int | None,
        config: Mapping[str, Any],
        file: str,
    ) -> None:
        self.started, self.arrays, self.config, self.file = found, arrays, config, file
        self.strategy = found.strategy
        waits = _number_of(self.layers[-1], _FEWEST[:2], 2)
        self.clients = clients or max(waits, getattr(self.outermost, "num_sampled_clients", 0))

    @property
    def layers(self) -> list[Any]:
        """List the strategy and those that it wraps, outermost first."""
        found = [getattr(self.strategy, "legacy", self.strategy)]
        while isinstance(inner := getattr(found[-1], "strategy", None), Strategy | LegacyBase):
            found.append(inner)
        return found

    @property
    def outermost(self) -> Any:
        """Return the strategy as the app made it."""
        return self.layers[0]

    @property
    def legacy(self) -> bool:
        """Whether the strategy uses legacy parameters."""
        return isinstance(self.strategy, LegacyStrategy)

    @property
    def counted(self) -> str:
        """Name the number in a reply by which the mean weighs clients."""
        usual = "num_examples" if self.legacy else "num-examples"
        return str(getattr(self.layers[-1], "weighted_by_key", usual))

    def fresh(self) -> "FlowerServer":
        """Copy the strategy as before its first round; the copy's accountant counts nothing.

        Flower's accountant holds modules, which cannot be copied.
        """
        ledgers = [a for x in self.layers if (a := getattr(x, "accountant", None)) is not None]
        made = copy.copy(self)
        made.strategy = copy.deepcopy(self.strategy, {id(a): _uncounted(a) for a in ledgers})
        return made

    @property
    def numbers(self) -> range:
        """The numbers of the job's rounds."""
        return range(1, self.started.rounds + 1)

    def asks(self, kind: str, *numbers: int) -> bool:
        """Whether the strategy asks any client for this task in one of these rounds."""
        made = self.fresh()
        return any(made.asked(kind, number) for number in numbers)

    def asked(self, kind: str, number: int = 1) -> list[Message]:
        """Make the messages of a round, by default the first, by a fresh strategy.

        Raises:
            UsageError: there are fewer clients than the strategy waits for.
        """
        fewest = max(_number_of(self.layers[-1], _FEWEST[i : i + 2], 0) for i in (0, 2))
        if self.clients < fewest:
            raise UsageError(f"the strategy waits for {fewest} clients: --clients {self.clients}")
        config = ConfigRecord(dict(self.started.config or {}))
        configure = getattr(self.strategy, f"configure_{kind}")
        with quiet():
            return list(configure(number, self.arrays, config, UnreachableGrid(self.clients)))


def _number_of(strategy: Any, names: Iterable[str], default: int) -> int:
    return next((value for name in names if (value := getattr(strategy, name, None))), default)


def secure_mean(
    workflow: Any, arrays: Sequence[Sequence[np.ndarray]], counts: Sequence[int]
) -> list[np.ndarray]:
    """Compute the weighted mean that the server gets from a secure sum of clients' arrays."""
    levels, clip, weight = workflow.quantization_range, workflow.clipping_range, 0
    total = [np.zeros(each.shape, np.int64) for each in arrays[0]]
    for own, count in zip(arrays, counts, strict=True):
        ratio = round(count / workflow.max_weight * levels)
        scaled = quantize(parameters_multiply(list(own), ratio / levels), clip, levels)
        total = [sum_ + each for sum_, each in zip(total, scaled, strict=True)]
        weight += ratio
    share, *total = parameters_mod([np.array(weight), *total], workflow.modulus_range)
    real = dequantize(total, clip, levels)
    return [(each - (len(arrays) - 1) * clip) * (levels / share) for each in real]


def secure_sum_faults(workflow: Any, clients: int, file: str) -> Iterator[Fault]:
    """Returns the faults of a sum over clients: it holds a single client, or it wraps around."""
    name = type(workflow).__name__
    if clients < 2:
        key = "fraction_fit, min_fit_clients"
        yield fault("secure-sum-of-one", file, key, "server", clients=clients, part=name)
        return
    large = _LARGE * workflow.clipping_range
    heaviest = [int(workflow.max_weight)] * clients
    (mean,) = secure_mean(workflow, [[np.array([large])]] * clients, heaviest)
    if abs(mean.item() - large) > _SAME * large:
        most = 2 ** ((workflow.modulus_range // clients).bit_length() - 1)
        facts = {"clients": clients, "large": large, "mean": mean.item(), "most": most}
        key = f"{name}(quantization_range=)"
        yield fault("secure-sum-wraps", file, key, "server", part=name, **facts)
