"""The verdict as a sentence: the word, the policy, and what is shown or undecided."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradaudit.judging.answered import unanswered
from gradaudit.judging.policy import DEFAULT
from gradaudit.judging.risk import OPEN, risks_of
from gradaudit.judging.verdict import Word, accepted, is_scan, known_rows, verdict
from gradaudit.measurement import dict_of, texts_of
from gradaudit.report import Report
from gradaudit.view.concerns import Concern, questions_of
from gradaudit.view.layers import Layers

UNNAMED = "its policy"
NO_POLICY = "none"
MOST_QUESTIONS = 3


@dataclass(frozen=True)
class ReportVerdict:
    """The verdict on a report, by which policy, and what it rests on; or what was measured.

    Attributes:
        outcome: the word, as ``judging.verdict`` says it.
        policy: the policy's name.
        sha256: of the policy; empty where the report does not say it.
        worst: the findings of a failed report; the undecided questions with what would settle each;
            what it means that the report passes; or how much was measured, where nobody judged.
        warned: whether a warning is shown.
        behind: the findings or questions that ``worst`` words.
        whole: the risk of the whole model; empty where no rule judged it.
        caveat: what a pass leaves out: layers, error rules, or rows that the policy accepts.
    """

    outcome: Word
    policy: str
    sha256: str
    worst: str
    whole: str = ""
    warned: bool = False
    behind: tuple[Concern, ...] = ()
    caveat: str = ""

    @property
    def sentence(self) -> str:
        """``FAILED by the default policy: Records are reconstructed (whole update)``."""
        if self.outcome == "measured":
            return f"MEASURED: {self.worst}; {self.why_unjudged}"
        return f"{self.judgement}: {self.worst}"

    @property
    def why_unjudged(self) -> str:
        """Reason for which a report that was measured has no verdict."""
        if self.policy == NO_POLICY:
            return f"{DEFAULT} sets no limit here"
        return "a single audit has no verdict without --policy"

    @property
    def word(self) -> str:
        """``PASSED by mine.yaml, but no rule is of level error``."""
        return self.judgement + (f", but {self.caveat}" if self.caveat else "")

    @property
    def judgement(self) -> str:
        """``FAILED by the default policy``."""
        if self.outcome == "measured":
            return "MEASURED"
        warned = " with warnings" if self.outcome == "passed" and self.warned else ""
        return f"{self.outcome.upper()} by {self.policy}{warned}"


def verdict_of(judged: Report, concerns: Sequence[Concern], layers: Layers) -> ReportVerdict:
    """The verdict on a judged report."""
    whole = risks_of(judged).get(None)
    policy, sha256 = policy_of(judged)
    outcome = verdict(judged)
    behind = tuple(_behind(outcome, judged, concerns))
    return ReportVerdict(
        outcome=outcome,
        policy=policy,
        sha256=sha256,
        worst=_worst(outcome, judged, behind, layers, _shown(outcome, concerns) - len(behind)),
        behind=behind,
        warned=any(concern.shown for concern in concerns),
        whole=str(whole) if whole else "",
        caveat="; ".join(filter(None, (_limits(judged), _accepted(judged))))
        if outcome == "passed"
        else "",
    )


def _behind(outcome: Word, judged: Report, concerns: Sequence[Concern]) -> Sequence[Concern]:
    """The open questions of an undecided report; of others at most two findings that are shown."""
    if outcome == "undecided":
        return questions_of(judged)[:MOST_QUESTIONS]
    shown = [concern for concern in concerns if concern.shown]
    if outcome != "failed":
        return _two(shown)
    open_ = [each for each in shown if not each.accepted]
    return _two([each for each in open_ if each.level == "high"] or open_)


def _shown(outcome: Word, concerns: Sequence[Concern]) -> int:
    """Count the findings that are shown, and of a failed report not accepted."""
    shown = [each for each in concerns if each.shown and each.level in ("high", "medium")]
    return sum(not (outcome == "failed" and each.accepted) for each in shown)


def _more(count: int) -> list[str]:
    return [f"and {count} more finding{'s' if count > 1 else ''}"] if count > 0 else []


def _worst(
    outcome: Word, judged: Report, behind: Sequence[Concern], layers: Layers, more: int
) -> str:
    if outcome == "measured":
        return _amount(judged)
    if outcome == "undecided":
        return _questions(behind, len(questions_of(judged)))
    sentence = "; ".join([*(concern.summary for concern in behind), *_more(more)])
    if outcome == "failed":
        return sentence
    return "; ".join(filter(None, (sentence or _within(judged, layers), _accepted(judged))))


def _questions(asked: Sequence[Concern], count: int) -> str:
    """Name each open question, with where it is open and what would settle it."""
    more = count - len(asked)
    questions = [
        f"{x.sentence} ({'; '.join(filter(None, (x.where, x.settles or x.evidence)))})"
        if x.where or x.settles or x.evidence
        else x.sentence.rstrip(".")
        for x in asked
    ]
    questions += [f"and {more} more question{'s' if more > 1 else ''}"] if more > 0 else []
    return "; ".join(questions) or "no rule of level error judged a row"


def _within(judged: Report, layers: Layers) -> str:
    """Say that rows are within their limits, which means little where nothing was tried."""
    open_ = any(finding.outcome in OPEN for finding in judged.findings)
    rule = "a rule of level error" if open_ else "a rule"
    excused = accepted(judged) or known_rows(judged)
    sentence = f"every {'other ' if excused else ''}row that {rule} judges is within its limit"
    if limits := _limits(judged):
        return f"{sentence}, but {limits}"
    idle = sum(line.level == "not tested" for line in layers.lines)
    if not idle:
        return sentence
    of = f"{idle:,} of {len(layers.lines):,} layers by themselves"
    return f"{sentence}, but no rule judges an attack on {of}"


def _limits(judged: Report) -> str:
    """Name what a pass leaves aside: error rules, questions or layers; empty without any."""
    if not any(finding.level == "error" for finding in judged.findings):
        return "no rule is of level error"
    if is_scan(judged) and (asked := _unattacked(judged)):
        return f"not every attack on {' and '.join(asked)} was run"
    if aside := texts_of(judged.provenance.get("left_aside")):
        count = len(aside) + len(judged.target.layers)
        return f"{len(aside):,} of {count:,} shared layers are left aside (--layer)"
    return ""


def _unattacked(judged: Report) -> list[str]:
    """Return the questions on which some adversary was not run, although it may apply."""
    named = judged.provenance.get("attributes")
    return [each for each in unanswered(judged) if each != "attribute" or named]


def _accepted(judged: Report) -> str:
    """Say how many rows beyond their limit the policy accepts, and how many the baseline has."""
    count, before = len(accepted(judged)), len(known_rows(judged))
    rows = "1 row that is" if count == 1 else f"{count:,} rows that are"
    words = [f"the policy accepts {rows} not within the limit"] if count else []
    words += [f"{before:,} known from the baseline"] if before else []
    return "; ".join(words)


def policy_of(judged: Report) -> tuple[str, str]:
    """Name and SHA-256 of the policy that judged a report; the hash is empty where nobody knows."""
    if not judged.findings:
        return NO_POLICY, ""
    by = dict_of(judged.provenance.get("policy"))
    return str(by.get("name") or UNNAMED), str(by.get("sha256") or "")


def _amount(report: Report) -> str:
    """``6 numbers of 2 layers and the whole model``."""
    measured = [row for row in report.rows if row.status == "measured"]
    layers = len({row.layer for row in measured} - {None})
    of = [f"{layers:,} layer{'s' if layers > 1 else ''}"] if layers else []
    of += ["the whole model"] if any(row.layer is None for row in measured) else []
    return f"{len(measured):,} number{'s' if len(measured) > 1 else ''} of {' and '.join(of)}"


def _two(gravest: Sequence[Concern]) -> Sequence[Concern]:
    """The first, and the first that answers another question as surely."""
    first = gravest[0] if gravest else None
    others = [
        concern
        for concern in gravest[1:]
        if first and first.question and concern.question not in (None, first.question)
        if not concern.proxy
    ]
    return [*gravest[:1], *others[:1]]
