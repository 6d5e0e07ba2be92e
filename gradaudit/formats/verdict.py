"""The gate's verdict for a terminal: what failed, against which limit, and one line at the end."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from gradaudit.formats.page import Page
from gradaudit.judging import passed, says
from gradaudit.report import Finding, Report
from gradaudit.wording import variant_text

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "unclear": "yellow",
    "ignored": "dim",
    "known": "dim",
}


def print_verdict(judged: Report, console: Console) -> None:
    """Print every row that is not within its limit, and whether the report passes."""
    page = Page(console)
    for finding in judged.findings:
        page.print(_lines(page, finding))
    style = "bold green" if passed(judged) else "bold red"
    page.print(page.prose(verdict(judged), style=style))


def verdict(judged: Report) -> str:
    """The gate's verdict in one sentence with the counts behind it."""
    counts: Counter[str] = Counter(map(says, judged.findings))
    words = {
        "error": "failed",
        "warning": "warned of",
        "unclear": "unclear",
        "passed": "passed",
        "not-applicable": "not applicable",
        "known": "known from the baseline",
        "ignored": "ignored",
    }
    tally = ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])
    return f"gate {'passed' if passed(judged) else 'failed'}: {tally or 'nothing was judged'}"


def _lines(page: Page, finding: Finding) -> Iterator[Text]:
    word = says(finding)
    if word not in STYLES:
        return
    for i, line in enumerate(page.prose(_sentence(finding), f"{word:<8} ", " " * 9)):
        if i == 0:
            line.stylize(STYLES[word], 0, len(word))
        yield line


def _sentence(finding: Finding) -> str:
    """``conv1 leak.bits (round=2) 3.10 exceeds the max of 2 (rule 1)``."""
    if finding.rule == 0:
        return finding.message
    variant = f"({variant_text(finding.variant)})" if finding.variant else ""
    parts = (finding.layer, finding.metric, variant, finding.message, f"(rule {finding.rule})")
    return " ".join(part for part in parts if part)
