"""What everybody reads first: what was audited, the verdict, findings, evidence and advice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradaudit.measurement import text_of
from gradaudit.report import Report
from gradaudit.view.cleared import cleared_of
from gradaudit.view.concerns import Concern
from gradaudit.view.facts import Place
from gradaudit.view.scope import BEST, NOTHING, Scope

if TYPE_CHECKING:
    from gradaudit.view.layers import Layers
    from gradaudit.view.verdict_sentence import ReportVerdict


TITLE = "Privacy audit of shared gradients"
_HIDING = re.compile(r"hiding (.+?) \(--hide\)")
_BEST = "The conditions favour the attacker, as your own federation was not described"
_LOWER = "A stronger attacker than those that were tried may get more"
_NOISE = "noise (--defense)"
_ORDER = ("first", "second", "third")
_OPTIONS = re.compile(r" \([^()]*--[^()]*\)")


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a report.

    Attributes:
        title: of the report.
        date: when the audit finished; empty where the report does not say it.
        model: model, checkpoints, size, data and task accuracy.
        audited: what is shared, and the attributes that were attacked.
        word: the verdict in one of three words, and by which policy.
        found: what an attacker gets by the findings that the verdict rests on.
        also: further findings of other questions; empty without any.
        evidence: the numbers of these findings with intervals and limits; empty without findings.
        cleared: attacks that were tried and found nothing, each with its number.
        do: what to do about it, without options of the command line.
    """

    title: str
    date: str
    model: str
    audited: str
    word: str
    found: str
    also: str
    evidence: str
    cleared: str
    do: str

    @property
    def gets(self) -> str:
        """Join the sentences about the attacker's findings."""
        return f"{self.found} {self.also}".rstrip()

    @property
    def answers(self) -> tuple[tuple[str, str, str], ...]:
        """Return the texts that are not empty, each with its heading in a word and in full."""
        texts = (
            ("gets", "What an attacker gets", self.gets),
            ("evidence", "Evidence", self.evidence),
            ("cleared", "Attacks that found nothing", self.cleared),
            ("do", "What to do", self.do),
        )
        return tuple(text for text in texts if text[-1])


def first_screen_of(
    report: Report,
    verdict: ReportVerdict,
    scope: Scope,
    concerns: Sequence[Concern],
    layers: Layers,
) -> FirstScreen:
    """Words the first screen of a judged report.

    Args:
        report: judged.
        verdict: on it.
        scope: of it.
        concerns: of it, the gravest first.
        layers: of it.
    """
    more = tuple(_more(verdict, concerns))
    also = [f"{each.sentence} ({each.word} risk)" for each in more]
    day = text_of(report.provenance.get("finished"))[:16].replace("T", " ")
    private = NOTHING if scope.private == NOTHING else f"private attribute {scope.private}"
    return FirstScreen(
        title=TITLE,
        date=f"{day} UTC" if day else "",
        model=scope.audited,
        audited="; ".join(filter(None, (scope.shared, private, scope.sizes))),
        word=verdict.word,
        found=_found(verdict),
        also=_sentences(["also: " + "; ".join(also)] if also else []),
        evidence=_evidence(verdict, more, scope),
        cleared=" ".join(f"{text}." for text in cleared_of(report)),
        do=_do(verdict, layers),
    )


def _more(verdict: ReportVerdict, concerns: Sequence[Concern]) -> Iterator[Concern]:
    """Yields the gravest shown finding of each question that the verdict does not name."""
    named = {each.question for each in verdict.behind} | {None}
    for each in concerns if verdict.behind else ():
        if each.shown and each.number and not each.accepted and each.question not in named:
            named.add(each.question)
            yield each


def _found(verdict: ReportVerdict) -> str:
    if verdict.outcome == "measured":
        return _sentences([f"no verdict: {verdict.why_unjudged}"])
    if verdict.outcome == "passed" and not verdict.behind:
        return _sentences([f"nothing beyond a limit: {verdict.worst}"])
    if verdict.outcome == "undecided" and verdict.behind:
        asked = [x.sentence.removeprefix("undecided ") for x in verdict.behind if not x.shown]
        missing = [x.sentence for x in verdict.behind if x.shown]
        return _sentences([*([f"it is open {'; '.join(asked)}"] if asked else []), *missing])
    return _sentences([verdict.worst])


def _evidence(verdict: ReportVerdict, more: Sequence[Concern], scope: Scope) -> str:
    """Join the numbers of the findings, and the setting that they hold in."""
    numbers = [each.number for each in (*verdict.behind, *more) if each.number]
    numbers += [_LOWER] if verdict.outcome == "passed" else []
    best = [_BEST] if numbers and scope.setting.startswith(BEST) else []
    return " ".join(f"{text}." for text in (*numbers, *best))


def _do(verdict: ReportVerdict, layers: Layers) -> str:
    if verdict.outcome == "measured":
        return "Run gradaudit scan, or name a policy (--policy)."
    if verdict.outcome == "undecided" and not any(x.settles for x in verdict.behind):
        return "Measure what is missing."
    advice = [_in_words(each.helps if each.shown else each.settles) for each in verdict.behind]
    if not any(advice):
        return "Measure again when the model, data, batches or defenses change."
    about = "against" if verdict.outcome == "failed" else "on"
    if len(set(advice)) > 1:
        advice = [f"{about} the {nth}: {x}" for nth, x in zip(_ORDER, advice, strict=False) if x]
    left = (_left_by_hiding(each, layers) for each in verdict.behind)
    return _sentences([*dict.fromkeys(advice), *left, "then measure again"])


def _left_by_hiding(concern: Concern, layers: Layers) -> str:
    """Names the other layers at high risk, shown or not excluded, where the advice is to hide."""
    if not _HIDING.search(concern.helps):
        return ""
    others = [line for line in layers.lines if line.name not in concern.layers]
    shown = [line.name for line in others if line.level == "high"]
    possible = [line.name for line in others if line.possible == "high"]
    parts = [f"{Place(tuple(shown))} at high risk"] if shown else []
    parts += [f"{Place(tuple(possible))}, where high risk is not excluded"] if possible else []
    return f"not sharing {Place(concern.layers)} leaves {'; and '.join(parts)}" if parts else ""


def _in_words(advice: str) -> str:
    """Returns advice without the options of the command line."""
    plain = _HIDING.sub(r"not sharing \1", advice).replace(_NOISE, "noise added before sharing")
    return _OPTIONS.sub("", plain)


def _sentences(parts: Iterable[str]) -> str:
    return " ".join(f"{x[:1].upper()}{x[1:].rstrip('.')}." for x in parts if x)
