"""Groups findings for reading: one concern for each metric and level, with its layers."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Self

from gradaudit.audits import Metric
from gradaudit.core.text import number, variant_text
from gradaudit.judging.case import ends_of, weakness, would_settle
from gradaudit.judging.policy import known_metrics, proxies
from gradaudit.judging.risk import BEYOND, LEVELS, OPEN, Level, level_of, why
from gradaudit.judging.verdict import open_findings
from gradaudit.measurement import numbers_of
from gradaudit.report import Finding, Key, Measurement, Report, estimate
from gradaudit.view.cells import floor_of
from gradaudit.view.facts import Place, clause, named


def beyond(finding: Finding, known: Metric | None, place: Place) -> str:
    """Formats a finding: ``"usable information about the attribute" is above 0.35 in fc1``."""
    side = "below" if finding.max is None else "above"
    return f"{named(finding.metric, known)} is {side} {finding.limit:.10g} in {place}"


def number_of(finding: Finding, row: Measurement, place: Place) -> str:
    """Formats evidence: ``vinfo.auroc 0.920 [0.846, 0.994] in fc1, lower end above limit 0.75``."""
    where = f" in {Place((finding.layer,))}" if finding.layer and place.several else ""
    most, limit = finding.max is not None, f"limit {finding.limit:.10g}"
    value = f"{finding.metric} {estimate(row)}{_played(row)}{where}{attempts(finding, row)}"
    if finding.ends is not None:
        low, high = map(number, finding.ends)
        value += f", corrected to [{low}, {high}]"
    if finding.outcome == "unclear":
        if _holds(finding, row):
            return f"{value}, {limit} inside the interval"
        return f"{value}, within {limit}, but {weakness(row)}"
    side = "above" if most else "below"
    if row.interval is None or row.infinite:
        if attempts(finding, row):
            return f"{value}, {side} {limit}"
        counted = f", n = {row.n:,}" if row.n else ""
        return f"{value}, {side} {limit} (no interval{counted})"
    return f"{value}, {'lower' if most else 'upper'} end {side} {limit}"


def attempts(finding: Finding, row: Measurement) -> str:
    """Count records beyond the limit, with Clopper and Pearson's interval of their share.

    ``, on 4 of 4 records [40 %, 100 %]``; empty where the row lists no records. Records whose
    update showed nothing were tried, too.
    """
    # SciPy takes long to import, and few reports list records
    from gradaudit.core.statistics.intervals import clopper_pearson

    answers = numbers_of(row.details.get("answers"))
    if not answers or finding.limit is None:
        return ""
    sign = 1 if finding.min is None else -1
    beyond = sum(sign * (answer - finding.limit) > 0 for answer in answers)
    refused = row.details.get("updates_refused")
    tried = len(answers) + (refused if isinstance(refused, int) else 0)
    low, high = clopper_pearson(beyond, tried)
    noun = "record" if tried == 1 else "records"
    return f", on {beyond:,} of {tried:,} {noun} [{100 * low:.0f} %, {100 * high:.0f} %]"


def _holds(finding: Finding, row: Measurement) -> bool:
    low, high = finding.ends or ends_of(row, row.number or 0.0)
    return finding.limit is not None and low <= finding.limit <= high


def _played(row: Measurement) -> str:
    """Formats the row's variant; one of several audits is named without a key."""
    member = str(row.variant.get(row.audit, ""))
    rest = variant_text({key: value for key, value in row.variant.items() if key != row.audit})
    words = ", ".join(filter(None, (member, rest)))
    return f" ({words})" if words else ""


def helps_of(finding: Finding, row: Measurement, place: Place) -> str:
    """Says what would bring a value within its limit, or settle an unclear one."""
    if finding.outcome == "unclear":
        return finding_remedy(finding, row)
    known = known_metrics().get(finding.metric)
    some = place.layers and not place.every and not place.whole
    hidden = f"hiding {place} (--hide)" if some else ""
    return ", or ".join(filter(None, (hidden, known.helps if known else "")))


def finding_remedy(finding: Finding, row: Measurement, *, options: bool = True) -> str:
    """Says what would settle an unclear finding; empty for other findings."""
    if finding.outcome != "unclear":
        return ""
    return would_settle(row, finding.times, inside=_holds(finding, row), options=options)


_UNDECIDED = "undecided "
_ACCEPTED = {"ignored": "accepted by the policy", "known": "known from the baseline"}


@dataclass(frozen=True)
class Concern:
    """A limit that rows are or may be beyond, or that could not be judged.

    Attributes:
        level: the risk that it shows, or does not exclude.
        shown: whether the risk is shown.
        possible: a graver risk that is not excluded beside one that is shown.
        accepted: whether the policy accepts it: an exception, a baseline, or what is unclear.
        fails: whether the gate fails by it.
        proxy: whether its audit attacks nothing, so that its number is only an indicator of
            leakage.
        metric: ``audit.metric``.
        question: what its metric answers, where that is known.
        layers: where, in the report's order; none for the whole model.
        clause: what a value beyond the limit says, in plain words.
        sentence: the clause with what it leaves open.
        number: the worst value with its interval, the end that was judged, and the limit.
        floor: what the same number is where nothing is given away; empty where nobody knows.
        why: what a value beyond the limit means, as the audit says it; empty where none is shown.
        helps: what would help, with options; for an undecided concern, what would settle it.
        settles: what would settle an undecided concern, without options; empty for others.
        doubts: why the number should not be taken as it stands.
    """

    level: Level
    shown: bool
    fails: bool
    proxy: bool
    metric: str
    question: str | None
    layers: tuple[str, ...]
    clause: str
    sentence: str
    number: str = ""
    floor: str = ""
    why: str = ""
    helps: str = ""
    doubts: tuple[str, ...] = ()
    possible: Level | None = None
    accepted: bool = False
    settles: str = ""

    @property
    def asked(self) -> str:
        """The undecided question and what would settle it: ``whether a server can … (…)``."""
        if self.shown:
            return self.sentence
        remedy = f" ({self.settles})" if self.settles else ""
        return f"{self.sentence.removeprefix(_UNDECIDED)}{remedy}"

    @property
    def word(self) -> str:
        """The level, with a question mark where it is only not excluded: ``medium, high?``."""
        more = f", {self.possible}?" if self.possible else ""
        return f"{self.level}{more}" if self.shown else f"{self.level}?"

    @property
    def evidence(self) -> str:
        """The number, its floor and what would help, in a sentence."""
        advice = f"helps: {self.helps}" if self.helps and self.shown else self.helps
        return "; ".join(part for part in (self.number, self.floor, advice) if part)


def concerns_of(judged: Report) -> tuple[Concern, ...]:
    """Returns the concerns of a judged report, the gravest first."""
    groups: dict[tuple[str, Level, str, Level | None], list[Finding]] = {}
    for finding, possible in _gravest(judged):
        about = finding.message if finding.about_missing_rows else finding.outcome
        key = (finding.metric, _level(finding), about, possible)
        groups.setdefault(key, []).append(finding)
    facts = _Facts.of(judged)
    concerns = [_concern(findings, key[-1], facts) for key, findings in groups.items()]
    return tuple(sorted(concerns, key=_gravity))


def questions_of(judged: Report) -> tuple[Concern, ...]:
    """Returns a concern for each question that error rules leave undecided, the gravest first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in open_findings(judged):
        about = finding.message if finding.about_missing_rows else finding.outcome
        groups.setdefault((finding.metric, about), []).append(finding)
    facts = _Facts.of(judged)
    asked = sorted((_concern(found, None, facts) for found in groups.values()), key=_gravity)
    first = {concern.question or concern.sentence: concern for concern in reversed(asked)}
    return tuple(concern for concern in asked if concern in first.values())


class _Facts(NamedTuple):
    """The report's facts that concerns are worded from.

    Attributes:
        rows: of the report.
        standing: metrics that stand for leakage.
        layers: how many there are.
        answered: questions that a value beyond a limit answers, each with the layer.
    """

    rows: Mapping[Key, Measurement]
    standing: Set[str]
    layers: int
    answered: set[tuple[str, str | None]]

    @classmethod
    def of(cls, judged: Report) -> Self:
        """Collects the facts of a judged report."""
        answered = {
            (_question(finding), finding.layer)
            for finding in judged.findings
            if finding.outcome in BEYOND
        }
        return cls(judged.by_key(), proxies(), len(judged.target.layers), answered)

    def where(self, findings: Sequence[Finding]) -> Place:
        """Returns the layers of findings, and whether the whole model is among them."""
        names = tuple(dict.fromkeys(x.layer for x in findings if x.layer is not None))
        return Place(
            names,
            every=1 < len(names) == self.layers,
            whole=any(x.layer is None for x in findings),
        )


def _gravity(concern: Concern) -> tuple[bool, int, bool, bool]:
    """Sorts concerns: those that fail the gate first, then errors, then shown before possible ones.

    Of two alike an attack comes before what only stands for one.
    """
    return not concern.fails, LEVELS.index(concern.level), not concern.shown, concern.proxy


def _gravest(judged: Report) -> Iterator[tuple[Finding, Level | None]]:
    """Yields the gravest finding of each metric and layer, or several equally grave ones.

    With each the graver level that another leaves possible.
    """
    by_place: dict[tuple[str, str | None] | int, list[Finding]] = {}
    for i, finding in enumerate(judged.findings):
        if finding.outcome in BEYOND | OPEN:
            place = i if finding.about_missing_rows else (finding.metric, finding.layer)
            by_place.setdefault(place, []).append(finding)
    for findings in by_place.values():
        least = min(map(_rank, findings))
        level = min(map(_level, findings), key=LEVELS.index)
        possible = level if LEVELS.index(level) < least[1] else None
        yield from ((worst, possible) for worst in findings if _rank(worst) == least)


def _rank(finding: Finding) -> tuple[bool, int]:
    return finding.outcome == "unclear", LEVELS.index(_level(finding))


def _level(finding: Finding) -> Level:
    return "unknown" if finding.outcome == "unmeasured" else level_of(finding)


def _concern(findings: Sequence[Finding], possible: Level | None, facts: _Facts) -> Concern:
    worst = _worst(facts.rows, findings)
    first = worst or findings[0]
    row = facts.rows.get(first.key)
    known = known_metrics().get(first.metric)
    place = facts.where(findings)
    sentence = clause(first.metric, known, row, place)
    asked = {(_question(finding), finding.layer) for finding in findings}
    if first.outcome == "unclear" and asked & facts.answered:
        # the clause itself is shown by another rule or metric
        sentence = beyond(first, known, place)
    measured, proxy = row if worst else None, first.metric in facts.standing
    return Concern(
        level=_level(first),
        shown=first.outcome != "unclear",
        fails=any(finding.says == "error" for finding in findings),
        possible=possible,
        accepted=first.outcome in _ACCEPTED or first.unclear == "pass",
        proxy=proxy,
        metric=first.metric,
        question=known.question if known else None,
        layers=place.layers,
        clause=sentence,
        sentence=_sentence(
            findings, first, sentence, place, known, plain=bool(row and known and known.says)
        ),
        number=number_of(first, measured, place) if measured else "",
        floor=floor_of(measured, facts.rows, known) if measured else "",
        why=why(first.metric) if first.outcome in BEYOND else "",
        helps=helps_of(first, measured, place) if measured else "",
        settles=finding_remedy(first, measured, options=False) if measured else "",
        doubts=measured.doubts if measured else (),
    )


def _sentence(
    findings: Sequence[Finding],
    finding: Finding,
    sentence: str,
    place: Place,
    known: Metric | None,
    *,
    plain: bool,
) -> str:
    """Words a finding with what it leaves open; ``plain`` where the metric has plain words."""
    if finding.outcome == "unmeasured":
        if finding.metric == "*":
            return finding.message
        where = f" in {place}" if place.layers else ""
        others = {x.message for x in findings} - {finding.message}
        more = f"; {len(others)} more reasons" if others else ""
        if not plain:
            return f"{named(finding.metric, known)}{where}: {finding.message}{more}"
        reason = finding.message.removeprefix("could not be measured: ")
        return f"it could not be measured whether {sentence}: {reason}{more}"
    if finding.outcome == "unclear":
        return f"{_UNDECIDED}whether {sentence}"
    accepted = _ACCEPTED.get(finding.outcome)
    return f"{sentence} ({accepted})" if accepted else sentence


def _question(finding: Finding) -> str:
    """Returns the question of the finding's metric, or the metric where it has none."""
    known = known_metrics().get(finding.metric)
    return (known and known.question) or finding.metric


def _worst(rows: Mapping[Key, Measurement], findings: Sequence[Finding]) -> Finding | None:
    """Returns the finding with the riskiest value; None where none has a value."""
    measured = {
        finding.key: value
        for finding in findings
        if finding.key in rows and (value := rows[finding.key].number) is not None
    }
    sign = 1 if findings[0].max is not None else -1
    known = [finding for finding in findings if finding.key in measured]
    return max(known, key=lambda finding: sign * measured[finding.key], default=None)
