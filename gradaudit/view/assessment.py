"""The risks to people that a report shows, with likelihood and severity in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradaudit.audits.base import Question
from gradaudit.view.charts.heat_map import HeatAnswer, HeatMap
from gradaudit.view.concerns import Concern

LIKELY = "likely: an attack did it"
WARNED = "likely to some extent: an attack got beyond the limit of a warning"
INDICATED = "possible: an indicator is beyond its limit; no attack shows it"
LEFT_OPEN = "possible: the measurements do not exclude it"
UNLIKELY = "less likely: no attack that was tried got beyond a limit; a stronger one may"
UNKNOWN = "not known: nothing attacked it with a number that a rule judges"
ACCEPTED = "accepted by the policy"


class Harm(NamedTuple):
    """What may happen to the people in the data.

    Attributes:
        what: in words.
        severity: in one word, with the reason.
        questions: those whose answers show it.
    """

    what: str
    severity: str
    questions: frozenset[Question]


HARMS = (
    Harm(
        "single records are rebuilt, or traced to who sent them",
        "severe: whoever gets a record has all that it says of a person",
        frozenset({"records", "freedom"}),
    ),
    Harm(
        "a private attribute is inferred",
        "significant: severe where it is of a special category, or the batch is one person's",
        frozenset({"attribute"}),
    ),
    Harm(
        "the labels of records are read off",
        "limited: significant where the label itself is private, as a diagnosis is",
        frozenset({"labels"}),
    ),
)


@dataclass(frozen=True)
class AssessedRisk:
    """A harm as far as a report knows it.

    Attributes:
        harm: what may happen, and how severe it is.
        likelihood: in words.
        odds: the same in numbers of cases; empty where nothing says it.
        rows: the numbers that it rests on.
    """

    harm: Harm
    likelihood: str
    odds: str
    rows: str


def assessed(concerns: Sequence[Concern], heat_map: HeatMap) -> tuple[AssessedRisk, ...]:
    """Returns what a report knows of each harm.

    Args:
        concerns: of the report, the gravest first.
        heat_map: of the same report.
    """
    return tuple(_assessed(harm, concerns, heat_map) for harm in HARMS)


def _assessed(harm: Harm, concerns: Sequence[Concern], heat_map: HeatMap) -> AssessedRisk:
    about = [each for each in concerns if each.question in harm.questions and each.number]
    by_likelihood: Mapping[str, list[Concern]] = {
        LIKELY: [x for x in about if x.shown and not x.proxy and x.level == "high"],
        WARNED: [x for x in about if x.shown and not x.proxy],
        INDICATED: [x for x in about if x.shown],
        LEFT_OPEN: about,
    }
    for likelihood, found in by_likelihood.items():
        if found:
            first = found[0]
            accepted = f" ({ACCEPTED})" if first.accepted else ""
            return AssessedRisk(harm, f"{likelihood}{accepted}", first.odds, first.number)
    within = list(_within(harm, heat_map))
    rows = "; ".join(dict.fromkeys(f"{x.column.metric} {x.cell.full}" for x in within[:2]))
    return AssessedRisk(harm, UNLIKELY if within else UNKNOWN, "", rows or "none")


def _within(harm: Harm, heat_map: HeatMap) -> Iterator[HeatAnswer]:
    """Yields the attacks' numbers that rules judged and found within their limits."""
    for line in filter(None, (heat_map.whole, *heat_map.lines)):
        for cell in line.cells:
            if cell.question in harm.questions:
                yield from (x for x in cell.answers if x.within == "low" and x.cell.within)
