"""Puts what a scan prints into the pages: whole in reading.md, its beginning as report.svg.

``make picture`` runs it on ``FORCE_COLOR=1 COLUMNS=80 gradaudit scan``, whose output it reads.
"""

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).with_name("report.svg")
PAGE = Path(__file__).with_name("reading.md")
WIDTH = 80
MOST_LINES = 44
_FETCHED = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_BLOCK = re.compile(r"(?<=<!-- scan -->\n```\n).*?(?=```\n<!-- /scan -->)", re.DOTALL)


def picture(lines: list[str]) -> str:
    """Lines with the escapes of colours as an SVG that fetches nothing."""
    drawn = Console(file=io.StringIO(), width=WIDTH, record=True)
    drawn.print(Text.from_ansi("\n".join(lines)))
    plain = _FETCHED.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    return drawn.export_svg(
        title="gradaudit scan", theme=MONOKAI, code_format=plain, unique_id="report"
    )


def with_block(page: str, printed: str) -> str:
    """A page with what was printed between its comments."""
    return _BLOCK.sub(lambda _: Text.from_ansi(printed).plain.rstrip("\n") + "\n", page)


if __name__ == "__main__":
    printed = sys.stdin.read()
    PICTURE.write_text(picture(printed.splitlines()[:MOST_LINES]), encoding="utf-8")
    PAGE.write_text(with_block(PAGE.read_text("utf-8"), printed), encoding="utf-8")
