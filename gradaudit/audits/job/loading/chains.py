"""A loaded federated job: the chains of filters that results pass through, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from gradaudit.audits.dp_audit.game.hypotheses import reproducible
from gradaudit.audits.dp_audit.middleware import ClippedGaussian, Middleware
from gradaudit.audits.dp_audit.middleware.payload import (
    LENGTHS,
    Arrays,
    Exchange,
    Form,
    Layout,
    Outgoing,
    Payload,
    simulated,
)
from gradaudit.core.randomness import sequence

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


@dataclass(frozen=True)
class Reply:
    """A number that somebody declares for clients' replies; without a name: there is none at all.

    Attributes:
        name: of the number.
        value: of a constant, a number or else a text; ``none`` if it is not sent, None if it
            follows from the data.
    """

    name: str = ""
    value: float | str | None = None


def plain_text(value: Any) -> str:
    """Write a constant as users declare it, whole numbers without a point."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)


VARIES = 0.3
"""Simulated value of a number that follows from the data."""
Carry = Callable[[Arrays, Outgoing], Outgoing]
"""Of the arrays received and the training's result to what leaves."""
State = dict[str, Any]
"""What a client's app keeps from one round to the next."""


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
        constants: values, as texts, of those that are declared to be the same in every reply.
        declared: names of those numbers that somebody declared; the others are the framework's
            usual ones, and assumed.
        scope: of the site's privacy policy, or empty.
        chosen: whether this is the scope that the job runs in.
        file: where a filter or mod is added.
        key: the key of that file.
        line: of that file; None where it is not known.
        known: the law of the whole chain, where it is known.
        bare: what becomes of a result without filters or mods.
        in_round: ``carry`` of a round's number and of the client's state, which it changes; None
            of a round whose results the server does not ask for.
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
    constants: Mapping[str, str] = field(default_factory=dict)
    declared: Collection[str] = ()
    scope: str = ""
    chosen: bool = True
    file: str = ""
    key: str = ""
    line: int | None = None
    known: ClippedGaussian | None = None
    bare: Carry = lambda received, given: given
    in_round: Callable[[int, State], Carry | None] | None = None
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

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the numbers that a reply is assumed to hold."""
        return tuple(name for name in self.numbers if name not in self.declared)

    def declare(self, replies: Sequence[Reply]) -> None:
        """Take these numbers for those of a reply; undeclared usual ones stay assumed."""
        self.numbers = {} if Reply() in replies else dict(self.numbers)
        for reply in (each for each in replies if each.name):
            if reply.value == "none":
                self.numbers.pop(reply.name, None)
            elif not isinstance(reply.value, str):
                self.numbers[reply.name] = VARIES if reply.value is None else reply.value
        self.declared = [reply.name for reply in replies]
        values = {reply.name: reply.value for reply in replies}
        self.constants = {k: plain_text(v) for k, v in values.items() if v not in (None, "none")}

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

    def of_round(self, number: int, state: State) -> JobChain | None:
        """Copy the chain as it runs in a round; None where the server asks for no result."""
        carry = self.in_round(number, state) if self.in_round else self.carry
        return None if carry is None else replace(self, carry=carry).receiving(self.layout)

    def equals(self, carry: Carry) -> bool:
        """Whether arrays leave as by another chain, bit for bit, with the same randomness."""
        unit = simulated(self.layout, 0)
        for length in (*LENGTHS, *(-length for length in LENGTHS)):
            arrays = self.layout.payload(unit.float() * length, self.form).arrays
            given = Outgoing(arrays, self.form, self.numbers, self.exchange)
            left = []
            for each in (self.carry, carry):
                copies = {key: array.copy() for key, array in arrays.items()}
                with reproducible(sequence(0, "equal"), unit.device):
                    left.append(each(self.layout.received, replace(given, arrays=copies)).arrays)
            first, second = left
            if first.keys() != second.keys():
                return False
            if not all(np.array_equal(first[key], second[key]) for key in first):
                return False
        return True

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
