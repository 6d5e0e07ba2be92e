"""The heat map: layers from input to output by questions, each cell a level and its evidence."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from gradaudit.audits.base import Question
from gradaudit.core.text import number
from gradaudit.judging.policy import proxies
from gradaudit.judging.risk import LEVELS, Level, Risk, risks_of
from gradaudit.measurement import texts_of
from gradaudit.report import Report
from gradaudit.view.cells import FAILED, Cell, MetricColumn
from gradaudit.view.layers import Layers, RowLookup

QUESTIONS: Mapping[Question, str] = {
    "records": "records",
    "attribute": "private attribute",
    "labels": "labels",
    "freedom": "free dimensions",
}
"""The questions in the map's order, with the headings of their columns."""
MEANINGS: Mapping[Question, str] = {
    "records": "whether records can be rebuilt, followed or traced",
    "attribute": "whether a private attribute can be inferred",
    "labels": "whether labels, the answers that the model was trained to predict, can be read",
    "freedom": "number of dimensions of a layer's input that its gradient leaves open; with 0 the "
    "input can be solved for",
}
"""What each column tells."""
WHOLE = "whole update"
LEFT_ALONE = "not looked at"


class HeatAnswer(NamedTuple):
    """A number that answers a question, or the reason why there is none.

    Attributes:
        column: its metric.
        cell: the number and its judgement.
        within: word for a number that neither shows a risk nor leaves one open.
    """

    column: MetricColumn
    cell: Cell
    within: str

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields what the level rests on: number, interval, what comes by chance, and limits."""
        row, column = self.cell.row, self.column
        if row is None or row.number is None:
            yield column.metric, f"no number: {row.reason if row else LEFT_ALONE}"
            return
        yield column.metric, f"{number(row.number)} {column.unit}".rstrip()
        if row.interval is not None:
            name = f"{100 * row.confidence:.4g} % interval" if row.confidence else "range"
            yield name, f"{number(row.interval[0])} to {number(row.interval[1])}"
        else:
            yield "interval", f"none, from {row.n:,} measurements" if row.n else "none"
        yield "by chance", self._floor
        yield "limits", self._limits
        yield from (("doubt", doubt) for doubt in row.doubts)

    @property
    def _floor(self) -> str:
        """Says what the number is where nothing is given away."""
        if self.cell.floor:
            return f"{self.cell.floor} for a permuted attribute"
        chance = self.column.chance
        return "not known" if chance is None else f"{number(chance)} where nothing is given away"

    @property
    def _limits(self) -> str:
        beyond = "below" if self.column.sign < 0 else "above"
        limits = [f"{level} {beyond} {number(limit)}" for level, limit in self.column.limits]
        return "; ".join(limits) or "the policy sets none"


@dataclass(frozen=True)
class HeatCell:
    """What is known of one question in one place.

    Attributes:
        place: the layer, or the whole update.
        question: what is asked.
        answers: numbers, the one to show first; without any number, the reason.
    """

    place: str
    question: Question
    answers: tuple[HeatAnswer, ...] = ()

    @property
    def solved(self) -> bool:
        """Whether the gradient gives the layer's input in closed form, which is the worst case."""
        return any(answer.cell.solved for answer in self.answers)

    @property
    def alone(self) -> bool:
        """Whether no audit that applies has looked."""
        return not any(answer.cell.has_answer or answer.cell.failed for answer in self.answers)

    @property
    def level(self) -> Level | None:
        """The level to colour: the gravest that is shown, or low within all limits."""
        return self._shown or ("low" if self.word == "low" else None)

    @property
    def possible(self) -> Level | None:
        """A graver level that is not excluded."""
        left = _gravest(answer.cell.possible for answer in self.answers)
        return left if _gravity(left) < _gravity(self._shown) else None

    @property
    def word(self) -> str:
        """The level in words, or why there is none: ``medium, high?``, ``not looked at``."""
        if self.solved:
            return "worst case"
        if self.alone:
            return LEFT_ALONE
        left = f"{self.possible}?" if self.possible else ""
        return ", ".join(filter(None, (self._shown, left))) or self._within

    @property
    def number(self) -> str:
        """The number without its interval; of a solved input how many dimensions are left free."""
        row = self.answers[0].cell.row if self.answers else None
        if self.solved:
            return "0"
        return "" if row is None or row.number is None else number(row.number)

    @property
    def _shown(self) -> Level | None:
        return _gravest(answer.cell.level for answer in self.answers)

    @property
    def _within(self) -> str:
        """The word where no level is shown or left open."""
        words = [
            x.within if x.cell.judged else "not judged" for x in self.answers if x.cell.has_answer
        ]
        return "low" if "low" in words else words[0] if words else FAILED


class HeatLine(NamedTuple):
    """A layer of the map, or the whole update, with a cell for each question."""

    name: str
    kind: str
    risk: Risk
    cells: tuple[HeatCell, ...]


class HeatMap(NamedTuple):
    """Layers from input to output by questions.

    Attributes:
        lines: a line for each layer, in the model's order.
        whole: a line for the whole update; None where nothing was measured of it.
        worst: position of the layer with the gravest risk; None where none shows or leaves open
            any.
        hidden: layers whose gradient is never shared.
    """

    lines: tuple[HeatLine, ...]
    whole: HeatLine | None
    worst: int | None
    hidden: tuple[str, ...]


_HeatAnswers = Mapping[tuple[Question, str | None], list[HeatAnswer]]


def heat_map_of(judged: Report, layers: Layers, lookup: RowLookup) -> HeatMap:
    """Returns the map of a judged report."""
    answers = _answers(judged, lookup)
    shown = {column.metric for column in layers.questions}
    lines = tuple(
        HeatLine(
            x.name, x.kind, Risk(x.level, (), x.possible), _cells(x.name, x.name, answers, shown)
        )
        for x in layers.lines
    )
    whole = risks_of(judged).get(None, Risk("not tested"))
    cells = _cells(WHOLE, None, answers, shown)
    worst = lines[layers.ranks[0]].risk if lines else None
    risky = worst is not None and (worst.level in ("high", "medium") or worst.possible)
    return HeatMap(
        lines=lines,
        whole=None if all(cell.alone for cell in cells) else HeatLine(WHOLE, "", whole, cells),
        worst=layers.ranks[0] if risky else None,
        hidden=tuple(texts_of(judged.provenance.get("hidden"))),
    )


def _answers(judged: Report, lookup: RowLookup) -> _HeatAnswers:
    """Returns the headlines that answer a question, by question and layer."""
    found: dict[tuple[Question, str | None], list[HeatAnswer]] = {}
    standing = proxies()
    for (metric, layer), row in lookup.rows.items():
        known = lookup.known.get(metric)
        if known and known.question:
            within = "no attack" if metric in standing else "low"
            cell = lookup.cell_of(row, known.question)
            answer = HeatAnswer(
                lookup.column(metric), cell, within if judged.findings else "measured"
            )
            found.setdefault((known.question, layer), []).append(answer)
    return found


def _cells(
    place: str, layer: str | None, answers: _HeatAnswers, shown: Set[str]
) -> tuple[HeatCell, ...]:
    """Returns a cell for each question; the number that its level rests on comes first.

    Of numbers of one level those of the metrics ``shown`` come first.
    """

    def turn(answer: HeatAnswer) -> tuple[bool, int, int, bool, bool]:
        cell = answer.cell
        levels = _gravity(cell.level), _gravity(cell.possible)
        return not cell.has_answer, *levels, not cell.judged, answer.column.metric not in shown

    cells = []
    for question in QUESTIONS:
        every = sorted(answers.get((question, layer), ()), key=turn)
        measured = [answer for answer in every if answer.cell.has_answer] or every[:1]
        cells.append(HeatCell(place, question, tuple(measured)))
    return tuple(cells)


def _gravest(levels: Iterable[Level | None]) -> Level | None:
    return min(levels, key=_gravity, default=None)


def _gravity(level: Level | None) -> int:
    """Sort key of levels, the gravest first; none comes last."""
    return LEVELS.index(level) if level else len(LEVELS)
