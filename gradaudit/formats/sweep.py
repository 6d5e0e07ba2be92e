"""One metric of a sweep for a terminal: a line for each layer, a column for each setting."""

from collections.abc import Mapping

from rich.console import Console

from gradaudit.formats.layout import Column, grid
from gradaudit.formats.page import Page
from gradaudit.report import Measurement, Report
from gradaudit.wording import DOUBTS, marked, variant_text

WHOLE_MODEL = "(whole model)"


def print_sweep(report: Report, metric: str, names: Mapping[str, object], console: Console) -> None:
    """Print one metric at every setting.

    Args:
        report: of a sweep.
        metric: ``audit.metric``.
        names: what was varied; rows with further variants are left out.
        console: where to.
    """
    rows = [row for row in report.select(metric) if row.variant.keys() == names.keys()]
    layers = list(dict.fromkeys(row.layer for row in rows))
    settings = list(dict.fromkeys(variant_text(row.variant) for row in rows))
    found = {(row.layer, variant_text(row.variant)): row for row in rows}
    page = Page(console)
    if not rows:
        return
    columns = [
        Column(
            page.safe(setting).replace(", ", "\n"),
            [page.text(_cell(found.get((layer, setting)))) for layer in layers],
        )
        for setting in settings
    ]
    key = Column(page.safe(metric), [page.text(layer or WHOLE_MODEL) for layer in layers])
    page.print([page.text("")])
    page.print(grid(key, columns, page.width, page.rule))
    if any(row.doubts for row in rows):
        page.print(page.prose(DOUBTS))


def _cell(row: Measurement | None) -> str:
    if row is None or row.status == "skipped":
        return "–"
    return "failed" if row.status == "failed" else marked(row)
