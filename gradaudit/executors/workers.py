"""Shares out tasks among workers by joblib; results do not depend on how many workers there are.

All parallel work runs in one place, which ``use_executor`` chooses: processes of this machine
(loky), unless the user names a Dask or Ray cluster.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from pickle import PicklingError
from typing import Any, TypeVar

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import ThreadpoolController

from gradaudit.core.parts import library
from gradaudit.core.specs import suggest
from gradaudit.errors import AuditError, UsageError, one_line
from gradaudit.executors.shipping import opened, perform, pickled, ship_by_value, versions
from gradaudit.progress import Advance

log = logging.getLogger(__name__)

T = TypeVar("T")
Task = Callable[[Advance], T]
"""A task, which reports how many of its units are done."""
Numbered = Iterator[tuple[int, Task[T]]]
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


@dataclass
class _Executor:
    """The executor that was named last: joblib's backend and its arguments."""

    spec: str = DEFAULT
    backend: str = DEFAULT
    arguments: dict[str, Any] = field(default_factory=dict)
    workers: int = 1


_CHOSEN = _Executor()


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
    if spec != _CHOSEN.spec:
        kind, _, address = spec.partition(":")
        connect = {"loky": _loky, "dask": _dask, "ray": _ray}.get(kind)
        if connect is None or (kind == DEFAULT) != (not address):
            raise UsageError(
                f"--executor {spec}: no such executor{suggest(kind, EXAMPLES)}; "
                f"name one of: {', '.join(EXAMPLES.values())}"
            )
        arguments, workers = connect(spec, address)
        _CHOSEN.spec, _CHOSEN.backend = spec, kind
        _CHOSEN.arguments, _CHOSEN.workers = arguments, workers
    return jobs or _CHOSEN.workers


def _loky(spec: str, address: str) -> tuple[dict[str, Any], int]:
    return {}, 1


def _dask(spec: str, address: str) -> tuple[dict[str, Any], int]:
    distributed = library("distributed", "dask", f"--executor {spec}")
    try:
        client = distributed.Client(address, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise _unreachable(spec, error) from error
    return {"client": client, "pure": False}, max(1, sum(client.nthreads().values()))


def _ray(spec: str, address: str) -> tuple[dict[str, Any], int]:
    ray = library("ray", "ray", f"--executor {spec}")
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise _unreachable(spec, error) from error
    library("ray.util.joblib", "ray", f"--executor {spec}").register_ray()
    return {}, max(1, int(ray.cluster_resources().get("CPU", 1)))


def _unreachable(spec: str, error: Exception) -> UsageError:
    return UsageError(f"--executor {spec}: cannot be reached ({one_line(error)}); is it running?")


def on_this_machine() -> bool:
    """Whether workers are processes of this machine, which see the same files."""
    return _CHOSEN.backend == DEFAULT


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
    source: Numbered[T] = enumerate(tasks)
    values: dict[int, T] = {}

    def take(number: int, value: T) -> None:
        values[number] = value
        given(number, value)

    if workers > 1:
        _here(source, advance, take, PATIENCE if patience is None else patience)
        first = [*islice(source, 2)]
        source = chain(first, source)
        if len(first) > 1:
            unsent: list[tuple[int, Task[T]]] = []
            for number, value in _done(source, workers, advance, unsent):
                take(number, value)
            source = chain(unsent, source)
    _here(source, advance, take)
    return [values[number] for number in range(len(values))]


def _here(
    tasks: Numbered[T], advance: Advance, take: Callable[[int, T], None], patience: float = math.inf
) -> None:
    """Does the first tasks in this process with one thread, until they took so long."""
    begun = time.monotonic()
    while time.monotonic() - begun < patience:
        number, task = next(tasks, (None, None))
        if number is None or task is None:
            return
        with one_thread():
            value = task(advance)
        take(number, value)


@dataclass(frozen=True)
class Workers:
    """The workers of an audit's parts: ``jobs`` at most."""

    jobs: int = 1

    def share(
        self,
        tasks: Sequence[Task[T]],
        advance: Advance,
        *,
        patience: float | None = None,
        given: Given = lambda number, value: None,
    ) -> list[T]:
        """Returns every task's result in order; see ``shared_out``."""
        return shared_out(tasks, self.jobs, advance, patience=patience, given=given)


ALONE = Workers()
"""Workers that are this process alone."""


def _done(
    tasks: Numbered[T], workers: int, advance: Advance, unsent: list[tuple[int, Task[T]]]
) -> Iterator[tuple[int, T]]:
    """Yields numbers and results from workers; stops at a task that cannot be shipped."""
    ship_by_value()

    def calls() -> Iterator[Any]:
        for number, task in tasks:
            try:
                yield delayed(perform)(number, pickled(task), versions())
            except PicklingError as error:
                log.info("no workers, the work cannot be shipped to them: %s", error)
                unsent.append((number, task))
                return

    with closing(_results(calls(), workers)) as results:
        for number, answer in results:
            value, units = opened(answer)
            advance(units)
            yield number, value


def _results(calls: Iterator[Any], workers: int) -> Generator[tuple[int, bytes]]:
    in_order = _CHOSEN.backend == "ray"  # its backend gives no results one by one
    local = {"initializer": _begin, "initargs": (os.getpid(),)} if on_this_machine() else {}
    with parallel_config(_CHOSEN.backend, **_CHOSEN.arguments, **local):
        parallel = Parallel(
            n_jobs=workers,
            return_as="list" if in_order else "generator_unordered",
            pre_dispatch=2 * workers,
            batch_size=1,
            max_nbytes=None,
        )
    try:
        with _deaf():
            results = parallel(calls)
        yield from results
    except BrokenExecutor as error:
        raise AuditError(
            f"--executor {_CHOSEN.spec}: a worker was lost ({one_line(error, 200)}); give workers "
            "more memory, or fewer --jobs"
        ) from error


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
