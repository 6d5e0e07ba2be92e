"""Loads a Flower app: the mods that a client's replies pass through, and the server's strategy.

The ``ClientApp`` is imported and its mods are read; the functions that they wrap are never called.
The ``ServerApp`` runs up to ``strategy.start``, where its strategy, initial arrays and rounds are
taken; nothing is sent.

Source: flwr 1.41, ``client/mod/utils.py`` (``make_ffn``) and ``clientapp/client_app.py``.
"""

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common.config import flatten_dict, get_project_config
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.object_ref import load_app

from gradaudit.audits.dp_audit.mechanisms.flower import FlowerMod
from gradaudit.audits.dp_audit.middleware import ClippedGaussian, quiet
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Layout
from gradaudit.audits.job.chains import Fault, JobChain, Link, LoadedJob, Outgoing
from gradaudit.audits.job.folder import fresh_imports
from gradaudit.errors import AuditError, UsageError
from gradaudit.models.building import load_model
from gradaudit.user_code import first_line

NUMBERS = {"num-examples": 1.0, "train_loss": 0.3}
"""What Flower's templates send beside the arrays of an update."""
_DAY = 86400.0
_WRAPPED = "make_ffn.<locals>.wrap_ffn.<locals>.new_ffn"
_MOST_WAITED_FOR = 1000


def load(folder: Path, model: str | None, clients: int | None) -> LoadedJob:
    """Load a Flower app.

    Args:
        folder: with ``pyproject.toml``.
        model: where the server's arrays cannot be read.
        clients: that are online; as many as the strategy waits for without it.

    Raises:
        UsageError: the app cannot be loaded, or its model is not known.
    """
    with fresh_imports([folder]), quiet():
        _name_task()
        app = _tables(folder)
        components = app["components"]
        config = flatten_dict(app.get("config", {}))
        client = _loaded(components, "clientapp", folder)
        found, note = _server(_loaded(components, "serverapp", folder), config, folder)
        layout, named = _model(found, model, folder)
        job = LoadedJob("flower", named, layout, [])
        job.notes += [note] if note else []
        if found is not None:
            job.server, job.rounds = FlowerServer(found, clients, config), found.rounds
            job.clients = len(job.server.asked("train"))
        file = _file_of(components["clientapp"])
        job.chains += _chains(client, job, config, file)
        job.faults += _faults(client, job, folder, file, _file_of(components["serverapp"]))
    return job


def _name_task() -> None:
    """Give this process a task, without which flwr 1.41 makes no message; older ones need none."""
    try:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:
        return
    for name in ("run_id", "task_id", "node_id"):
        try:
            getattr(identity, name)
        except RuntimeError:
            setattr(identity, name, 1)


def _tables(folder: Path) -> Mapping[str, Any]:
    try:
        return dict(get_project_config(folder)["tool"]["flwr"]["app"])
    except (Exception, SystemExit) as error:  # whatever the parser raises
        raise UsageError(f"{folder}/pyproject.toml: {first_line(error)}") from error


def _loaded(components: Mapping[str, str], which: str, folder: Path) -> Any:
    if which not in components:
        raise UsageError(f"{folder}/pyproject.toml: [tool.flwr.app.components] has no {which}")
    try:
        return load_app(components[which], ImportError, folder)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        text = f"{folder}/pyproject.toml: {which} = {components[which]!r}: {first_line(error)}"
        raise UsageError(text) from error


def _file_of(reference: str) -> str:
    return reference.partition(":")[0].replace(".", "/") + ".py"


class _Started(BaseException):
    """Raised in place of the first round; what the strategy would have started with."""

    def __init__(self, strategy: Any, arrays: Any, rounds: int, config: Any) -> None:
        super().__init__()
        self.strategy, self.arrays, self.rounds, self.config = strategy, arrays, rounds, config


class NobodyOnline(Grid):
    """A grid of clients that are counted and never reached."""

    run: Any = SimpleNamespace(run_id=1)

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    def create_message(self, content: Any, message_type: str, dst_node_id: int, *_: Any) -> Any:
        """A message to a client."""
        return asked(content, message_type, dst_node_id)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of the clients."""
        return range(10, 10 + self.clients)

    def get_nodes(self) -> Iterable[Any]:
        """The clients."""
        return [SimpleNamespace(node_id=node) for node in self.get_node_ids()]

    def push_messages(self, messages: Any) -> Any:
        """Refuse to send."""
        raise RuntimeError("gradaudit sends no messages")

    def pull_messages(self, message_ids: Any) -> Any:
        """Refuse to receive."""
        raise RuntimeError("gradaudit receives no messages")

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """Refuse to send."""
        raise RuntimeError("gradaudit sends no messages")


def _server(app: Any, config: Mapping[str, Any], folder: Path) -> tuple[_Started | None, str]:
    """The server's strategy as it would start, or why it is not known."""

    def start(
        self: Any,
        grid: Any,
        initial_arrays: Any,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        raise _Started(self, initial_arrays, num_rounds, train_config)

    before = Strategy.start
    setattr(Strategy, "start", start)  # noqa: B010 - a method, for the time of this call
    try:
        app(NobodyOnline(_MOST_WAITED_FOR), _context(config, 1))
    except _Started as found:
        return found, ""
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        return None, f"the ServerApp stops before strategy.start: {first_line(error)}"
    finally:
        setattr(Strategy, "start", before)  # noqa: B010
    return None, "the ServerApp never calls strategy.start"


def _model(found: _Started | None, spec: str | None, folder: Path) -> tuple[Layout, str]:
    if spec is not None:
        return Layout.of(load_model(spec).state_dict()), spec
    if found is None or not found.arrays:
        raise UsageError(f"{folder}: the server's arrays are not known; give --model FILE:factory")
    arrays = {key: np.array(array.numpy()) for key, array in found.arrays.items()}
    return Layout(arrays), "the ServerApp's initial arrays"


def _context(config: Mapping[str, Any], node: int) -> Context:
    return Context(
        run_id=1,
        node_id=node,
        node_config={"partition-id": 0, "num-partitions": 2},
        state=RecordDict(),
        run_config=dict(config),
    )


def asked(content: Any, kind: str, node: int) -> Message:
    """A server's message to a client."""
    metadata = Metadata(
        run_id=1,
        message_id=f"m{node}",
        src_node_id=1,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="1",
        created_at=time.time(),
        ttl=_DAY,
        message_type=kind,
    )
    return make_message(metadata, content)


def record_of(arrays: Arrays) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


class _Uncounted:
    """In place of an accountant where a release is only simulated."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def would_exceed(self, event: Any) -> bool:
        """Never."""
        return False

    def compose(self, event: Any) -> None:
        """Count nothing."""

    def get_privacy_spent(self) -> Any:
        """Nothing."""
        return SimpleNamespace(epsilon=0.0, delta=0.0, num_releases=0)


class FlowerServer:
    """A strategy that was about to start, and the messages that it would send.

    Attributes:
        strategy: outermost.
        config: of the run.
    """

    def __init__(self, found: _Started, clients: int | None, config: Mapping[str, Any]) -> None:
        self.strategy, self.arrays, self.config = found.strategy, found.arrays, config
        self.train_config = found.config
        innermost = self.layers[-1]
        waits = getattr(innermost, "min_available_nodes", 2)
        declared = getattr(self.strategy, "num_sampled_clients", 0)
        self.clients = clients or max(waits, declared)

    @property
    def layers(self) -> list[Any]:
        """The strategy and those that it wraps, outermost first."""
        found = [self.strategy]
        while isinstance(inner := getattr(found[-1], "strategy", None), Strategy):
            found.append(inner)
        return found

    def fresh(self) -> Any:
        """A copy of the strategy as it is before its first round, whose accountant counts nothing.

        Flower's accountant holds modules, which cannot be copied.
        """
        ledgers = [a for x in self.layers if (a := getattr(x, "accountant", None)) is not None]
        return copy.deepcopy(self.strategy, {id(a): _Uncounted(a.config) for a in ledgers})

    def asked(self, kind: str, strategy: Any = None) -> list[Message]:
        """The messages of the first round, by this strategy or by a copy of the server's own.

        Raises:
            AuditError: there are fewer clients than the strategy waits for, or it fails.
        """
        innermost = self.layers[-1]
        fewest = getattr(innermost, "min_available_nodes", 0)
        if self.clients < max(fewest, getattr(innermost, "min_train_nodes", 0)):
            raise AuditError(f"the strategy waits for {fewest} clients: --clients {self.clients}")
        config = ConfigRecord(dict(self.train_config or {}))
        strategy = self.fresh() if strategy is None else strategy
        configure = getattr(strategy, f"configure_{kind}")
        with quiet():
            return list(configure(1, self.arrays, config, NobodyOnline(self.clients)))


def mods_of(function: Callable[..., Any]) -> list[Any]:
    """The mods around a function that Flower composed, outermost first."""
    mods = []
    while getattr(function, "__qualname__", "").endswith(_WRAPPED):
        names = function.__code__.co_freevars
        cells = dict(zip(names, (c.cell_contents for c in function.__closure__ or ()), strict=True))
        mods.append(cells["_mod"])
        function = cells["_ffn"]
    return mods


def _registered(client: ClientApp) -> dict[str, Callable[..., Any]]:
    """The functions of a client by message type; a legacy app has one for all."""
    if client._call is not None:
        return dict.fromkeys(("train.default", "evaluate.default"), client._call)
    return dict(client._registered_funcs)


def _chains(
    client: ClientApp, job: LoadedJob, config: Mapping[str, Any], file: str
) -> Iterator[JobChain]:
    for name, function in _registered(client).items():
        task = name.removesuffix(".default")
        mods = mods_of(function)
        numbers_only = not task.startswith("train")
        message = _message(job, "evaluate" if numbers_only else "train")
        answers = partial(_through, config, message)
        links = [
            Link(name_of(mod), f"{file} mods", mod, partial(answers, [mod]))
            for mod in reversed(mods)
        ]
        chain = JobChain(
            task,
            links,
            "weights",
            partial(answers, mods),
            carries="numbers" if numbers_only else "update",
            numbers={"num-examples": 1.0, "eval_loss": 0.3} if numbers_only else NUMBERS,
            file=file,
            key=f"mods= of ClientApp or of @app.{task}",
            law=_law(mods),
        )
        yield chain.receiving(job.layout)


def name_of(mod: Any) -> str:
    """The name of a mod: its function's, or its class's."""
    return str(getattr(mod, "__name__", type(mod).__name__))


def _law(mods: list[Any]) -> ClippedGaussian | None:
    """The law of a chain that is one ``LocalDpMod``; None where it is not known."""
    if len(mods) != 1 or type(mods[0]) is not LocalDpMod:
        return None
    return FlowerMod(mods[0], "LocalDpMod").known


def _message(job: LoadedJob, kind: str) -> Callable[[Arrays], Message]:
    """The server's message with these arrays, as its strategy configures it."""
    content: Mapping[str, Any] = {"arrays": None, "config": ConfigRecord({"server-round": 1})}
    if job.server is not None:
        messages = job.server.asked(kind)
        content = dict(messages[0].content.items()) if messages else content

    def made(received: Arrays) -> Message:
        records = {
            key: record_of(received)
            if record is None or isinstance(record, ArrayRecord)
            else type(record)(dict(record))
            for key, record in content.items()
        }
        return asked(RecordDict(records), kind, 10)

    return made


def _through(
    config: Mapping[str, Any],
    message: Callable[[Arrays], Message],
    mods: list[Any],
    received: Arrays,
    given: Outgoing,
) -> Outgoing:
    """What leaves of a result by Flower's own ``make_ffn``."""

    def trained(incoming: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord(_plain(given.numbers))})
        if given.arrays:
            content["arrays"] = record_of(given.arrays)
        return Message(content, reply_to=incoming)

    with quiet():
        answer = make_ffn(trained, mods)(message(received), _context(config, 10))
    return outgoing(answer)


def replied(message: Message, chain: JobChain, config: Mapping[str, Any], content: Any) -> Message:
    """A client's reply to a message of the server, through its chain of mods."""

    def trained(incoming: Message, context: Context) -> Message:
        return Message(content, reply_to=incoming)

    mods = [link.part for link in reversed(chain.links)]
    return make_ffn(trained, mods)(message, _context(config, message.metadata.dst_node_id))


def _plain(numbers: Mapping[str, float]) -> dict[str, int | float | list[int] | list[float]]:
    return {key: int(v) if float(v).is_integer() else v for key, v in numbers.items()}


def outgoing(answer: Message) -> Outgoing:
    """What a reply holds.

    Raises:
        AuditError: it is an error.
    """
    if answer.has_error():
        raise AuditError(f"the reply is an error: {answer.error.reason}")
    arrays = {
        key: array.numpy()
        for record in answer.content.array_records.values()
        for key, array in record.items()
    }
    numbers = {
        key: float(value)
        for record in answer.content.metric_records.values()
        for key, value in record.items()
        if isinstance(value, int | float)
    }
    return Outgoing(arrays, "weights", numbers)


def _faults(
    client: ClientApp, job: LoadedJob, folder: Path, file: str, server_file: str
) -> Iterator[Fault]:
    wired = {name_of(m) for f in _registered(client).values() for m in mods_of(f)}
    yield from _missing_mods(job, wired, file)
    yield from _unwired(folder, file, wired)


_NEEDED = {
    "DifferentialPrivacyClientSideFixedClipping": "fixedclipping_mod",
    "DifferentialPrivacyClientSideAdaptiveClipping": "adaptiveclipping_mod",
}
"""Strategies that leave clipping to a mod of the client."""


def _missing_mods(job: LoadedJob, wired: set[str], file: str) -> Iterator[Fault]:
    for layer in job.server.layers if job.server is not None else ():
        needed = _NEEDED.get(type(layer).__name__)
        if needed and needed not in wired:
            yield Fault(
                "unwired-mod",
                f"{type(layer).__name__} leaves clipping to {needed}, which no client runs, so "
                "nothing clips the updates",
                f"add {needed} to mods=[…] of the ClientApp or of @app.train",
                file,
                "ClientApp(mods=)",
                "train",
            )


def _unwired(folder: Path, file: str, wired: set[str]) -> Iterator[Fault]:
    """Mods of local differential privacy that the client's module makes and no chain runs."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", "")) != str((folder / file).resolve()):
            continue
        for name, value in vars(module).items():
            if isinstance(value, LocalDpMod) and "LocalDpMod" not in wired:
                yield Fault(
                    "unwired-mod",
                    f"{name}, a LocalDpMod, is made and in no list of mods, so it never runs",
                    f"add {name} to mods=[…] of @app.train",
                    file,
                    "@app.train(mods=)",
                    "train",
                )
