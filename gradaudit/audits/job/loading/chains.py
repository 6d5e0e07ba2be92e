"""A loaded federated job: the chains of filters that results pass through, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from gradaudit.audits.dp_audit.middleware import ClippedGaussian, Middleware
from gradaudit.audits.dp_audit.middleware.payload import (
    Arrays,
    Exchange,
    Form,
    Layout,
    Outgoing,
    Payload,
)

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
        line: of the key in that file; None where it is not known.
    """

    name: str
    says: str
    repair: str
    file: str
    key: str
    task: str = ""
    level: Level = "error"
    line: int | None = None


FAULTS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8")
)
"""What is wrong, the repair, and the level of each fault that is no error, by the fault's name."""


def fault(
    name: str, file: str, key: str, task: str = "", *, level: Level | None = None, **facts: Any
) -> Fault:
    """Make a fault from the table of faults, with these facts in its text."""
    known = FAULTS[name]
    says, repair = (known[part].format(task=task, **facts) for part in ("says", "repair"))
    return Fault(name, says, repair, file, key, task, level or known.get("level", "error"))


Carry = Callable[[Arrays, Outgoing], Outgoing]
"""Of the arrays received and the training's result to what leaves."""


@dataclass(frozen=True)
class Link:
    """One filter or mod of a chain.

    Attributes:
        name: of its class or function.
        source: where it is configured: a file and a key.
        part: the object itself.
        alone: what it does by itself, where that is looked at.
    """

    name: str
    source: str
    part: Any
    alone: Carry | None = None


@dataclass(eq=False)
class JobChain(Middleware):
    """The filters or mods that the result of one task passes through, in order.

    Attributes:
        task: name of the task.
        links: filters or mods, the first that a result meets first.
        form: in which the training answers.
        carry: what becomes of a result on its way.
        carries: what the result holds.
        numbers: metrics, counts and meta data that the training sends beside its arrays.
        constants: names of those numbers that are the same in every reply.
        assumed: whether the numbers are the framework's usual ones, and nobody declared them.
        scope: of the site's privacy policy, or empty.
        chosen: whether this is the scope that the job runs in.
        file: where a filter or mod is added.
        key: the key of that file.
        line: of that file; None where it is not known.
        known: the law of the whole chain, where it is known.
        masked: whether arrays leave masked, so that the server sees the clients' sum alone.
        exchange: what the arrays are that the filters or mods get.
        exchanges: what they can be; those beside ``exchange`` are probed for what they leave.
        exchange_known: whether the job says which.
    """

    task: str
    links: Sequence[Link]
    form: Form
    carry: Carry
    _: KW_ONLY
    carries: Carries = "update"
    numbers: Mapping[str, float] = field(default_factory=dict)
    constants: Collection[str] = ()
    assumed: bool = True
    scope: str = ""
    chosen: bool = True
    file: str = ""
    key: str = ""
    line: int | None = None
    known: ClippedGaussian | None = None
    masked: bool = False
    exchange: Exchange = "numpy"
    exchanges: tuple[Exchange, ...] = ("numpy",)
    exchange_known: bool = True

    def __post_init__(self) -> None:
        named = f"{self.task} [{self.scope}]" if self.scope else self.task
        super().__init__(named, None, self.known)

    def fault(self, name: str, level: Level | None = None, **facts: Any) -> Fault:
        """Make a fault of this chain."""
        made = fault(name, self.file, self.key, self.task, level=level, **facts)
        return replace(made, line=self.line)

    def declare(self, numbers: Mapping[str, float | None]) -> None:
        """Take these numbers for those of a reply: constants by value, others None."""
        self.numbers = {name: 0.3 if value is None else value for name, value in numbers.items()}
        self.constants = [name for name, value in numbers.items() if value is not None]
        self.assumed = False

    @property
    def named(self) -> str:
        """The chain, as errors name it."""
        return f"the chain of {self.description}"

    def leaves(self, given: Outgoing) -> Outgoing:
        """Compute the result that leaves. Errors of the filters or mods are not caught."""
        copies = {key: array.copy() for key, array in given.arrays.items()}
        return self.carry(
            self.layout.received, replace(given, arrays=copies, exchange=self.exchange)
        )

    def deliver(self, received: Arrays, given: Payload) -> Payload:
        """Compute the arrays that leave, from the received model and the trained one."""
        outgoing = Outgoing(given.arrays, given.form, self.numbers, self.exchange)
        left = self.carry(received, outgoing)
        return Payload(left.arrays, left.form)


@dataclass
class LoadedJob:
    """A job folder that was loaded without any training.

    Attributes:
        framework: ``nvflare`` or ``flower``.
        model: how the model was named.
        layout: the arrays of the model that clients receive.
        chains: one for each task whose results leave a client, under each scope of the site.
        faults: found in the configuration.
        rounds: that the job runs; None where it does not say.
        clients: that take part in a round; None where the job does not say.
        online: clients that there are in all; None where the job does not say.
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
    online: int | None = None
    server: Any = None
    secure: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[tuple[Path, type]] = ()
    notes: list[str] = field(default_factory=list)
