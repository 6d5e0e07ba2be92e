"""Shares independent tasks among joblib's workers; results do not depend on their number.

The workers are processes of this machine (loky), unless ``use_executor`` names a Dask or Ray
cluster.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager
from functools import cache, lru_cache
from importlib.metadata import version
from itertools import chain, islice
from pickle import PicklingError
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import ThreadpoolController, threadpool_limits

from gradaudit._version import __version__
from gradaudit.core.parts import library
from gradaudit.core.specs import suggest
from gradaudit.core.user_code import with_operators
from gradaudit.errors import AuditError, UsageError, one_line
from gradaudit.progress import Advance

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Advance], T]
"""A task, which reports how many of its units are done."""
Given = Callable[[int, Any], None]
"""Function that receives a task's number and result as soon as it is done."""

DEFAULT = "loky"
EXAMPLES = {"loky": "loky", "dask": "dask:tcp://HOST:8786", "ray": "ray:auto"}
"""Kinds of executors, each with a spec that names one."""
PATIENCE = 0.5
"""Seconds of short tasks that this process does before it starts workers."""
_ANSWER = 30
"""Seconds within which a cluster has to answer."""
_POLL = 0.5
"""Seconds between a worker's checks that its parent process is still there."""
_CHOSEN: dict[str, Any] = {"spec": DEFAULT, "backend": {"backend": DEFAULT}, "workers": 1}
"""The executor that was named last: its spec, joblib's arguments, its number of workers."""


def use_executor(spec: str, jobs: int | None = None) -> int:
    """Do all further work at an executor.

    Args:
        spec: ``loky``, ``dask:ADDRESS`` or ``ray:ADDRESS``.
        jobs: number of workers, if the user names it.

    Returns:
        That number, or the number of the cluster's workers.

    Raises:
        UsageError: there is no such executor, its library is missing, or it does not answer.
    """
    if spec != _CHOSEN["spec"]:
        kind, _, address = spec.partition(":")
        if kind not in EXAMPLES or (kind == DEFAULT) != (not address):
            raise UsageError(
                f"--executor {spec}: no such executor{suggest(kind, EXAMPLES)}; "
                f"name one of: {', '.join(EXAMPLES.values())}"
            )
        try:
            arguments, workers = _connected(kind, address, f"--executor {spec}")
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"--executor {spec}: cannot be reached ({one_line(error)}); is it running?"
            ) from error
        _CHOSEN.update(spec=spec, backend={"backend": kind, **arguments}, workers=max(1, workers))
    return jobs or int(_CHOSEN["workers"])


def _connected(kind: str, address: str, option: str) -> tuple[dict[str, Any], int]:
    """Returns arguments of joblib's backend and the number of workers."""
    if kind == "dask":
        distributed = library("distributed", "dask", option)
        client = distributed.Client(address, timeout=_ANSWER, set_as_default=False)
        return {"client": client, "pure": False}, sum(client.nthreads().values())
    if kind == "ray":
        ray = library("ray", "ray", option)
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        library("ray.util.joblib", "ray", option).register_ray()
        return {}, int(ray.cluster_resources().get("CPU", 1))
    return {}, 1


def on_this_machine() -> bool:
    """Whether workers are processes of this machine, which see the same files."""
    return bool(_CHOSEN["spec"] == DEFAULT)


@contextmanager
def one_thread() -> Iterator[None]:
    """Returns a context, or decorator, in which numerical libraries use one thread.

    Sums depend on the number of threads; torch has pools that nothing else can limit.
    """
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    with _pools(len(sys.modules)).limit(limits=1):
        if torch is None or threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """Returns the libraries' thread pools, searched again where more modules are loaded."""
    return ThreadpoolController()


def shared_out(
    tasks: Iterable[Task[T]],
    workers: int,
    advance: Advance,
    *,
    patience: float | None = None,
    given: Given = lambda number, value: None,
) -> list[T]:
    """Returns every task's result in order, from as many workers of one thread each.

    The tasks stay in this process, with one thread too, where one worker is enough, and where what
    they need, such as a user's model, cannot be shipped to another one. An exception of a task,
    and an interruption, end the work at once.

    Args:
        tasks: independent of one another; those that are made one by one are made here, while
            workers are busy with those before.
        workers: at most.
        advance: called with the units that the tasks advance by, in this process.
        patience: seconds of tasks that this process does first; ``PATIENCE`` where none is given.
        given: called with each task's number and result, in this process.

    Raises:
        AuditError: a worker was lost.
    """
    source: Iterator[tuple[int, Task[T]]] = enumerate(tasks)
    values: dict[int, T] = {}
    patience = PATIENCE if patience is None else patience
    start = time.monotonic() + patience if workers > 1 else math.inf
    while True:
        if time.monotonic() >= start:
            start, first = math.inf, [*islice(source, 2)]
            source = chain(first, source)
            if len(first) > 1 and _can_be_shipped(first[0][1]):
                with closing(_results(source, workers)) as results:
                    for number, value, units in results:
                        advance(units)
                        values[number] = value
                        given(number, value)
        number, task = next(source, (-1, None))
        if task is None:
            return [values[number] for number in range(len(values))]
        with one_thread():
            values[number] = task(advance)
        given(number, values[number])


def pickled(task: object) -> bytes:
    """Returns a task as bytes for workers; a PicklingError where it cannot be sent."""
    _ship_by_value(len(sys.modules))
    try:
        return cloudpickle.dumps(task)  # type: ignore[no-any-return]
    except TypeError as error:
        raise PicklingError(str(error)) from error


@lru_cache(maxsize=1)
def _ship_by_value(modules: int) -> None:
    """Pickle modules by value that another process could not import, such as a user's file."""
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    names = {module.partition(".")[0] for module in tuple(sys.modules)}
    for name in names - {"__main__", "__mp_main__"}:
        module = sys.modules.get(name)
        ours = isinstance(module, ModuleType) and (
            getattr(module, "__file__", None) or hasattr(module, "__path__")
        )
        if ours and not any(find and find(name, None) for find in finders):
            cloudpickle.register_pickle_by_value(module)


def received(task: bytes) -> Any:
    """Loads what was sent to a worker."""
    return with_operators(lambda: cloudpickle.loads(task))


def _can_be_shipped(task: object) -> bool:
    try:
        pickled(task)
    except PicklingError as error:
        log.info("no workers, the work cannot be shipped to them: %s", error)
        return False
    return True


def _results(
    tasks: Iterable[tuple[int, Task[Any]]], workers: int
) -> Generator[tuple[int, Any, int]]:
    """Yields number, result and units of each task as soon as it is done."""
    in_order = _CHOSEN["spec"].startswith("ray")  # its backend gives no results one by one
    local = {"initializer": _begin, "initargs": (os.getpid(),)} if on_this_machine() else {}
    with parallel_config(**_CHOSEN["backend"], **local):
        parallel = Parallel(
            n_jobs=workers,
            return_as="list" if in_order else "generator_unordered",
            pre_dispatch=2 * workers,
            batch_size=1,
            max_nbytes=None,
        )
    asked, process = _versions(), f"{platform.node()}:{os.getpid()}"
    try:
        with _deaf():
            results = parallel(
                delayed(perform)(number, pickled(task), asked, process) for number, task in tasks
            )
        yield from results
    except BrokenExecutor as error:
        raise AuditError(
            f"--executor {_CHOSEN['spec']}: a worker was lost ({one_line(error, 200)}); give "
            "workers more memory, or fewer --jobs"
        ) from error


def perform(number: int, task: bytes, asked: dict[str, str], process: str) -> tuple[int, Any, int]:
    """Do a task in a worker with one thread; returns its number, its result and its units.

    Raises:
        UsageError: the worker's versions differ from those of the asking process.
    """
    for name, here in _versions().items():
        if asked[name] != here:
            raise UsageError(
                f"--executor: the worker on {platform.node()} has {name} {here}, and this machine "
                f"has {asked[name]}; install the same there, as numbers depend on it"
            )
    work, units = received(task), list[int]()
    if process != f"{platform.node()}:{os.getpid()}":  # a cluster may be threads of the asker
        threadpool_limits(1)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
    return number, work(units.append), sum(units)


@cache
def _versions() -> dict[str, str]:
    """Returns the versions that change the numbers."""
    libraries = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {"gradaudit": __version__, "Python": platform.python_version(), **libraries}


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started within ignore interruptions from their start.

    Only the main thread may say who listens to them.
    """
    main = threading.current_thread() is threading.main_thread()
    listening = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if listening is not None:
            signal.signal(signal.SIGINT, listening)


def _begin(parent: int) -> None:
    """Leave interruptions and warnings to the parent process, and end when it is killed."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    threading.Thread(target=follow, daemon=True).start()
