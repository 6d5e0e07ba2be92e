"""Printing on a console: harmless text in the console's encoding, nothing cut, nothing folded."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from gradaudit.formats.layout import LEAST_WIDTH, paragraph
from gradaudit.judging.risk import Level
from gradaudit.text import printable

STYLES: dict[Level, str] = {
    "high": "bold red",
    "medium": "yellow",
    "low": "green",
    "unknown": "magenta",
    "not tested": "magenta",
}
_PLAIN_CHARACTERS = str.maketrans({"–": "-", "─": "-", "…": "...", "²": "2", "×": "x"})


class Page:
    """Makes lines for one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, LEAST_WIDTH)

    def print(self, lines: Iterable[Text]) -> None:
        """Print lines as they are; a terminal wraps what is too long for it."""
        for line in lines:
            self.console.print(line, soft_wrap=True, highlight=False)

    def prose(
        self, text: str, first: str = "", rest: str | None = None, style: str = ""
    ) -> Iterator[Text]:
        """Lines of a paragraph; see ``paragraph``."""
        return paragraph(self.safe(text), self.width, first, rest, style)

    def text(self, text: str, style: str = "") -> Text:
        """One harmless line."""
        return Text(self.safe(text), style)

    @property
    def rule(self) -> str:
        """The character that underlines headings."""
        return self.safe("─")

    def safe(self, text: str) -> str:
        """Without control characters and markup, and in the console's encoding."""
        text = printable(text, limit=len(text))
        try:
            text.encode(self.console.encoding)
        except UnicodeEncodeError:
            plain = text.translate(_PLAIN_CHARACTERS)
            return plain.encode(self.console.encoding, "backslashreplace").decode(
                self.console.encoding
            )
        return text
