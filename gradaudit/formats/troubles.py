"""Findings gathered for reading: one trouble for each limit, with the layers it befell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradaudit.judging.case import would_settle
from gradaudit.judging.risk import BEYOND, LEVELS, OPEN, Level, level_of, why
from gradaudit.report import Finding, Key, Measurement, Report
from gradaudit.text import estimate, variant_text


@dataclass(frozen=True)
class Trouble:
    """A limit that rows are beyond, or may be, or that could not be judged.

    Attributes:
        level: the risk that it makes, or leaves possible.
        shown: whether it makes it.
        metric: ``audit.metric``.
        what: what happened, in words.
        places: the layers, or ``whole model``, in the report's order.
        worst: the value, and of several the worst with its place and variant.
        why: what it means, as the audit says; of what is not shown, what would settle it.
    """

    level: Level
    shown: bool
    metric: str
    what: str
    places: tuple[str, ...]
    worst: str
    why: str

    @property
    def word(self) -> str:
        """The level, with a question mark where it is only not excluded."""
        return self.level if self.shown else f"{self.level}?"

    @property
    def sentence(self) -> str:
        """Metric, what happened, where, and how bad it is."""
        if self.metric == "*":
            return self.what
        where = f" in {abridged(self.places)}" if self.places else ""
        if self.level == "unknown":
            return f"{self.metric}{where}: {self.what}"
        worst = f"worst: {self.worst}" if len(self.places) > 1 else self.worst
        return f"{self.metric} {self.what}{where} ({worst})"


MODEL = "the whole model"
MOST_PLACES = 8
_ACCEPTED = {"ignored": " (ignored by the policy)", "known": " (known from the baseline)"}


def troubles_of(judged: Report) -> tuple[Trouble, ...]:
    """The troubles of a judged report: what is shown, then what may be, the gravest first."""
    groups: dict[tuple[Level, bool, str, str], list[Finding]] = {}
    for finding in _gravest(judged):
        shown = finding.outcome != "unclear"
        key = (_level(finding), shown, finding.metric, _what(finding))
        groups.setdefault(key, []).append(finding)
    rows = judged.by_key()
    troubles = [_trouble(*key, findings, rows) for key, findings in groups.items()]
    return tuple(sorted(troubles, key=lambda each: (not each.shown, LEVELS.index(each.level))))


def _trouble(
    level: Level,
    shown: bool,
    metric: str,
    what: str,
    findings: Sequence[Finding],
    rows: Mapping[Key, Measurement],
) -> Trouble:
    worst = _worst(rows, findings)
    words = estimate(rows[worst.key]) if worst else ""
    meaning = _meaning(worst, rows) if worst else ""
    places = tuple(dict.fromkeys(x.layer or MODEL for x in findings if not _is_general(x)))
    variant = variant_text(worst.variant) if worst else ""
    where = variant  # of the only layer, which is named already, the variant alone
    if worst and len(places) != 1:
        where = (worst.layer or MODEL) + (f" ({variant})" if variant else "")
    return Trouble(
        level=level,
        shown=shown,
        metric=metric,
        what=what,
        places=places,
        worst=f"{where}, {words}" if where else words,
        why=f"{where}: {meaning}" if where and not shown else meaning,
    )


def _meaning(finding: Finding, rows: Mapping[Key, Measurement]) -> str:
    """What a value beyond the limit means; of one that may be, what would tell."""
    if finding.outcome in BEYOND:
        return why(finding.metric)
    return would_settle(rows[finding.key], finding.times)


def _gravest(judged: Report) -> Iterator[Finding]:
    """What is to be told of a metric in a layer: the gravest shown, and what may be beyond that."""
    by_place: dict[tuple[str, str | None] | int, list[Finding]] = {}
    for i, finding in enumerate(judged.findings):
        if finding.outcome in BEYOND | OPEN:
            place = i if _is_general(finding) else (finding.metric, finding.layer)
            by_place.setdefault(place, []).append(finding)
    for findings in by_place.values():
        least = len(LEVELS)
        for unclear in (False, True):
            found = [each for each in findings if (each.outcome == "unclear") is unclear]
            gravest = min(map(_rank, found), default=least)
            if gravest < least:
                yield from (each for each in found if _rank(each) == gravest)
                least = gravest


def _rank(finding: Finding) -> int:
    return LEVELS.index(_level(finding))


def _level(finding: Finding) -> Level:
    return "unknown" if finding.outcome == "unmeasured" else level_of(finding)


def _what(finding: Finding) -> str:
    if finding.outcome == "unmeasured":
        return finding.message
    limit = f"above {finding.max:.10g}" if finding.max is not None else f"below {finding.min:.10g}"
    if finding.outcome == "unclear":
        return f"{limit} is not shown and not excluded"
    return limit + _ACCEPTED.get(finding.outcome, "")


def abridged(names: Sequence[str]) -> str:
    """Names in a sentence, whole ones, but not all of very many."""
    shown, rest = names[:MOST_PLACES], len(names) - MOST_PLACES
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _is_general(finding: Finding) -> bool:
    """Whether it speaks of rows that the report does not have, rather than of one that it has."""
    return finding.outcome == "unmeasured" and finding.layer is None


def _worst(rows: Mapping[Key, Measurement], findings: Sequence[Finding]) -> Finding | None:
    """The finding of the riskiest value; None where none has a value."""
    measured = {
        finding.key: value
        for finding in findings
        if finding.key in rows and (value := rows[finding.key].number) is not None
    }
    sign = 1 if findings[0].max is not None else -1
    found = [finding for finding in findings if finding.key in measured]
    return max(found, key=lambda finding: sign * measured[finding.key], default=None)
