"""Draws docs/report.svg, the beginning of a saved report as a terminal shows it.

``make picture`` runs ``python docs/picture.py demo-report.json`` on the report of the sample model.
"""

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from gradaudit.formats.table import print_report
from gradaudit.report import Report

PICTURE = Path(__file__).with_name("report.svg")
MOST_LINES = 44
_FETCHED = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def picture(report: Report, width: int = 80) -> str:
    """The report's first lines as an SVG that fetches nothing."""
    shown = io.StringIO()
    print_report(
        report, Console(file=shown, width=width, color_system="standard", force_terminal=True)
    )
    lines = shown.getvalue().splitlines()[:MOST_LINES]
    drawn = Console(file=io.StringIO(), width=width, record=True)
    drawn.print(Text.from_ansi("\n".join(lines)))
    plain = _FETCHED.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    return drawn.export_svg(
        title="gradaudit scan", theme=MONOKAI, code_format=plain, unique_id="report"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(Report.from_file(Path(sys.argv[1]))), encoding="utf-8")
