"""Parts of the table of layers: a column's metric, a cell's number and risk, a line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gradaudit.audits import Metric
from gradaudit.audits.base import Question
from gradaudit.core.text import DOUBTED, number
from gradaudit.judging.risk import Level, sign_of
from gradaudit.measurement import dict_of, number_of, numbers_of
from gradaudit.report import CLOSED_FORM, Key, Measurement, estimate, marked
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
SOLVED = "worst"
OPEN = "?"
UNJUDGED = "~"
MARKS = {
    OPEN: f"{OPEN} undecided: neither beyond a limit nor within it",
    UNJUDGED: f"{UNJUDGED} no rule judged it",
    SOLVED: f"{SOLVED}: the layer's gradient gives its input in closed form",
}
"""Marks behind numbers that exclude no risk, and in their place, with their meaning."""
MOST_LAYERS = 8
HEADINGS: Mapping[Question, str] = {
    "records": "records?",
    "attribute": "attribute?",
    "labels": "labels?",
    "freedom": "how free?",
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
    """

    metric: str
    question: Question | None = None
    title: str = ""
    unit: str = ""
    sign: int = 0
    chance: float | None = None
    limits: tuple[tuple[Level, float], ...] = ()

    @property
    def heading(self) -> str:
        """The heading of a column: the question, or the metric where it answers none."""
        return HEADINGS[self.question] if self.question else self.metric


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
    def within(self) -> bool:
        """Whether a rule found the number within its limits."""
        return self.measured and self.judged and not self.level and not self.possible

    @property
    def has_answer(self) -> bool:
        """Whether there is a number, or none is needed."""
        return self.measured or self.solved

    @property
    def brief(self) -> str:
        """The number, the floor beside it, and marks: ``0.871 (0.533) ?``."""
        if self.row is None or not self.measured:
            return self.full
        value = self.row.number
        beside = f" ({number(self.floor.value)})" if self.floor else ""
        text = SKIPPED if value is None else number(value)
        return f"{text}{beside} {self._marks}".rstrip()

    @property
    def full(self) -> str:
        """The number with its interval and marks; empty where there is no row."""
        if self.row is None or not self.measured:
            return cell_text(self.row)
        return f"{estimate(self.row)} {self._marks}".rstrip()

    @property
    def _marks(self) -> str:
        """Whether a limit is undecided, no rule judged the number, or there is a doubt about it."""
        unjudged = "" if self.judged else UNJUDGED
        doubted = DOUBTED if self.row and self.row.doubts else ""
        return (OPEN if self.possible else unjudged) + doubted


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
    def risk(self) -> str:
        """The shown risk, and with a question mark one that is not excluded: ``low, high?``."""
        return self.level + (f", {self.possible}?" if self.possible else "")


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
