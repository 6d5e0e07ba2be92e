"""The live observer: looks at an update before it leaves, within a share of the time it took."""

import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import JsonValue

from gradaudit.attacks.reading import ReadingUnit, ReadingValue, reading_units
from gradaudit.audits.observe.certified import certified_rows
from gradaudit.errors import GradauditError, NotApplicable, UsageError, one_line
from gradaudit.formats import format_for
from gradaudit.judging import Policy, gate, read_policy
from gradaudit.observer.saved_updates import save_update
from gradaudit.observer.shared_verdict import Verdict, report_of
from gradaudit.report import Report, utc_now
from gradaudit.sharing.named import Array, NamedUpdate, named_update
from gradaudit.subject import Subject

_FIRST = 5e-4
"""Seconds that a piece of work is taken to need before it has run, and"""
_EACH = 4e-9
"""seconds for each element that it reads."""
_SAFETY = 1.2


class Allowance:
    """Seconds that observing may take: a share of the seconds that were worked.

    What is not spent is kept for later; what was overspent is owed.

    Attributes:
        share: share of the time that training takes.
        left: seconds.
        worked: seconds of training in all.
        spent: seconds in all.
    """

    def __init__(self, share: float) -> None:
        self.share, self.left = share, 0.0
        self.worked = self.spent = 0.0

    def earn(self, seconds: float) -> None:
        """Add seconds of training work.

        Raises:
            UsageError: that is no time.
        """
        if not 0 <= seconds < math.inf:
            raise UsageError(f"seconds: {seconds:g} is not how long training took")
        self.worked += seconds
        self.left += self.share * seconds

    def spend(self, seconds: float) -> None:
        """Subtract seconds that observing took."""
        self.spent += seconds
        self.left -= seconds


class PieceTimes:
    """Expected durations of pieces of work: the last duration and a fifth more for safety."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def expected(self, key: Hashable, elements: int) -> float:
        """Estimates the seconds of a piece of work."""
        return _SAFETY * self._seconds.get(key, _FIRST + _EACH * elements)

    def took(self, key: Hashable, seconds: float) -> None:
        """Record a piece's time; a shorter time than before counts half."""
        known = self._seconds.get(key, seconds)
        self._seconds[key] = max(seconds, (known + seconds) / 2)


def stopwatch() -> Callable[[], float]:
    """Yields a function of the seconds since now."""
    begun = time.perf_counter()
    return lambda: time.perf_counter() - begun


log = logging.getLogger(__name__)

OnFail = Literal["tell", "raise", "withhold"]
"""What an observer does with an update that the policy does not let pass."""
SHARE = 0.05
_LEAST = 1 / 64
"""Share of a layer's rows below which the layer is left out."""
_LONGEST = 100
"""Largest number of characters in a file's name."""
_NO_TIME = (
    "there was no time left to look at it: the observer may take {0:.0%} of the training time, "
    "which is {1:.3g} s so far; raise share"
)


States = Callable[[], tuple[Mapping[str, Array] | None, Mapping[str, Array]]]
"""Reads the arrays that came and those that leave."""


def warn(message: str, *args: object) -> None:
    """Log a warning; a log handler that raises ends no training."""
    with contextlib.suppress(Exception):
        log.warning("gradaudit: " + message, *args)


class Blocked(GradauditError):  # noqa: N818 - a verdict, not a fault
    """Raised where a policy does not let an update leave."""

    exit_status = 1


@dataclass(frozen=True)
class Observation:
    """An observation of an update: its verdict, its judged report and the report's file.

    Attributes:
        verdict: all that may travel.
        report: the judged report, which stays here; None where nothing could be observed.
        file: where it lies.
    """

    verdict: Verdict
    report: Report | None = None
    file: Path | None = None


class Observer:
    """Observes updates before they leave.

    What gives most for its time is read first (``gradaudit.attacks.reading``); rows of large
    layers are cut to fit, and what there is no time for is a skipped row that says so, which lets
    no rule pass. Time not used is kept for the next update. Writing captured updates is not
    counted: it is asked for.

    Args:
        folder: where reports are written, as ``LABEL.json``; it is made.
        policy: policy that judges the report, or its file; without one the default policy.
        share: share of the training time that observing may take.
        on_fail: ``tell`` the verdict alone; ``raise`` ``Blocked`` and let nothing leave; or
            ``withhold``: what came leaves instead (the integrations do it).
        capture: a folder where updates are saved too, as safetensors, for ``attack … --update``.
        model: what reports call the model.
        loss: the training loss, for the report.
        smoothing: label smoothing of that loss; where it is positive, no class is named.
        subject: the model, its loss and the table that it trains on, as ``gradaudit.Target(model,
            records, loss=…).subject``: gradients of steps are then searched for rows that they
            prove, after everything else and within the same share of the time. The search cannot be
            interrupted: time beyond the expected is taken off later observations.
        records: number of records behind an update for which no number is given.

    Raises:
        UsageError: the policy cannot be read, an option is out of range, or a folder cannot be
            made.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        policy: Policy | str | Path | None = None,
        share: float = SHARE,
        on_fail: OnFail = "tell",
        capture: str | Path | None = None,
        model: str = "model",
        loss: str = "unknown loss",
        smoothing: float = 0.0,
        subject: Subject | None = None,
        records: int | None = None,
    ) -> None:
        if not (isinstance(share, int | float) and 0 < share <= 1):
            raise UsageError(f"share: {share!r} is no share of the time; take 0.05, at most 1")
        if not (isinstance(smoothing, int | float) and 0 <= smoothing <= 1):
            raise UsageError(f"smoothing: {smoothing!r} is no share; give the loss's, from 0 to 1")
        if not isinstance(policy, Policy | str | Path | None):
            raise UsageError(f"policy: {policy!r} is neither a Policy nor the file of one")
        if on_fail not in ("tell", "raise", "withhold"):
            raise UsageError(f"on_fail: {on_fail!r} is none of 'tell', 'raise' and 'withhold'")
        self.folder, self.capture = _made(folder, "folder"), _made(capture, "capture")
        self.policy = read_policy(policy) if isinstance(policy, str | Path) else policy
        self.on_fail, self.model, self.loss = on_fail, model, loss
        self.smoothing, self.subject, self.records = smoothing, subject, records
        self.allowance, self._pace = Allowance(share), PieceTimes()
        self._count, self._rows = 0, 1
        self._make_ready()

    def observe(
        self,
        before: Mapping[str, Array] | None,
        after: Mapping[str, Array],
        *,
        seconds: float,
        label: str | None = None,
        **how: Any,
    ) -> Observation:
        """Observe one update.

        Args:
            before: the weights that the client received, by name; not needed for a gradient.
            after: the weights or the gradient that leave, by the same names.
            seconds: that training it took.
            label: label for the report's file; characters that a path cannot have are dropped, and
                without a label files are counted.
            how: ``kind``, ``parameters``, ``records``, ``smoothing`` and ``state`` of
                ``named_update``.

        Returns:
            The verdict, and the report that stays here. Where names do not match, or anything else
            goes wrong, the verdict is ``undecided`` and says why: the update was not looked at, and
            may not leave; training goes on.

        Raises:
            Blocked: the policy does not let it pass, and ``on_fail`` is ``raise``.
        """
        return self.observe_states(lambda: (before, after), seconds=seconds, label=label, **how)

    def observe_states(
        self, states: States, *, seconds: float, label: str | None = None, **how: Any
    ) -> Observation:
        """Observe one update whose states are read here, so that their errors end no training.

        Args:
            states: reads what came and what leaves.
            seconds: that training it took.
            label: as in ``observe``.
            how: as in ``observe``.

        Raises:
            Blocked: as ``observe``.
        """
        self._count += 1
        label, spent = _file_name(str(label or f"{self._count:05}")), stopwatch()
        try:
            self.allowance.earn(seconds)
            observation = self._looked_at(*states(), seconds, label, how)
        except Exception as error:
            fault = str(error) if isinstance(error, GradauditError) else one_line(error)
            warn("%s is not observed: %s", label, fault)
            observation = Observation(Verdict.unobserved(fault))
            self.allowance.spend(spent())
        if self.on_fail == "raise" and not observation.verdict.may_leave:
            where = f" (see {observation.file})" if observation.file else ""
            raise Blocked(f"the update {label} may not leave: {observation.verdict}{where}")
        return observation

    def _looked_at(
        self,
        before: Mapping[str, Array] | None,
        after: Mapping[str, Array],
        seconds: float,
        label: str,
        how: Mapping[str, Any],
    ) -> Observation:
        """Read the update, judge the report, and write the files.

        Raises:
            AuditError: the arrays do not match.
            NotApplicable: there is no time.
            UsageError: a file cannot be written.
        """
        if self.allowance.left < self._rows * self._pace.expected("row", 0):
            raise NotApplicable(self._no_time)
        spent, started = stopwatch(), utc_now()
        how = {"smoothing": self.smoothing, **how, "records": how.get("records") or self.records}
        update = named_update(before, after, **how)
        todo = [*reading_units(update), certified_rows(update, self.subject)]
        self._rows = sum(len(piece.metrics) for piece in todo)
        reserved = spent() + self._rows * self._pace.expected("row", 0)
        rows = list(self._readings(todo, self.allowance.left - reserved))
        read = spent()
        facts: dict[str, JsonValue] = {
            "started": started,
            "finished": utc_now(),
            "observed": {"label": label, "trained_seconds": seconds, "read_seconds": read},
        }
        judged = gate(self._report(update, rows, facts), self.policy)
        file = None if self.folder is None else self.folder / f"{label}.json"
        if file is not None:
            judged.save(file)
        self._pace.took("row", (spent() - read) / self._rows)
        self.allowance.spend(spent())
        if self.capture is not None:
            save_update(self.capture / f"{label}.safetensors", update)
        taken = self.allowance.spent / (self.allowance.worked or 1.0)
        return Observation(Verdict.of(judged, taken), judged, file)

    def _report(
        self, update: NamedUpdate, values: Sequence[ReadingValue], facts: Mapping[str, JsonValue]
    ) -> Report:
        return report_of(update, values, model=self.model, loss=self.loss, provenance=facts)

    @property
    def _no_time(self) -> str:
        return _NO_TIME.format(self.allowance.share, self.allowance.worked)

    def _make_ready(self) -> None:
        """Observe a tiny update, so that no round waits for imports and other one-time work."""
        torch.linalg.eigvalsh(torch.eye(2))
        toy = {"0.weight": torch.eye(16), "0.bias": torch.ones(16)}
        update = named_update(None, toy, kind="gradient")
        for _ in range(2):  # the first time builds what the second one is measured with
            took = stopwatch()
            rows = [row for piece in reading_units(update) for row in piece.look(1.0)]
            judged = gate(self._report(update, rows, {}), self.policy)
            format_for(Path("report.json")).render(judged)
            seconds = took()
        self._pace.took("row", seconds / len(rows))

    def _readings(self, todo: Iterable[ReadingUnit], left: float) -> Iterator[ReadingValue]:
        """Yields the values of all readings while there is time."""
        spent = stopwatch()
        for piece in todo:
            if not piece.elements:
                yield from piece.look(1.0)
                continue
            share = self._affordable(piece, left - spent())
            if share is None:
                yield from self._left_out(piece)
                continue
            took = stopwatch()
            yield from piece.look(share)
            self._pace.took((piece.metrics, piece.layer), took() / share)

    def _affordable(self, piece: ReadingUnit, left: float) -> float | None:
        """Returns the share of a piece of work that fits into the time; None where none does."""
        expected = self._pace.expected((piece.metrics, piece.layer), piece.elements)
        if expected <= left:
            return 1.0
        share = left / expected
        return share if piece.cut and share >= _LEAST else None

    def _left_out(self, piece: ReadingUnit) -> Iterator[ReadingValue]:
        for metric in piece.metrics:
            yield ReadingValue(metric, piece.layer, None, self._no_time, {"left_out": True})


def _file_name(label: str) -> str:
    """Returns a label without path characters, as servers name rounds and are not trusted."""
    return re.sub(r"[^\w-]", "_", label)[:_LONGEST]


def _made(folder: str | Path | None, option: str) -> Path | None:
    if folder is None:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: {folder} cannot be made: {error.strerror}") from error
    return Path(folder)
