"""Tables and picture of ``docs/reference``, from the reports of the reference models."""

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes

from benchmarks.harness import ROOT
from benchmarks.reference.recipes import RECIPES
from gradaudit.core.drawing import picture
from gradaudit.core.text import listed, number
from gradaudit.judging import known_metrics
from gradaudit.references import COMPARED, FOLDER
from gradaudit.report import Measurement, Report

PAGE = ROOT / "docs" / "reference" / "index.md"
PICTURE = PAGE.with_name("aurocs.svg")
DRAWN = {"vinfo.auroc": "private attribute", "attack.record_auroc": "record behind the update"}
BEGIN, END = "<!-- references -->\n", "<!-- /references -->\n"
COLUMNS = {
    "vinfo.auroc": "attribute?",
    "attack.record_auroc": "record?",
    "attack.relative_error": "rebuilt?",
    "attack.membership_distance": "labels?",
}
MOST_LAYERS = 3


def write_page() -> None:
    """Put the tables of the reports between the comments of the page, and draw its picture."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables() + END + rest.partition(END)[2], encoding="utf-8")
    with picture(PICTURE, len(DRAWN), shared=True) as panels:
        for axes, metric in zip(panels, DRAWN, strict=True):
            _draw(axes, metric)


def kept() -> dict[str, Report]:
    """The reports of the references that are there, in the order of the recipes."""
    files = {name: FOLDER / f"{name}.json" for name in RECIPES}
    return {name: Report.from_file(file) for name, file in files.items() if file.is_file()}


def _draw(axes: Axes, metric: str) -> None:
    """Draw each reference's riskiest value with its interval, from guessing to certainty."""
    reports = [*kept().values()][::-1]
    axes.set_yticks(range(len(reports)), [_about(report)["title"] for report in reports])
    for place, report in enumerate(reports):
        row = max(report.select(metric), key=lambda row: row.number or 0)
        axes.plot(row.interval or (), [place, place], color="#7a8794", linewidth=2)
        axes.plot([row.number or 0.0], [place], "o", color="#b3261e")
    axes.set_xlim(0.45, 1.03)
    axes.axvline(0.5, color="black", linewidth=0.8)
    axes.axvline(0.75, color="black", linewidth=0.8, linestyle=":")
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(DRAWN[metric])
    axes.set_xlabel("AUROC (0.5: guessing; dotted: limit)")


def tables() -> str:
    """A table of all references, and a card of each."""
    reports = kept()
    lines = [*_table(reports)]
    for name, report in reports.items():
        lines += ["", *_card(name, report)]
    return "\n".join(lines) + "\n"


def _table(reports: Mapping[str, Report]) -> Iterator[str]:
    heads = ["model", "private", "right (guessing)", *COLUMNS.values(), "verdict"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, report in reports.items():
        about = _about(report)
        told = about["held_out"]
        cells = [_cell(report, metric) for metric in COLUMNS]
        right = f"{told['value']:.2f} ({told['chance']:.2f})"
        link = f"[{about['title']}](#{name})"
        yield f"| {' | '.join((link, _secret(report), right, *cells, about.get('verdict', '')))} |"


def _cell(report: Report, metric: str) -> str:
    """The riskiest value of a metric, bold where it is shown to be beyond the policy's limit."""
    rows = report.select(metric)
    if not rows:
        return "–"
    lower = known_metrics()[metric].riskier == "lower"
    value = _number((min if lower else max)(row.number or 0 for row in rows))
    shown = any(finding.metric == metric for finding in report.findings)
    return f"**{value}**" if shown else value


def _card(name: str, report: Report) -> Iterator[str]:
    about = _about(report)
    told, says = about["held_out"], about["says"]
    yield f"### {about['title']} {{#{name}}}"
    yield ""
    yield (
        f"{says[:1].upper()}{says[1:]}. {report.target.parameters:,} parameters in "
        f"{len(report.target.layers)} layers; {about['records']}; private: {_secret(report)} "
        f"({_values(report)}); seed "
        f"{report.provenance['seed']}; {told['value']:.3f} of {told['n']:,} held-out records "
        f"right, by guessing {told['chance']:.3f}."
    )
    yield ""
    yield "| layers of a kind, the riskiest | " + " | ".join(COLUMNS.values()) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for kind in _kinds(report):
        cells = [_at(report, metric, kind) for metric in COLUMNS]
        yield f"| {kind or 'whole update'} | " + " | ".join(cells) + " |"
    yield ""
    yield _failing(report)


def _about(report: Report) -> dict[str, Any]:
    about: Any = report.provenance["reference"]
    return dict(about)


def _secret(report: Report) -> str:
    names: Any = report.provenance["attributes"]
    return listed(names)


def _values(report: Report) -> str:
    counts: Any = report.data["attributes"]
    return listed(counts[_secret(report)])


def _kind(report: Report, row: Measurement) -> str | None:
    return {layer.name: layer.kind for layer in report.target.layers}.get(row.layer or "")


def _kinds(report: Report) -> list[str | None]:
    kinds = dict.fromkeys(_kind(report, row) for row in report.rows)
    return sorted(kinds, key=lambda kind: kind is None)


def _at(report: Report, metric: str, kind: str | None) -> str:
    """``0.93 [0.85, 0.97] in fc1``."""
    for row in report.select(metric):
        if _kind(report, row) == kind:
            ends = row.interval and f" [{number(row.interval[0])}, {number(row.interval[1])}]"
            where = f" in `{row.layer}`" if row.layer else ""
            return f"{_number(row.number or 0)}{ends or ''}{where}"
    return ""


def _number(value: float) -> str:
    """A number to four decimals at most: nothing smaller is worth telling apart from nothing."""
    return number(round(value, 4))


def _failing(report: Report) -> str:
    """The rows that are shown to be beyond the limits, by metric."""
    places: dict[str, dict[str, None]] = {}
    for finding in report.findings:
        where = f"`{finding.layer}`" if finding.layer else "the whole update"
        places.setdefault(finding.metric, {})[where] = None
    said = [
        f"`{metric}` in {', '.join([*where][:MOST_LAYERS])}"
        + f" and {len(where) - MOST_LAYERS} more" * (len(where) > MOST_LAYERS)
        for metric, where in sorted(places.items(), key=lambda each: [*COMPARED].index(each[0]))
    ]
    return f"Beyond the limit: {'; '.join(said)}." if said else "Nothing is beyond a limit."
