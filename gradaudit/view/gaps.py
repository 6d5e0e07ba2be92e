"""Gaps in the evidence: what no audit measured, which does not mean that there is no risk."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradaudit.audits import audits
from gradaudit.audits.gathering import audit_of
from gradaudit.measurement import TOO_FEW
from gradaudit.report import Measurement, Report
from gradaudit.view.cells import LayerLine
from gradaudit.view.facts import BETWEEN, abridged
from gradaudit.view.scope import not_attacked

NOT_ASKED = "not asked for"
_ATTACK = "attack "
NOT_APPLICABLE = "not applicable"
MOST_LAYERS = 8
_UNNAMED = "; name "
"""Words of a reason before what somebody has not named yet."""
_METHOD = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class UnmeasuredPart:
    """A part of the subject that no audit looked at, and the reason.

    Attributes:
        what: audits, metrics, attributes, layers.
        reason: why nobody looked.
        layers: where; none where it holds everywhere.
        failed: whether it was tried and broke.
        partial: whether the same audit has numbers elsewhere.
        known: whether the reason is another than that it does not apply.
    """

    what: str
    reason: str
    layers: tuple[str, ...] = ()
    failed: bool = False
    partial: bool = False
    known: bool = True

    @property
    def where(self) -> str:
        """The layers of a gap as `` in conv1 and conv2``; empty where it holds for all layers."""
        return f" in {abridged(self.layers, MOST_LAYERS)}" if self.layers else ""

    @property
    def brief(self) -> str:
        """The reason in a few words."""
        if self.failed:
            return f"failed: {self.short}"
        return self.short if self.known or _UNNAMED in self.reason else NOT_APPLICABLE

    @property
    def short(self) -> str:
        """The first clause of the reason, which names of methods may stand before."""
        first, _, rest = self.reason.partition(";")[0].partition(": ")
        named = bool(rest) and all(_METHOD.fullmatch(name) for name in first.split(", "))
        return (rest.partition(": ")[0] if named else first).partition(" (")[0]


def in_brief(gaps: Sequence[UnmeasuredPart]) -> str:
    """Names in one sentence what was not measured at all, or failed; empty without any.

    ``attribute ink (not asked for); attack text, floor (not applicable)``: the gaps themselves say
    why an audit does not apply.
    """
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        if not gap.partial or gap.failed:
            named = f"{gap.what}{gap.where}"
            others = by_reason.setdefault(gap.brief, [])
            again = any(other.startswith(_ATTACK) for other in others)
            others.append(named.removeprefix(_ATTACK) if again else named)
    return "; ".join(f"{', '.join(whats)} ({why})" for why, whats in by_reason.items())


def gaps_of(report: Report, lines: Sequence[LayerLine]) -> tuple[UnmeasuredPart, ...]:
    """Returns everything that was not measured, the widest gaps first."""
    measured = {audit_of(row, report) for row in report.rows if row.status == "measured"}
    return (
        *_of_layers_and_attributes(report, lines),
        *_rows(report, measured, whole=True),
        *_unasked(report),
        *_rows(report, measured, whole=False),
    )


def _of_layers_and_attributes(
    report: Report, lines: Sequence[LayerLine]
) -> Iterator[UnmeasuredPart]:
    if names := not_attacked(report):
        yield UnmeasuredPart(f"attribute {abridged(names, MOST_LAYERS)}", NOT_ASKED)
    if idle := [line.name for line in lines if line.level == "not tested"]:
        what = f"{'layers' if len(idle) > 1 else 'layer'} {abridged(idle, MOST_LAYERS)}"
        yield UnmeasuredPart(what, "no rule judges an attack on the gradient by itself")


def _unasked(report: Report) -> Iterator[UnmeasuredPart]:
    """Names installed audits without a row in the report, unless they are most of them."""
    present = {audit_of(row, report) for row in report.rows}
    asked = {name for name, audit in audits().items() if not audit.brings_model}
    idle = [name for name in audits() if name in asked - present]
    if len(idle) > len(present):
        yield UnmeasuredPart("every other audit", NOT_ASKED)
    elif idle:
        yield UnmeasuredPart(BETWEEN.join(idle), NOT_ASKED)


def _rows(report: Report, measured: set[str], *, whole: bool) -> Iterator[UnmeasuredPart]:
    """Yields a gap for each audit and reason, of audits without any number or of the others."""
    groups: dict[tuple[str, str, bool], list[Measurement]] = {}
    places = {(audit_of(x, report), x.layer) for x in report.rows if x.status == "measured"}
    for row in report.rows:
        member = audit_of(row, report)
        beside_headline = row.variant.keys() - {row.audit}  # whose gap is listed already
        if row.status != "measured" and (member not in measured) is whole and not beside_headline:
            key = member, row.reason or "", row.status == "failed"
            groups.setdefault(key, []).append(row)
    every = {layer.name for layer in report.target.layers}
    for (member, reason, failed), rows in groups.items():
        names = tuple(dict.fromkeys(row.layer for row in rows if row.layer is not None))
        everywhere = every <= set(names) or whole
        metrics = dict.fromkeys(row.id for row in rows)
        elsewhere = names and not everywhere and not places & {(member, name) for name in names}
        what = member if whole or elsewhere else ", ".join(metrics)
        left_out = any(row.left_out or row.details.get(TOO_FEW) is True for row in rows)
        where = () if everywhere else names
        yield UnmeasuredPart(what, reason, where, failed, not whole, known=failed or left_out)
