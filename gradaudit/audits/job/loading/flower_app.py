"""Loads a Flower app: the mods that a client's replies pass through, and the server's strategy.

The ``ClientApp`` is imported and its mods are read; the functions that they wrap are never called.
Apps of messages and legacy ones, of ``client_fn`` and ``server_fn``, are composed alike.

Source: flwr 1.41, ``client/mod/utils.py`` (``make_ffn``) and ``clientapp/client_app.py``.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.client.mod import LocalDpMod as LegacyLocalDpMod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common.config import flatten_dict, get_project_config
from flwr.supercore.object_ref import load_app

from gradaudit.audits.dp_audit.mechanisms.flower_mods import FlowerMod
from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.flower_messages import (
    MASKING,
    arrays_of,
    asked,
    holding,
    name_of,
    record_of,
    through,
    usual,
)
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Layout
from gradaudit.audits.job.loading import fresh_imports, models_in, modules_in
from gradaudit.audits.job.loading.chains import (
    Carry,
    Fault,
    JobChain,
    Link,
    LoadedJob,
    State,
    fault,
)
from gradaudit.audits.job.loading.flower_server import (
    FirstRoundStarted,
    FlowerServer,
    secure_sum_faults,
    started,
)
from gradaudit.audits.job.loading.job_files import inside, read_job_file
from gradaudit.core.text import first_line
from gradaudit.errors import UsageError
from gradaudit.models.building import load_model

UPDATE_NUMBERS, OTHER_NUMBERS = {"train_loss": 0.3}, {"eval_loss": 0.3, "loss": 0.3}
"""What Flower's templates send beside their count of records."""
_WRAPPED = "make_ffn.<locals>.wrap_ffn.<locals>.new_ffn"
_NEEDED = {
    "DifferentialPrivacyClientSideFixedClipping": "fixedclipping_mod",
    "DifferentialPrivacyClientSideAdaptiveClipping": "adaptiveclipping_mod",
}
"""Strategies that leave clipping to a mod of the client."""


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
        tables = _tables(folder)
        app = dict(tables["app"])
        components = app["components"]
        config = flatten_dict(app.get("config", {}))
        client = _loaded(components, "clientapp", folder)
        found, note = started(_loaded(components, "serverapp", folder), config)
        layout, named = _model(found, model, folder, note)
        job = LoadedJob("flower", named, layout, [], config=config)
        job.models = models_in([folder])
        job.notes += [note] if note else []
        job.online = clients or _online(tables, config)
        if found is not None:
            arrays = found.arrays or record_of(layout.received)
            server_file = _file_of(components["serverapp"])
            job.server = FlowerServer(found, arrays, job.online, config, server_file)
            job.rounds = found.rounds
            job.secure = found.secure
            job.clients = len(job.server.fresh().asked("train"))
            if job.secure is not None:
                job.faults += secure_sum_faults(job.secure, job.clients or 0, server_file)
        file = _file_of(components["clientapp"])
        job.chains += _chains(client, job, folder, file)
        job.faults += _faults(client, job, folder, file)
    return job


def _name_task() -> None:
    """Name a task for this process, without which flwr 1.41 makes no message."""
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
    def read(path: Path) -> Mapping[str, Any]:
        tables = get_project_config(path.parent)["tool"]["flwr"]
        return {**tables, "app": tables["app"]}

    return read_job_file(inside(folder, folder / "pyproject.toml"), read)


def _online(tables: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Read how many clients there are: of the default federation, or of the configuration."""
    federations = dict(tables.get("federations") or {})
    chosen = federations.get(str(federations.get("default")))
    options = dict(chosen.get("options") or {}) if isinstance(chosen, Mapping) else {}
    named = (options.get("num-supernodes"), *map(config.get, ("num-supernodes", "num-clients")))
    return next((value for value in named if isinstance(value, int) and value > 0), None)


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


def _model(
    found: FirstRoundStarted | None, spec: str | None, folder: Path, why: str
) -> tuple[Layout, str]:
    if spec is not None:
        return Layout.of(load_model(spec).state_dict()), spec
    if found is None or not found.arrays:
        why = why or "its strategy starts without any"
        raise UsageError(
            f"{folder}: the server's first arrays are not known: {why}; mend it, or give "
            "--model FILE.py:factory"
        )
    return Layout(arrays_of(found.arrays)), "the ServerApp's initial arrays"


def mods_of(function: Callable[..., Any]) -> list[Any]:
    """List the mods around a function that Flower composed, outermost first."""
    return _unwrapped(function)[0]


def _unwrapped(function: Callable[..., Any]) -> tuple[list[Any], Callable[..., Any]]:
    mods = []
    while getattr(function, "__qualname__", "").endswith(_WRAPPED):
        names = function.__code__.co_freevars
        cells = dict(zip(names, (c.cell_contents for c in function.__closure__ or ()), strict=True))
        mods.append(cells["_mod"])
        function = cells["_ffn"]
    return mods, function


def _line_of(function: Callable[..., Any], path: Path) -> int | None:
    """Find the line on which a client's function begins; None where it is not of this file."""
    code = getattr(_unwrapped(function)[1], "__code__", None)
    return code.co_firstlineno if code and Path(code.co_filename) == path.resolve() else None


def _registered(client: ClientApp) -> dict[str, Callable[..., Any]]:
    """Look up a client's functions by message type; a legacy app has one for all."""
    if client._call is not None:
        return dict.fromkeys(("train.default", "evaluate.default"), client._call)
    return dict(client._registered_funcs)


def _chains(client: ClientApp, job: LoadedJob, folder: Path, file: str) -> Iterator[JobChain]:
    legacy = client._call is not None
    counted = "num_examples" if legacy else "num-examples"
    count = {counted if job.server is None else job.server.counted: 1.0}
    numbers = range(1, 2) if job.server is None else job.server.numbers
    for name, function in _registered(client).items():
        task = name.removesuffix(".default")
        mods = mods_of(function)
        kind = "train" if task.startswith("train") else "evaluate"
        if task == "evaluate" and job.server and not job.server.asks(kind, *numbers):
            job.notes.append(
                "an evaluation: the strategy asks for none, so its chain is not looked at"
            )
            continue
        message = _messages(job, kind, legacy)

        def carry(mods: Sequence[Any], message: Any = message, kind: str = kind) -> Carry:
            plain = _asking(usual(kind, legacy=legacy), kind, 1)
            first = next(filter(None, map(message, numbers)), plain)
            return partial(through, mods, job.config, first, kind, legacy, None)

        def in_round(
            number: int, state: State, mods: Any = mods, message: Any = message, kind: str = kind
        ) -> Carry | None:
            if message(number) is None:
                return None
            kept = state.setdefault("context", RecordDict())
            return partial(through, mods, job.config, message(number), kind, legacy, kept)

        chain = JobChain(
            task,
            [Link(name_of(mod), f"{file} mods", mod) for mod in reversed(mods)],
            "weights",
            carry(mods),
            carries="update" if kind == "train" else "numbers",
            numbers=count | (UPDATE_NUMBERS if kind == "train" else OTHER_NUMBERS),
            file=file,
            key=f"mods= of ClientApp or of @app.{task}",
            line=_line_of(function, folder / file),
            bare=carry([]),
            in_round=in_round,
            masked=job.secure is not None and not {*map(name_of, mods)}.isdisjoint(MASKING),
        )
        yield _with_law(chain.receiving(job.layout), mods, carry)


def _with_law(
    chain: JobChain, mods: Sequence[Any], carry: Callable[[Sequence[Any]], Carry]
) -> JobChain:
    """Add the law of the chain's one ``LocalDpMod``, if its other mods leave arrays alone."""
    plain = [mod for mod in mods if name_of(mod) not in MASKING]
    laws = [(mod, FlowerMod(mod, name_of(mod)).known) for mod in plain]
    laws = [(mod, law) for mod, law in laws if law is not None]
    if len(laws) != 1 or chain.carries != "update":
        return chain
    mod, law = laws[0]
    try:
        alone = len(plain) == 1 or chain.equals(carry([mod]))
    except (Exception, SystemExit):  # whatever the user's mods raise, which the probe reports
        alone = False
    return replace(chain, known=law).receiving(chain.layout) if alone else chain


def _messages(
    job: LoadedJob, kind: str, legacy: bool
) -> Callable[[int], Callable[[Arrays], Message] | None]:
    """Make the server's messages by round, as its strategy configures them; None of no message."""

    @cache
    def message(number: int) -> Callable[[Arrays], Message] | None:
        if job.server is None:
            content = usual(kind, number, legacy=legacy)
        elif not (messages := job.server.fresh().asked(kind, number)):
            return None
        else:
            content = messages[0].content
        return _asking(content, kind, number)

    return message


def _asking(content: Any, kind: str, number: int) -> Callable[[Arrays], Message]:
    return lambda received: asked(holding(content, received, {}), kind, 10, number)


def _faults(client: ClientApp, job: LoadedJob, folder: Path, file: str) -> Iterator[Fault]:
    """Find mods that a strategy needs or the client's module makes, but no chain runs."""
    wired = {name_of(m) for f in _registered(client).values() for m in mods_of(f)}
    for layer in job.server.layers if job.server is not None else ():
        needed = _NEEDED.get(type(layer).__name__)
        if needed and needed not in wired:
            why = f"{type(layer).__name__} leaves clipping to {needed}, which no client runs, so "
            why += "nothing clips the updates"
            yield fault("unwired-mod", file, "mods=", "train", why=why, part=needed)
    names = (name for name, path in modules_in([folder]) if path == (folder / file).resolve())
    for name, value in (each for own in names for each in vars(sys.modules[own]).items()):
        if isinstance(value, LocalDpMod | LegacyLocalDpMod) and "LocalDpMod" not in wired:
            why = f"{name}, a LocalDpMod, is made and in no list of mods, so it never runs"
            yield fault("unwired-mod", file, "mods=", "train", why=why, part=name)
