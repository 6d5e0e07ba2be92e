"""Formats an explanation as lines of a console, or as Markdown."""

import re
from collections.abc import Iterator

from rich.text import Text

from gradaudit.audits.explaining import Explanation, Section
from gradaudit.core.text import markdown_escape
from gradaudit.formats.page import Page

_SOURCE_TEXT = re.compile(r"``(.+?)``|`(.+?)`")


def explanation_lines(explained: Explanation, page: Page) -> Iterator[Text]:
    """Yields paragraphs as wide as the page."""
    yield page.text(explained.title, "bold")
    yield from page.prose(_plain(explained.lead))
    for part in explained.parts:
        if part.paragraphs or part.entries:
            yield from (Text(), page.text(part.heading, "bold"))
            yield from _part_lines(part, page)
    if explained.address:
        yield from (Text(), page.text(explained.address))


def _part_lines(part: Section, page: Page) -> Iterator[Text]:
    for i, paragraph in enumerate(part.paragraphs):
        yield from ([Text()] if i else [])
        yield from page.prose(_plain(paragraph))
    for term, text in part.entries:
        yield page.text(f"  {term}")
        yield from page.prose(_plain(text), "      ")


def explanation_markdown(explained: Explanation, level: int = 1) -> str:
    """Returns Markdown whose title is a heading of this level."""
    below = "#" * (level + 1)
    blocks = [f"{'#' * level} {markdown_escape(explained.title)}", _marked(explained.lead)]
    for part in explained.parts:
        if part.paragraphs or part.entries:
            blocks += [f"{below} {markdown_escape(part.heading)}", *map(_marked, part.paragraphs)]
            blocks += ["\n".join(f"- `{term}`: {_marked(text)}" for term, text in part.entries)]
    if explained.address:
        blocks.append(f"[The paper]({explained.address})")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _plain(text: str) -> str:
    return _SOURCE_TEXT.sub(lambda m: m[1] or m[2], text)


def _marked(text: str) -> str:
    """Escapes Markdown in a text, except between backticks."""
    end, parts = 0, []
    for match in _SOURCE_TEXT.finditer(text):
        parts += [markdown_escape(text[end : match.start()]), f"`{match[1] or match[2]}`"]
        end = match.end()
    return "".join([*parts, markdown_escape(text[end:])])
