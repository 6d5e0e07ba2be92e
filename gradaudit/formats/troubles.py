"""Findings gathered for reading: one trouble for each limit, with the layers it befell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradaudit.judging.risk import BEYOND, LEVELS, Level, why
from gradaudit.report import Finding, Key, Measurement, Report
from gradaudit.wording import estimate, variant_text


@dataclass(frozen=True)
class Trouble:
    """A limit that rows went beyond, or that could not be judged.

    Attributes:
        level: the risk that it makes.
        metric: ``audit.metric``.
        what: what happened, in words.
        places: the layers, or ``whole model``, in the report's order.
        worst: the value, and of several the worst with its place; empty without any.
        why: what it means, as the audit says.
    """

    level: Level
    metric: str
    what: str
    places: tuple[str, ...]
    worst: str
    why: str

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
    """The troubles of a judged report, the gravest first."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in _gravest(judged):
        groups.setdefault((_level(finding), finding.metric, _what(finding)), []).append(finding)
    rows = judged.by_key()
    troubles = [
        Trouble(
            level=_level(findings[0]),
            metric=metric,
            what=what,
            places=tuple(_place(finding) for finding in findings if not _is_general(finding)),
            worst=_worst(rows, findings),
            why=why(metric) if findings[0].outcome in BEYOND else "",
        )
        for (_, metric, what), findings in groups.items()
    ]
    return tuple(sorted(troubles, key=lambda trouble: LEVELS.index(trouble.level)))


def _gravest(judged: Report) -> list[Finding]:
    """One finding a row: where an error rule and a warning rule both speak, the error."""
    gravest: dict[Key | int, Finding] = {}
    for i, finding in enumerate(judged.findings):
        if finding.outcome not in BEYOND | {"unmeasured"}:
            continue
        key = i if _is_general(finding) else finding.key
        if key not in gravest or (finding.level, gravest[key].level) == ("error", "warning"):
            gravest[key] = finding
    return list(gravest.values())


def _level(finding: Finding) -> Level:
    if finding.outcome == "unmeasured":
        return "unknown"
    return "high" if finding.level == "error" else "medium"


def _what(finding: Finding) -> str:
    if finding.outcome == "unmeasured":
        return finding.message
    limit = f"above {finding.max:.10g}" if finding.max is not None else f"below {finding.min:.10g}"
    return limit + _ACCEPTED.get(finding.outcome, "")


def abridged(names: Sequence[str]) -> str:
    """Names in a sentence, whole ones, but not all of very many."""
    shown, rest = names[:MOST_PLACES], len(names) - MOST_PLACES
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _is_general(finding: Finding) -> bool:
    """Whether it speaks of rows that the report does not have, rather than of one that it has."""
    return finding.outcome == "unmeasured" and finding.layer is None


def _place(finding: Finding) -> str:
    variant = f" ({variant_text(finding.variant)})" if finding.variant else ""
    return (MODEL if finding.layer is None else finding.layer) + variant


def _worst(rows: Mapping[Key, Measurement], findings: list[Finding]) -> str:
    """``conv1, 3.10 [2.90, 3.30]``, without the place where there is only one."""
    sign = 1 if findings[0].max is not None else -1
    measured = [
        (sign * value, finding)
        for finding in findings
        if finding.key in rows and (value := rows[finding.key].number) is not None
    ]
    if not measured:
        return ""
    _, worst = max(measured, key=lambda pair: pair[0])
    words = estimate(rows[worst.key])
    return words if len(findings) == 1 else f"{_place(worst)}, {words}"
