"""Changes between two reports, row by row; for a terminal and as Markdown."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import JsonValue
from rich.console import Console

from gradaudit.core.text import DOUBTED, DOUBTS, markdown_code, markdown_table, number, variant_text
from gradaudit.formats.page import GAP, Column, Page, grid
from gradaudit.judging import differences, known_metrics
from gradaudit.judging.risk import BEYOND, with_findings
from gradaudit.measurement import dict_of, key_of, texts_of
from gradaudit.report import Key, Measurement, Report, Variant, marked
from gradaudit.view import Concern, View, view
from gradaudit.view.facts import Place, shortened

ABSENT = "absent"
LEAST_SHARE = 0.01
"""Share of the old value, or of its distance from a default limit, from which on a change is one,
where there are no intervals."""
MANIFOLD = 10
"""Factor from which on a change is no percentage: the old value is next to nothing."""
MOST_ROWS = 10
"""Most rows that are shown where not all are asked for."""
LEFT_OUT = "{} more rows changed (--all shows them)"


@dataclass(frozen=True)
class Change:
    """A row in two reports; None where a report does not have it.

    ``crossed`` says which limit the row is now beyond or within, where it was not before.
    """

    old: Measurement | None
    new: Measurement | None
    crossed: str = ""

    @property
    def row(self) -> Measurement:
        """The row that names metric, layer and variant."""
        row = self.new or self.old
        assert row is not None, "a change has a row on at least one side"
        return row

    @property
    def difference(self) -> float | None:
        """The new value less the old one; None where not both are finite numbers."""
        before = self.old.value if self.old else None
        after = self.new.value if self.new else None
        return None if before is None or after is None else after - before

    @property
    def share(self) -> float | None:
        """The difference as a share of the old value; infinite where that alone is zero."""
        before = self.old.value if self.old else None
        if self.difference is None or before is None:
            return None
        if not self.difference:
            return 0.0
        return self.difference / abs(before) if before else math.copysign(math.inf, self.difference)

    @property
    def widths(self) -> float | None:
        """The difference in half the widths of both intervals; None where not both have one."""
        if self.overlap is None or self.difference is None:
            return None
        ends = [row.known_to for row in (self.old, self.new) if row and row.known_to]
        half = sum(high - low for low, high in ends) / 2
        return self.difference / half if half else math.copysign(math.inf, self.difference)

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals overlap; None where not both have one.

        Intervals that do not overlap differ surely; those that do may still differ.
        """
        old, new = self.old and self.old.known_to, self.new and self.new.known_to
        if not old or not new:
            return None
        return old[0] <= new[1] and new[0] <= old[1]

    @property
    def slight(self) -> bool:
        """Whether a value without an interval differs by less than ``LEAST_SHARE``."""
        before = self.old.value if self.old else None
        if self.overlap is not None or self.difference is None or before is None:
            return False
        metric = known_metrics().get(self.row.id)
        limits = (metric.warning, metric.error) if metric else ()
        sizes = [abs(before), *(abs(before - limit) for limit in limits if limit is not None)]
        return abs(self.difference) <= LEAST_SHARE * max(sizes)

    @property
    def direction(self) -> Literal["worse", "better"] | None:
        """Whether the row shows more or less risk; None where it shows neither.

        Intervals that overlap show neither, nor does a slight change where they are missing, nor a
        metric that is not riskier at one end.
        """
        metric = known_metrics().get(self.row.id)
        before = None if self.old is None else self.old.number
        after = None if self.new is None else self.new.number
        if metric is None or not metric.riskier or before is None or after is None:
            return None
        if self.overlap or before == after or self.slight:
            return None
        return "worse" if (after > before) == (metric.riskier == "higher") else "better"

    @property
    def reading(self) -> str:
        """The change in words: its direction and the limit that it crossed, or the intervals."""
        overlap = {True: "overlap", False: "apart", None: ""}[self.overlap]
        return ", ".join(filter(None, (self.direction or overlap, self.crossed)))

    @property
    def same(self) -> bool:
        """Whether both reports say the same of the row."""
        return (
            self.old is not None
            and self.new is not None
            and (self.old.status, self.old.number, self.old.interval)
            == (self.new.status, self.new.number, self.new.interval)
        )

    @property
    def shown(self) -> bool:
        """Whether the row changed by more than what its value is known to, or crossed a limit."""
        return bool(self.crossed) or not (self.same or self.overlap or self.slight)

    @property
    def words(self) -> str:
        """Formats the difference: ``+0.500 (+25.0 %)``; empty where there is none."""
        if self.difference is None or self.share is None:
            return ""
        share = f" ({_signed(100 * self.share)} %)" if abs(self.share) < MANIFOLD else ""
        return f"{_signed(self.difference)}{share}"

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the key, both values with their status, the difference and the overlap."""
        variant: Variant = self.row.variant
        return {
            "audit": self.row.audit,
            "metric": self.row.metric,
            "layer": self.row.layer,
            "variant": dict(variant),
            "old": side_json(self.old),
            "new": side_json(self.new),
            "difference": self.difference,
            "intervals_overlap": self.overlap,
            "direction": self.direction,
            "crossed": self.crossed or None,
        }


def changes(old: Report, new: Report, *, variants: bool = False) -> Iterator[Change]:
    """Yields the rows of both reports: in the new one's order, then those of the old one alone.

    Shares of a layer among all are left out where the shared layers differ.
    """
    alike = _shared(old) == _shared(new)

    def compared(row: Measurement) -> bool:
        return (variants or not row.variant) and (alike or not row.metric.endswith("_share"))

    before = {row.key: row for row in old.rows if compared(row)}
    crossed = crossings(old, new)
    for row in new.rows:
        if compared(row):
            yield Change(before.pop(row.key, None), row, crossed.get(row.key, ""))
    for row in before.values():
        yield Change(row, None)


def _shared(report: Report) -> set[str]:
    """Name the layers that are shared."""
    names = {layer.name for layer in report.target.layers}
    return names - set(texts_of(report.provenance.get("hidden")))


def outcomes(names: Sequence[str], reports: Sequence[Report]) -> list[str]:
    """Word each report's verdict and gaps, the differences, and findings that came or went."""
    shown = [view(report) for report in reports]
    lines = []
    for name, report, each in zip(names, reports, shown, strict=True):
        lines.append(f"{name}: {each.verdict.word}")
        if note := shortened(dict_of(report.provenance.get("plan"))):
            lines.append(f"  {note}")
    for name, before, after in zip(names, reports, reports[1:], strict=False):
        lines += [f"{name} {note}" for note in differences(after, before)]
    if _shared(reports[0]) != _shared(reports[-1]):
        lines.append("the shared layers differ: shares of layers are not compared")
    return [*lines, *moved_findings(shown[0], shown[-1])]


def moved_findings(old: View, new: View) -> list[str]:
    """Word each finding whose severity differs, with the layers in which it does."""
    before, after = _by_place(old), _by_place(new)
    moves: dict[tuple[str, str, str], list[str | None]] = {}
    for finding, layer in dict.fromkeys((*after, *before)):
        old_one, new_one = before.get((finding, layer)), after.get((finding, layer))
        was = old_one.severity if old_one else ""
        now = new_one.severity if new_one else ""
        if was != now and not {was, now} <= {"", "OPEN"}:
            moves.setdefault((finding, was, now), []).append(layer)
    lines = []
    for (finding, was, now), layers in moves.items():
        known = after if now not in ("", "OPEN") else before
        concern = known[finding, layers[0]]
        place = Place(tuple(x for x in layers if x is not None), whole=None in layers)
        words = concern.sentence.rstrip(".") + (f" ({place})" if concern.where else "")
        if was in ("", "OPEN"):
            lines.append(f"came: {now} {words}" + (", was open" if was else ""))
        elif now in ("", "OPEN"):
            lines.append(f"went: {was} {words}" + (", now open" if now else ""))
        else:
            lines.append(f"changed: {was} → {now} {words}")
    return sorted(lines, key=lambda line: line.split()[:2])


def _by_place(shown: View) -> dict[tuple[str, str | None], Concern]:
    """Return the gravest concern of each finding and layer; the whole update is None."""
    return {
        (concern.metric if concern.where else concern.sentence, layer): concern
        for concern in reversed(shown.concerns)
        for layer in concern.places
    }


def crossings(old: Report, new: Report) -> dict[Key, str]:
    """Name the limit of each row that one report alone shows to be beyond it.

    A headline is beyond a limit where one of the rows that it stands for is. Limits are those that
    judged the reports, or of the default policy; an error rule's goes first.
    """
    before, after = _standings(old), _standings(new)
    crossed: dict[Key, str] = {}
    for place in sorted(after, key=lambda place: place.level == "warning"):
        (now, limit), (was, _) = after[place], before.get(place, ("", 0.0))
        if was and now != was and "beyond" in (was, now):
            crossed.setdefault(place.key, f"{now} {place.kind} {limit:.10g}")
    return crossed


class _Limit(NamedTuple):
    key: Key
    level: str
    kind: str


_STANDINGS = {**dict.fromkeys(BEYOND, "beyond"), "unclear": "open at", "passed": "within"}


def _standings(report: Report) -> dict[_Limit, tuple[str, float]]:
    """Return where each row and headline stands to each of its limits, the gravest of several."""
    found: dict[_Limit, tuple[str, float]] = {}
    for finding in with_findings(report).findings:
        standing, limit = _STANDINGS.get(finding.outcome), finding.limit
        if standing is None or limit is None:
            continue
        for key in (finding.key, key_of(finding.metric, finding.layer, {})):
            place = _Limit(key, finding.level, "max" if finding.min is None else "min")
            others = found.get(place, (standing, limit))
            found[place] = min(others, (standing, limit))  # "beyond", "open at", "within"
    return found


def side(row: Measurement | None) -> str:
    """Formats one side of a change as a cell: the estimate, a status, or ``absent``."""
    if row is None:
        return ABSENT
    return marked(row) if row.status == "measured" else row.status


def _signed(value: float) -> str:
    return number(value) if value < 0 else f"+{number(value)}"


def side_json(row: Measurement | None) -> JsonValue:
    """Return status, value and interval of one side of a change."""
    if row is None:
        return None
    infinite: dict[str, JsonValue] = {"infinite": True} if row.number == math.inf else {}
    interval: JsonValue = list(row.interval) if row.interval else None
    return {"status": row.status, "value": row.value, "interval": interval, **infinite}


HEADINGS = ("layer", "metric", "old → new", "change", "reading")
WHOLE_MODEL = "(whole model)"


def sorted_changes(changed: Iterable[Change]) -> list[Change]:
    """Returns the changes that crossed a limit, the worse, the better, then the others.

    Among each the largest come first: in widths of intervals, then in old values. Rows that one of
    the reports does not have, or did not measure, come last.
    """
    return sorted(changed, key=_size, reverse=True)


def _size(change: Change) -> tuple[bool, int, bool, bool, bool, float]:
    widths, share = change.widths, change.share
    size = share if widths is None else widths
    turn = {"worse": 2, "better": 1, None: 0}[change.direction]
    apart = change.overlap is False
    return (
        bool(change.crossed),
        turn,
        apart,
        widths is not None,
        share is not None,
        abs(size or 0.0),
    )


def print_changes(
    changed: Sequence[Change], unchanged: int, console: Console, most: int = MOST_ROWS
) -> None:
    """Print how many rows became worse, became better or crossed a limit, then some of them.

    With the intervals where the console is wide enough for them.
    """
    page = Page(console)
    page.print(page.prose(tally(changed, unchanged)))
    shown, left = changed[:most], len(changed) - most
    if shown:
        columns = _columns(page, shown, side)
        if sum(column.width + GAP for column in columns) > page.width + GAP:
            columns = _columns(page, shown, _value)
        page.print(grid(columns[:2], columns[2:], page.width, page.rule))
    if left > 0:
        page.print(page.prose(LEFT_OUT.format(left)))


def markdown_changes(changed: Sequence[Change], unchanged: int, most: int = MOST_ROWS) -> str:
    """Returns the changes as Markdown."""
    rows = [
        [markdown_code(layer), markdown_code(metric), *rest]
        for change in changed[:most]
        for layer, metric, *rest in [_cells(change, side)]
    ]
    lines = ["", *markdown_table(HEADINGS, rows)] if rows else []
    left = len(changed) - most
    more = ["", LEFT_OUT.format(left)] if left > 0 else []
    return "\n".join([tally(changed, unchanged), *lines, *more]) + "\n"


def tally(changed: Sequence[Change], unchanged: int) -> str:
    """Counts the rows that became worse or better, that crossed a limit, and that changed."""
    worse, better = (sum(x.direction == word for x in changed) for word in ("worse", "better"))
    crossed = sum(bool(change.crossed) for change in changed)
    summary = (
        f"{worse} worse, {better} better, {crossed} crossed a limit; {len(changed)} rows changed, "
        f"{unchanged} not beyond their error"
    )
    doubts = any(row.doubts for change in changed for row in (change.old, change.new) if row)
    return f"{summary}; {DOUBTS}" if doubts else summary


Side = Callable[[Measurement | None], str]


def _columns(page: Page, changed: Sequence[Change], one: Side) -> list[Column]:
    lines = [[page.text(cell) for cell in _cells(change, one)] for change in changed]
    return [Column(page.safe(h), [line[i] for line in lines]) for i, h in enumerate(HEADINGS)]


def _cells(change: Change, one: Side) -> tuple[str, ...]:
    variant = f" ({variant_text(change.row.variant)})" if change.row.variant else ""
    layer = change.row.layer or WHOLE_MODEL
    sides = f"{one(change.old)} → {one(change.new)}"
    return (layer, change.row.id + variant, sides, change.words, change.reading)


def _value(row: Measurement | None) -> str:
    """Formats one side without its interval."""
    if row is None or row.number is None:
        return side(row)
    return number(row.number) + (f" {DOUBTED}" if row.doubts else "")
