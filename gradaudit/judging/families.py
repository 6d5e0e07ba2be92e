"""Findings told once: of all that one family of rules says of a row, the gravest."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradaudit.judging.judge import Says, says
from gradaudit.report import Finding

ORDER: tuple[Says, ...] = (
    "error",
    "warning",
    "unclear",
    "known",
    "ignored",
    "passed",
    "not-applicable",
)
"""The gravest first."""


@dataclass(frozen=True)
class Family:
    """What the limits of one side of a metric say of one row, or of rows that there are not.

    Attributes:
        finding: the gravest; an error hides its own warning.
        left: an error that is unclear beside it.
    """

    finding: Finding
    left: Finding | None = None

    @property
    def says(self) -> Says:
        """What the gravest says at the gate."""
        return says(self.finding)


def families(findings: Sequence[Finding]) -> list[Family]:
    """The families, the gravest first and else in the order of the findings."""
    groups: dict[object, list[Finding]] = {}
    for i, finding in enumerate(findings):
        groups.setdefault(_key(i, finding), []).append(finding)
    return sorted(map(_family, groups.values()), key=lambda each: ORDER.index(each.says))


def _key(place: int, finding: Finding) -> object:
    """Of a row: it and the side of the limit; what speaks of no row stands alone."""
    if finding.outcome == "unmeasured" and finding.layer is None:
        return place
    return finding.key, finding.max is None


def _family(findings: Sequence[Finding]) -> Family:
    first = min(findings, key=lambda each: ORDER.index(says(each)))
    errors = (x for x in findings if x.level == "error" and x.outcome == "unclear")
    left = next(errors, None)
    return Family(first, left if first.level == "warning" else None)
