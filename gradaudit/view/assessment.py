"""The risks to people that a report shows, with likelihood and severity in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradaudit.audits.base import Question
from gradaudit.view.charts.heat_map import HeatAnswer, HeatMap
from gradaudit.view.concerns import Concern

CERTAIN = "almost certain: an attack did it"
LIKELY = "likely: an attack did it"
POSSIBLE = "possible: an attack did it in some cases"
WARNED = "possible: an attack got beyond the limit of a warning"
INDICATED = "possible: an indicator is beyond its limit; no attack shows it"
LEFT_OPEN = "possible: the measurements do not exclude it"
ALMOST = 0.9
"""From this share of the cases in which guessing fails an attack's success is almost certain."""
HALF = 0.5
"""From this share of those cases it is likely."""
SCALES = {
    "likelihood": "almost certain where an attack succeeds in at least "
    f"{100 * ALMOST:.0f} of 100 cases in which guessing fails, likely in at least "
    f"{100 * HALF:.0f}, else possible; without such cases the policy's limits decide",
    "severity": "severe for a whole record, significant for one fact of it; lower where that is "
    "public",
}
"""The rules by which the words are chosen."""
UNLIKELY = "less likely: no attack that was tried got beyond a limit; a stronger one may"
BY_ATTACK = (CERTAIN, LIKELY, POSSIBLE, WARNED)
"""Words for what an attack did, the likeliest first."""
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
        "severe: all that a record says of a person",
        frozenset({"records", "freedom"}),
    ),
    Harm(
        "a private attribute is inferred",
        "significant: one fact of a person; severe for special categories of data",
        frozenset({"attribute"}),
    ),
    Harm(
        "the labels of records are read",
        "significant: one fact of a person; severe for special categories, as a diagnosis",
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
    attacks = [x for x in about if x.shown and not x.proxy]
    by_likelihood: Mapping[str, list[Concern]] = {
        **{word: [x for x in attacks if _worded(x) == word] for word in BY_ATTACK},
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


def _worded(concern: Concern) -> str:
    """Words how likely an attack's success is: by its share of cases, or by the limit it passed."""
    if concern.share is None:
        return LIKELY if concern.level == "high" else WARNED
    return CERTAIN if concern.share >= ALMOST else LIKELY if concern.share >= HALF else POSSIBLE


def _within(harm: Harm, heat_map: HeatMap) -> Iterator[HeatAnswer]:
    """Yields the attacks' numbers that rules judged and found within their limits."""
    for line in filter(None, (heat_map.whole, *heat_map.lines)):
        for cell in line.cells:
            if cell.question in harm.questions:
                yield from (x for x in cell.answers if x.within == "low" and x.cell.within)
