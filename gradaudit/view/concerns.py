"""Findings as lines of a table: one for each metric and level, with its layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from gradaudit.audits import Metric
from gradaudit.core.text import number, variant_text
from gradaudit.judging.answered import question_of, unanswered
from gradaudit.judging.case import ShareBeyond, ends_of, is_weak, weakness, would_settle
from gradaudit.judging.policy import known_metrics, proxies
from gradaudit.judging.risk import BEYOND, LEVELS, OPEN, Level, level_of, why
from gradaudit.judging.verdict import WAIVED, failing_levels, open_findings
from gradaudit.measurement import dict_of, text_of
from gradaudit.report import Finding, Key, Measurement, Report, estimate
from gradaudit.view.cells import floor_of
from gradaudit.view.facts import WHAT_IS_PRIVATE, Place, batch_size, filled_in, secret_of

_DEFENSE = "(--defense)"
_WITHIN = "better than chance, within the limit"
_ACCEPTED = {"ignored": " (accepted by the policy)", "known": " (known from the baseline)"}


@dataclass(frozen=True)
class Concern:
    """A limit that rows are or may be beyond, that could not be judged, or that attacks kept.

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
        whole: whether the whole model is among the places.
        where: the same in words.
        sentence: what is shown, or the question that is open.
        evidence: the worst number with its interval, and how many records it is beyond for; where
            there is no number, the reason.
        limit: what the policy allows.
        floor: what the same number is where nothing is given away; empty where nobody knows.
        why: what a value beyond the limit means, as the audit says it; empty where none is shown.
        helps: what would bring a shown value within its limit, or, of an open one, what gives a
            stronger adversary; with options.
        settles: what would settle an undecided one; empty for others.
        doubts: why the number should not be taken as it stands.
    """

    level: Level
    shown: bool
    fails: bool
    proxy: bool
    metric: str
    question: str | None
    layers: tuple[str, ...]
    where: str
    sentence: str
    evidence: str = ""
    limit: str = ""
    floor: str = ""
    why: str = ""
    helps: str = ""
    settles: str = ""
    doubts: tuple[str, ...] = ()
    possible: Level | None = None
    accepted: bool = False
    whole: bool = False

    @property
    def places(self) -> tuple[str | None, ...]:
        """The layers, and None for the whole update."""
        return (*self.layers, *([None] if self.whole or not self.layers else []))

    @property
    def severity(self) -> str:
        """``HIGH``, ``MEDIUM``, ``LOW`` or ``UNKNOWN`` where it is shown, else ``OPEN``."""
        return self.level.upper() if self.shown else "OPEN"

    @property
    def summary(self) -> str:
        """The sentence with its place: ``Labels are recovered (fc1)``."""
        return f"{self.sentence.rstrip('.')}{f' ({self.where})' if self.where else ''}"


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


def cleared_of(judged: Report) -> tuple[Concern, ...]:
    """Return the attacks of which no rule finds a row beyond a limit or undecided."""
    facts, known = _Facts.of(judged), known_metrics()
    tried: dict[tuple[str, str], list[Finding]] = {}
    for finding in judged.findings:
        metric, row = known.get(finding.metric), facts.rows.get(finding.key)
        if metric is not None and metric.cleared and row is not None:
            tried.setdefault((finding.metric, member(row)), []).append(finding)
    return tuple(
        _concern([x for x in findings if x.outcome == "passed"], None, facts)
        for findings in tried.values()
        if {x.outcome for x in findings} <= {"passed", "not-applicable"}
        if any(x.outcome == "passed" for x in findings)
    )


def member(row: Measurement) -> str:
    """Returns the attack behind a row; a headline that copies another row has it in its details."""
    return str(row.variant.get(row.audit) or text_of(row.details.get(row.audit)))


def evidence_of(
    finding: Finding,
    row: Measurement,
    known: Metric | None,
    place: Place,
    possible: Level | None = None,
) -> str:
    """Formats evidence: ``AUROC 0.920 [0.846, 0.994] (property) in fc1``."""
    where = f" in {Place((finding.layer,))}" if finding.layer and place.several else ""
    text = f"{known.noun if known and known.noun else finding.metric} {estimate(row)}"
    share = share_of(finding, row)
    if known and known.noun.startswith("share of") and row.n is not None:
        text += f", n = {row.n:,}"
    text += f"{_of_shuffled(row)}{_played(row)}{where}{f', {share}' if share else ''}"
    if undefended(row):
        text += ", measured without the defense"
    if held := text_of(row.details.get("column")):
        text += f", its column {held}"
    tried = row.details.get("permutations")
    if isinstance(tried, int) and row.number == 1 / (tried + 1):
        text += f", the least that {tried:,} permutations can give"
    if finding.ends is not None:
        low, high = map(number, finding.ends)
        text += f", corrected to [{low}, {high}]"
    if possible:
        text += f", {possible.upper()} not excluded"
    within = share.excluded if share else not _holds(finding, row)
    if finding.outcome == "unclear" and within and is_weak(row):
        text += f", but {weakness(row)}"
    if finding.outcome == "passed" and known is not None:
        size = batch_size(row.details)
        behind = "" if size is None else f" behind batches of {size:,}"
        text += f"{behind}: {_WITHIN if _beyond_chance(row, known) else known.cleared}"
    return text


def _beyond_chance(row: Measurement, known: Metric) -> bool:
    """Whether the whole interval is riskier than what there is where nothing leaks."""
    if row.interval is None or known.chance is None or known.riskier is None:
        return False
    low, high = row.interval
    return low > known.chance if known.riskier == "higher" else high < known.chance


def _of_shuffled(row: Measurement) -> str:
    """Format the two numbers whose difference a row is: `` (AUROC 0.79, shuffled 0.26)``."""
    scores = dict_of(row.details.get("difference_of"))
    named = [f"{name} {value:.2f}" for name, value in scores.items() if isinstance(value, float)]
    return f" ({', '.join(named)})" if named else ""


def share_of(finding: Finding, row: Measurement) -> ShareBeyond | None:
    """Count the updates with a record beyond the limit; None where the row lists none."""
    if finding.limit is None:
        return None
    return ShareBeyond.of(row, 1 if finding.min is None else -1, finding.limit)


def _holds(finding: Finding, row: Measurement) -> bool:
    low, high = finding.ends or ends_of(row, row.number or 0.0)
    return finding.limit is not None and low <= finding.limit <= high


def _played(row: Measurement) -> str:
    """Formats the row's variant; one of several audits, and a method, are named without a key."""
    named = {row.audit, "method"}
    rest = variant_text({key: value for key, value in row.variant.items() if key not in named})
    words = ", ".join(filter(None, (member(row), str(row.variant.get("method", "")), rest)))
    return f" ({words})" if words else ""


def _allowed(finding: Finding) -> str:
    if finding.limit is None:
        return ""
    return f"{'≥' if finding.max is None else '≤'} {finding.limit:.10g}"


class _Facts(NamedTuple):
    """The report's facts that concerns are worded from: its rows, and how many layers it has."""

    rows: Mapping[Key, Measurement]
    layers: int
    failing: Sequence[str]
    untried: Mapping[str, str]
    records: int | None = None

    @classmethod
    def of(cls, judged: Report) -> Self:
        """Collects the facts of a judged report."""
        held = judged.data.get("records")
        records = held if isinstance(held, int) else None
        rows, layers = judged.by_key(), len(judged.target.layers)
        return cls(rows, layers, failing_levels(judged), unanswered(judged), records)

    def where(self, findings: Sequence[Finding]) -> Place:
        """Returns the layers of findings, and whether the whole model is among them."""
        names = tuple(dict.fromkeys(x.layer for x in findings if x.layer is not None))
        return Place(
            names,
            every=1 < len(names) == self.layers,
            whole=any(x.layer is None for x in findings),
        )


def _gravity(concern: Concern) -> tuple[bool, bool, int, bool]:
    """Sorts concerns: those that fail the gate first, then shown before open ones, then by level.

    Of two alike an attack comes before what only stands for one.
    """
    return not concern.fails, not concern.shown, LEVELS.index(concern.level), concern.proxy


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
    if finding.outcome == "passed":
        return "low"
    return "unknown" if finding.outcome == "unmeasured" else level_of(finding)


def _concern(findings: Sequence[Finding], possible: Level | None, facts: _Facts) -> Concern:
    worst = _worst(facts.rows, findings)
    first = worst or findings[0]
    row = facts.rows.get(first.key)
    known = known_metrics().get(first.metric)
    place = facts.where(findings)
    measured = row if worst else None
    shown = first.outcome in BEYOND
    return Concern(
        level=_level(first),
        shown=first.outcome != "unclear",
        fails=any(finding.says in facts.failing for finding in findings),
        possible=possible,
        accepted=first.outcome in _ACCEPTED or first.unclear == "pass",
        proxy=first.metric in proxies(),
        metric=first.metric,
        question=known.question if known else None,
        layers=place.layers,
        whole=place.whole,
        where="" if first.about_missing_rows else str(place),
        sentence=_sentence(first, known, row, shown=shown),
        evidence=(
            evidence_of(first, measured, known, place, possible) if measured else _reason(findings)
        )
        + _waivers(findings),
        limit=_allowed(first),
        floor=floor_of(measured, facts.rows, known) if measured else "",
        why=why(first.metric) if shown else "",
        helps=_helps(first, place, known, undefended=measured is not None and undefended(measured)),
        settles=_remedy(first, measured, facts) if measured else "",
        doubts=measured.doubts if measured else (),
    )


def _sentence(
    finding: Finding, known: Metric | None, row: Measurement | None, *, shown: bool
) -> str:
    """Fill the metric's sentence, or its question where nothing is shown."""
    if finding.rule == 0:
        return f"{finding.message[:1].upper()}{finding.message[1:]}."
    title = known.title if known else finding.metric
    finds, asks = (known.finding, known.asks) if known else ("", "")
    template = finds or f"{title}: beyond its limit."
    if not shown:
        template = asks or f"{title}: beyond its limit?"
    sentence = filled_in(template, {"{secret}": secret_of(row) or WHAT_IS_PRIVATE})
    accepted = _ACCEPTED.get(finding.outcome)
    return f"{sentence.rstrip('.')}{accepted}." if accepted else sentence


def _waivers(findings: Sequence[Finding]) -> str:
    """Return the exceptions about findings, in force or expired, each with its reason and day."""
    found = (
        f"{mark}{words}"
        for finding in findings
        for mark in WAIVED
        for _, has, words in [finding.message.partition(mark)]
        if has and words
    )
    return "".join(dict.fromkeys(found))


def _reason(findings: Sequence[Finding]) -> str:
    """Returns why there is no number, and how many more reasons there are."""
    first = findings[0]
    others = {x.message for x in findings} - {first.message}
    more = f"; {len(others)} more reasons" if others else ""
    return "" if first.rule == 0 else f"{first.message}{more}"


def undefended(row: Measurement) -> bool:
    """Whether a row is measured without the defense that the report has."""
    return isinstance(row.details.get("defenses"), str)


def _helps(finding: Finding, place: Place, known: Metric | None, *, undefended: bool) -> str:
    """Names what would bring a value within its limit, or options of a stronger adversary."""
    if finding.outcome not in BEYOND:
        return known.stronger if known and finding.outcome == "unclear" else ""
    some = place.layers and not place.every and not place.whole
    hidden = f"hiding {place} (--hide)" if some else ""
    helps = known.helps.split(", or ") if known and known.helps else []
    remedies = [each for each in helps if not (undefended and _DEFENSE in each)]
    return ", or ".join(filter(None, (hidden, *remedies)))


def _remedy(finding: Finding, row: Measurement, facts: _Facts) -> str:
    """Says what would settle an unclear finding; empty for other findings."""
    if finding.outcome != "unclear":
        return ""
    share = share_of(finding, row)
    if share and share.count:
        return f"{share.by_chance:,} of another update are as close by chance"
    inside = not share.excluded if share else _holds(finding, row)
    if not inside and not is_weak(row) and (untried := facts.untried.get(question_of(row))):
        return untried
    tried = share.tried if share and inside else None
    return would_settle(
        row,
        finding.times,
        inside=inside,
        options=False,
        tried=tried,
        at_limit=row.number == finding.limit,
        available=facts.records,
    )


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
