"""A federated job as it was loaded: the chains that results pass through, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gradaudit.audits.dp_audit.middleware import ClippedGaussian, Middleware
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Form, Layout, Payload

Level = Literal["error", "warning", "note"]
Carries = Literal["update", "model", "numbers"]
"""What a task's result holds: an update, the local model, or metrics without arrays."""


@dataclass(frozen=True)
class Fault:
    """A fault of a job, with the change that repairs it.

    Attributes:
        name: its name in words joined by hyphens.
        says: what is wrong, a clause.
        repair: what to change, a clause in the imperative.
        file: the file to change, relative to the job's folder.
        key: the key or function in that file.
        task: the task or chain that it is found in.
        level: ``error`` where privacy is lost, ``warning`` where it may be or the model is wrong,
            ``note`` where only utility is lost or the training alone decides.
    """

    name: str
    says: str
    repair: str
    file: str
    key: str
    task: str = ""
    level: Level = "error"


_ADD = "add a filter or mod that clips the update and adds noise"
_FIXED = "use fixed clipping (DifferentialPrivacyServerSideFixedClipping)"
LEVELS: Mapping[str, Level] = {
    "secure-sum-without-noise": "warning",
    "float16-after-noise": "note",
    "svt-ledger": "warning",
    "chain-fails": "note",
    "events-in-clear": "note",
    "secure-sum-wraps": "warning",
}
"""What faults cost that are no errors."""
REPAIRS: Mapping[str, str] = {
    "update-unfiltered": _ADD,
    "model-unfiltered": _ADD,
    "metrics-unfiltered": "filter them, or validate on the server's own data",
    "secure-sum-without-noise": "add noise on the clients, or by a strategy of the server",
    "untouched-arrays": "clip and blur every array, or keep these on the client",
    "arrays-without-noise": "add noise to every array that leaves",
    "numbers-in-clear": "send a constant, or remove them by a filter or mod",
    "noise-on-weights": "subtract the weights received before clipping",
    "noise-fixed-seed": "draw from a generator that no constant seeds",
    "noise-reused": "draw new noise in each round",
    "no-noise": "add a filter or mod that adds noise after the clip",
    "noise-below-declared": "add the whole noise on each client, or account for what is added",
    "clip-after-noise": "clip first, then add noise",
    "clip-from-own-data": "clip to a constant that no client's data decides",
    "no-clip": "clip the update to a constant norm before the noise",
    "clip-per-array": "clip the whole update, or scale the noise by the joint sensitivity",
    "float16-before-noise": "add the noise in single precision, then round",
    "float16-after-noise": "add the noise in single precision, then round",
    "pattern-matches-nothing": "name the model's arrays in exclude_vars",
    "filter-fails-open": "give gamma above 0 and percentile within 0 to 100",
    "converts-nothing": "set params_transfer_type to DIFF, and remove the filter",
    "filter-passes-kind": "name the kind that is sent in its data_kinds",
    "svt-ledger": "clip the whole update and add Gaussian noise instead",
    "chain-fails": "put the mod or filter on the training alone",
    "filter-direction-in": 'write "direction": "out", or leave the key out',
    "swarm-result-filters-dead": "move them to task_data_filters of "
    "swarm_report_learn_result, direction out",
    "filter-task-wildcard": "name each task",
    "filter-wrong-task": "name one of the executors' tasks",
    "unwired-filter": "move it to task_result_filters of the task that it is for",
    "unwired-mod": "add it to mods=[…] of the ClientApp or of @app.train",
    "events-in-clear": "log nothing of the data, or remove ConvertToFedEvent",
    "weaker-scope": "name the stronger scope in meta.json, or let the site remove it",
    "secure-sum-of-one": "let at least two clients, better dozens, take part in every round",
    "secure-sum-wraps": "lower quantization_range",
    "clip-of-the-sum": "use DifferentialPrivacyClientSideFixedClipping and fixedclipping_mod",
    "adaptive-clip-noise": _FIXED,
    "adaptive-clip-direction": _FIXED,
    "server-noise-too-small": "clip every update before the mean, or raise the noise",
    "fewer-clients": "set num_sampled_clients to the clients that take part",
    "mean-weighted-by-counts": "send num-examples=1 from every client",
}
"""The change that repairs each fault, where nothing nearer is known."""


def fault(
    name: str,
    says: str,
    file: str,
    key: str,
    task: str = "",
    *,
    repair: str = "",
    level: Level | None = None,
) -> Fault:
    """A fault with what it costs and its repair, of the tables where none are given."""
    cost = level or LEVELS.get(name, "error")
    return Fault(name, says, repair or REPAIRS[name], file, key, task, cost)


@dataclass(frozen=True)
class Outgoing:
    """A client's result: arrays, their form, and the numbers that travel beside them."""

    arrays: Arrays
    form: Form
    numbers: Mapping[str, float]


Carry = Callable[[Arrays, Outgoing], Outgoing]
"""Of the arrays received and the training's result to what leaves."""


@dataclass(frozen=True)
class Link:
    """One filter or mod of a chain.

    Attributes:
        name: of its class or function.
        source: where it is configured: a file and a key.
        part: the object itself.
        alone: what this filter or mod does by itself.
    """

    name: str
    source: str
    part: Any
    alone: Carry


class JobChain(Middleware):
    """The filters or mods that the result of one task passes through, in order.

    Attributes:
        task: name of the task.
        links: filters or mods, the first that a result meets first.
        carries: what the result holds.
        numbers: metrics, counts and meta data that the training sends beside its arrays.
        scope: of the site's privacy policy, or empty.
        chosen: whether this is the scope that the job runs in.
        file: where a filter or mod is added.
        key: the key of that file.
        counts: which of the numbers count records or steps.
        masked: whether arrays leave masked, so that the server sees the clients' sum alone.
    """

    def __init__(
        self,
        task: str,
        links: Sequence[Link],
        form: Form,
        carry: Carry,
        *,
        carries: Carries = "update",
        numbers: Mapping[str, float] | None = None,
        scope: str = "",
        chosen: bool = True,
        file: str = "",
        key: str = "",
        law: ClippedGaussian | None = None,
        masked: bool = False,
    ) -> None:
        super().__init__(f"{task} [{scope}]" if scope else task, None, law)
        self.task, self.links, self.form, self.carry = task, tuple(links), form, carry
        self.carries, self.numbers = carries, dict(numbers or {})
        self.scope, self.chosen, self.file, self.key = scope, chosen, file, key
        self.masked = masked

    def fault(self, name: str, says: str, level: Level | None = None) -> Fault:
        """A fault of this chain, with its usual repair."""
        return fault(name, says, self.file, self.key, self.task, level=level)

    def leaves(self, given: Outgoing) -> Outgoing:
        """What leaves of a result. Whatever the filters or mods raise passes through."""
        copies = {key: array.copy() for key, array in given.arrays.items()}
        return self.carry(self.layout.received, replace(given, arrays=copies))

    def deliver(self, received: Arrays, given: Payload) -> Payload:
        """The arrays that leave where the client received one model and answers with another."""
        left = self.carry(received, Outgoing(given.arrays, given.form, self.numbers))
        return Payload(left.arrays, left.form)


@dataclass
class LoadedJob:
    """A job folder as it was loaded, without any training.

    Attributes:
        framework: ``nvflare`` or ``flower``.
        model: how the model was named.
        layout: the arrays of the model that clients receive.
        chains: one for each task whose results leave a client, under each scope of the site.
        faults: found in the configuration.
        rounds: that the job runs; None where it does not say.
        clients: that take part in a round; None where the job does not say.
        server: the strategy that releases the mean, where the framework has one.
        secure: the workflow by which updates are summed securely; None where each is seen.
        config: settings of the run and arguments of its training, by name.
        models: classes of models that the job's own code defines, with their files.
        notes: what could not be told.
    """

    framework: Literal["nvflare", "flower"]
    model: str
    layout: Layout
    chains: list[JobChain]
    faults: list[Fault] = field(default_factory=list)
    rounds: int | None = None
    clients: int | None = None
    server: Any = None
    secure: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[tuple[Path, type]] = ()
    notes: list[str] = field(default_factory=list)
