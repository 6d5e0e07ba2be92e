"""Parts of the table of layers: a column's metric, a cell's number and risk, a line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gradaudit.audits import Metric
from gradaudit.audits.base import Question
from gradaudit.core.text import number
from gradaudit.judging.risk import Level, sign_of
from gradaudit.measurement import dict_of, number_of, numbers_of
from gradaudit.report import CLOSED_FORM, Key, Measurement, marked
from gradaudit.view.facts import abridged

PERMUTED = "attribute_permuted"
"""Key of a permuted attribute in a row's variant or details."""


class PermutationFloor(NamedTuple):
    """A number for a permuted attribute, with its interval where it has one."""

    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Formats the number with its interval: ``0.533 [0.257, 0.808]``."""
        if self.interval is None:
            return number(self.value)
        low, high = self.interval
        return f"{number(self.value)} [{number(low)}, {number(high)}]"


def permuted(row: Measurement, rows: Mapping[Key, Measurement]) -> PermutationFloor | None:
    """Returns the number for a permuted attribute, from the row's details or a row of its own."""
    permuted = dict_of(row.details.get("permuted"))
    if (value := number_of(permuted.get("value"))) is not None:
        ends = numbers_of(permuted.get("interval"))
        return PermutationFloor(value, (ends[0], ends[1]) if len(ends) == 2 else None)
    key = row.id, row.layer, json.dumps({**row.variant, PERMUTED: True}, sort_keys=True)
    own = rows.get(key)
    return PermutationFloor(own.value, own.interval) if own and own.value is not None else None


def floor_of(row: Measurement, rows: Mapping[Key, Measurement], known: Metric | None) -> str:
    """Formats the floor in words; empty where it is unknown."""
    if floor := permuted(row, rows):
        return f"permuted {floor}"
    if known is not None and known.chance is not None:
        return f"chance {known.chance:.10g}"
    return ""


SKIPPED = "–"
FAILED = "failed"
SOLVED = "closed form"
"""Stands for a number of a layer whose gradient gives its input in closed form."""
MOST_LAYERS = 8
WIDEST = 100
"""Number from which on a cell has no room for the one of a permuted attribute."""
TOPICS: Mapping[Question, str] = {
    "records": "records",
    "attribute": "attribute",
    "labels": "labels",
    "freedom": "rank",
}


@dataclass(frozen=True)
class MetricColumn:
    """A metric by which layers are compared.

    Attributes:
        metric: ``audit.metric``.
        question: what it answers, where it stands for a question.
        title: what it is, in words.
        unit: of its values.
        sign: 1 where larger values are riskier, −1 where smaller ones are, 0 where neither is.
        chance: its value where nothing is given away.
        limits: what the policy sets, the gravest first.
        noun: what the number is called.
        secret: the attribute that it is about.
        has_null: whether numbers for a permuted attribute stand beside its own.
    """

    metric: str
    question: Question | None = None
    title: str = ""
    unit: str = ""
    sign: int = 0
    chance: float | None = None
    limits: tuple[tuple[Level, float], ...] = ()
    noun: str = ""
    secret: str = ""
    has_null: bool = False

    @property
    def heading(self) -> tuple[str, str]:
        """The topic of a column, and below it what its number is called."""
        topic = TOPICS[self.question] if self.question else ""
        noun = (self.noun or self.metric).removeprefix(f"{topic} ")
        return self.secret or topic, f"{noun} (null)" if self.has_null else noun


@dataclass(frozen=True)
class Cell:
    """A number of one layer, or the reason why there is none.

    Attributes:
        row: what was measured; None where there is no row.
        floor: the same number for a permuted attribute.
        level: the risk that it shows, None where it shows none.
        possible: a graver risk that it does not exclude; None where it excludes all.
        judged: whether a rule judged it; a judged number without a risk is within its limits.
    """

    row: Measurement | None = None
    floor: PermutationFloor | None = None
    level: Level | None = None
    possible: Level | None = None
    judged: bool = True

    @property
    def measured(self) -> bool:
        """Whether there is a number."""
        return self.row is not None and self.row.status == "measured"

    @property
    def failed(self) -> bool:
        """Whether the cell's measurement failed."""
        return self.row is not None and self.row.status == "failed"

    @property
    def solved(self) -> bool:
        """Whether there is no number because the gradient gives the input in closed form."""
        return self.row is not None and self.row.details.get(CLOSED_FORM) is True

    @property
    def brief(self) -> str:
        """The number; with that for a permuted attribute to two decimals: ``0.87 (0.53)``."""
        if self.row is None or not self.measured:
            return self.full
        value = self.row.number
        if self.floor and value is not None and value < WIDEST:
            return f"{value:.2f} ({self.floor.value:.2f})"
        return SKIPPED if value is None else number(value)

    @property
    def full(self) -> str:
        """The number with its interval, marked where it is doubtful; empty without a row."""
        return cell_text(self.row)


@dataclass(frozen=True)
class LayerLine:
    """A layer: ``answers`` has a cell for each question, ``cells`` for each headline metric."""

    name: str
    kind: str
    parameters: int | None
    level: Level
    possible: Level | None
    answers: tuple[Cell, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def sign(self) -> Level | None:
        """The level to colour, if any."""
        return sign_of(self.level, self.possible)

    @property
    def size(self) -> str:
        """The number of parameters; empty where the report does not have it."""
        return "" if self.parameters is None else f"{self.parameters:,}"

    @property
    def severity(self) -> str:
        """The shown severity, ``OPEN`` where none is shown and one not excluded, or a dash."""
        return severity(self.level, self.possible)


@dataclass(frozen=True)
class MetricWarning:
    """A doubt about numbers of a metric, and the layers that it concerns (none: the model)."""

    metric: str
    layers: tuple[str, ...]
    reason: str
    every: bool = False

    @property
    def where(self) -> str:
        """`` in conv1 and conv2``; empty where it is about every layer, or the whole model."""
        if self.every:
            return ""
        return f" in {abridged(self.layers, MOST_LAYERS)}" if self.layers else ""


def severity(level: Level, possible: Level | None) -> str:
    """Formats a risk: ``MEDIUM``, ``OPEN`` beside it or alone, ``LOW``; a dash without a number."""
    if level in ("low", "not tested"):
        return "OPEN" if possible else "LOW" if level == "low" else SKIPPED
    return level.upper() + (", OPEN" if possible else "")


def cell_text(row: Measurement | None, without: str = "") -> str:
    """Formats a row for a table, with its interval; ``without`` stands for a missing row."""
    if row is None:
        return without
    if row.status == "measured":
        return marked(row)
    if row.details.get(CLOSED_FORM) is True:
        return SOLVED
    return SKIPPED if row.status == "skipped" else FAILED


def doubts_of(rows: Iterable[Measurement], layers: int) -> tuple[MetricWarning, ...]:
    """Returns the doubts about shown numbers, each once with all its layers.

    Args:
        rows: of the numbers.
        layers: how many there are.
    """
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for reason in row.doubts:
            groups.setdefault((row.id, reason), {}).update({row.layer: None} if row.layer else {})
    return tuple(
        MetricWarning(metric, tuple(names), why, every=1 < len(names) == layers)
        for (metric, why), names in groups.items()
    )
