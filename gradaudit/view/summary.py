"""What stands around the findings: subject, advice, assumptions and what was not tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradaudit.view.concerns import Concern
from gradaudit.view.gaps import UnmeasuredPart, in_brief
from gradaudit.view.scope import Scope

if TYPE_CHECKING:
    from gradaudit.view.verdict_sentence import ReportVerdict

_AGAIN = "Then measure again."
_STABLE = "Measure again when the model, data, batches or defenses change."
_MISSING = "Measure what is missing."
_UNJUDGED = "Run gradaudit scan, or name a policy (--policy)."
_STRONGER = "A stronger attacker than those that were tried may get more."


@dataclass(frozen=True)
class Summary:
    """Texts of a report beside its tables.

    Attributes:
        word: the verdict in one of three words, and by which policy.
        subject: model, checkpoints, size, data and task accuracy.
        do: what to do, with options of the command line.
        assumptions: what the attacker sees, how many records are behind an update, whose case.
        not_tested: what was not measured, by reason; empty without gaps.
    """

    word: str
    subject: str
    do: str
    assumptions: str
    not_tested: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """The texts that are not empty, below their headings."""
        sections = (
            ("What to do", self.do),
            ("Assumptions", self.assumptions),
            ("Not tested", self.not_tested),
        )
        return tuple(section for section in sections if section[1])


def summary_of(
    verdict: ReportVerdict,
    scope: Scope,
    concerns: Sequence[Concern],
    gaps: Sequence[UnmeasuredPart],
) -> Summary:
    """Word what stands around the findings of a judged report."""
    return Summary(
        word=verdict.word,
        subject="; ".join(filter(None, (scope.model, scope.data))),
        do=advice(verdict, concerns),
        assumptions=_assumptions(verdict, scope),
        not_tested=in_brief(gaps),
    )


def advice(verdict: ReportVerdict, concerns: Sequence[Concern]) -> str:
    """Word the remedy of every metric that shows a risk, equal ones together."""
    shown = [each for each in concerns if each.shown and each.helps and not each.accepted]
    gravest: dict[str, Concern] = {}
    for each in shown:
        gravest.setdefault(each.metric, each)
    alike: dict[str, dict[str, None]] = {}
    for each in gravest.values():
        alike.setdefault(each.helps, {})[each.sentence.rstrip(".")] = None
    said = [f"{'; '.join(sentences)}: {text}." for text, sentences in alike.items()]
    if not said and verdict.outcome in ("undecided", "measured"):
        settles = [each.settles for each in concerns if each.settles][:1]
        said = [f"{text[:1].upper()}{text[1:]}." for text in settles]
    if verdict.outcome == "measured":
        return " ".join([*said, _UNJUDGED])
    if not said:
        return _MISSING if verdict.outcome == "undecided" else _STABLE
    return " ".join([*said, _AGAIN])


def _assumptions(verdict: ReportVerdict, scope: Scope) -> str:
    parts = [f"The attacker sees {scope.shared}", scope.sizes, scope.setting]
    stronger = [_STRONGER] if verdict.outcome == "passed" else []
    return " ".join([f"{'; '.join(filter(None, parts))}.", *stronger])
