"""Formats names and numbers for people, the same way in every table and message.

A terminal, a report, a log never sees a name from a file raw; numbers have three digits that count.
"""

import re
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

UNBOUNDED = sys.float_info.max
"""Largest number, which stands for an open end of an interval, as JSON has no infinity."""
LARGEST_PLAIN = 1e6
SMALLEST_PLAIN = 1e-3
WHOLE_FROM = 99.95
"""Value from which on three significant digits leave no decimals."""
DOUBTED = "!"
DOUBTS = f"{DOUBTED} marks numbers that are imprecise or warned of; the report says why"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LIBRARIES = (
    "flwr|joblib|lightning|networkx|numpy|nvflare|opacus|pandas|peft|PIL|pyarrow|pydantic|ray"
    "|safetensors|scipy|sklearn|torch|torchvision|transformers|typer"
)
_OF_LIBRARIES = re.compile(
    rf"<|{re.escape(str(Path(__file__).parents[1]))}/|{re.escape(sysconfig.get_path('stdlib'))}/"
    rf"(?!site-packages/)|.*/(site|dist)-packages/({_LIBRARIES})/"
)
"""Files of this package, of Python and of the libraries it uses, and code without a file."""
LONGEST_PARAGRAPH = 1000
"""Most characters of a paragraph or cell of Markdown; longer ones are cut in the middle."""
_LOG_COMMAND = re.compile(r"(?<=:):|(?<=#)#(?=\w*\[)")
"""Commands that GitHub (``::error::``, ``##[error]``) and Azure (``##vso[…]``) read from logs."""
_OF_JSON = re.compile(r"::+|##+|[^\x20-\x7e\n]")
_PLAIN_IN_MARKDOWN = re.compile(r"[\w ./()-]+", re.ASCII)
_ACTIVE_IN_MARKDOWN = re.compile(
    r"[&<>|`*~#@\\$]"
    r"|\](?=[(\[:])"  # links, references and their definitions
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; a_b has none
    r"|(?<=www)\.|:(?=//)"  # bare addresses
)


def number(value: float) -> str:
    """Formats a number by three significant digits; digits left of the point are all kept.

    The largest finite number is the end of an interval that nothing bounds, and called infinite.

    >>> [number(x) for x in (12345.6, 100.4, 0.12, 61706, 1.5e9, 4.2e-5, float("inf"))]
    ['12,346', '100', '0.120', '61,706', '1.50e9', '4.20e-5', 'infinite']
    """
    if abs(value) >= UNBOUNDED:
        return "infinite" if value > 0 else "-infinite"
    value += 0.0  # minus zero is zero
    size = abs(value)
    if size >= LARGEST_PLAIN or 0 < size < SMALLEST_PLAIN:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if value == int(value) or size >= WHOLE_FROM:
        return f"{value:,.0f}"
    return f"{value:#.3g}"


def duration(seconds: float) -> str:
    """Put a duration in words, rounded.

    >>> [duration(x) for x in (0.2, 42, 200, 9000)]
    ['less than a second', 'about 42 s', 'about 3 min', 'about 2.5 h']
    """
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


MANY = 100
"""Factor of the records or trials from which on no number is named that would settle a limit."""


def deciding_remedy(
    times: float | None,
    n: int | None = None,
    counted: str = "",
    *,
    played: bool = False,
    at_limit: bool = True,
    available: int | None = None,
) -> str:
    """Advises how to settle whether a value is beyond a limit that its interval contains.

    Args:
        times: about how many times as many records or trials; None where no number would.
        n: how many there are.
        counted: what ``n`` counts, where it is that.
        played: whether the value is what an adversary got.
        at_limit: whether the value equals the limit, where no number would settle it.
        available: how many of what ``n`` counts the data has, where that is known.

    >>> deciding_remedy(4.2, 400, "records")
    'about 1,700 records instead of 400 would settle it'
    >>> deciding_remedy(1.1, 4, "records")
    'about 5 records instead of 4 would settle it'
    >>> deciding_remedy(None, played=True)
    'the value lies at the limit; a stronger adversary may settle it'
    >>> deciding_remedy(None, 8, "records", at_limit=False)
    'far too few: more than 800 records instead of 8 would be needed'
    >>> deciding_remedy(1.75, 800, "records", available=1000)
    'about 1,400 records instead of 800 would settle it, and the data has 1,000'
    """
    if times is None and not at_limit:
        named = f"more than {MANY * n:,} {counted} instead of {n:,}" if n and counted else ""
        words = f"far too few: {named or f'more than {MANY} times as many'} would be needed"
        return f"{words}{', or a stronger adversary' if played else ''}"
    if times is None and played:
        return "the value lies at the limit; a stronger adversary may settle it"
    if times is None:
        return (
            "the value lies at the limit; while it does, more records or trials will not settle it"
        )
    more = f"about {times:.2g} times as many records or trials"
    if n is not None and counted:
        wanted = max(n + 1, float(f"{times * n:.2g}"))
        more = f"about {wanted:,.0f} {counted} instead of {n:,}"
        if available is not None and wanted > available:
            return f"{more} would settle it, and the data has {available:,}"
    return f"{more} would settle it{', or a stronger adversary may' if played else ''}"


def variant_text(variant: dict[str, str | int | float | bool]) -> str:
    """Formats a row's variant in a few words: ``method=dlg, round=2``."""
    return ", ".join(f"{key}={value}" for key, value in variant.items())


def printable(name: str, limit: int | None = 200) -> str:
    """Returns a name from an untrusted file as harmless text on one line.

    Control characters, escape sequences, line and paragraph separators, bidirectional and other
    format characters, and lone surrogates become U+FFFD, and so does the second character of what
    the logs of CI servers take for commands (``::``, ``##[``, ``##vso[``). Markup (``[red]``,
    ``<b>``) is left to whoever renders it.

    Args:
        name: any text.
        limit: characters kept, all without it; a longer name loses its middle.
    """
    if limit is not None and len(name) > limit:
        head = limit // 2
        name = f"{name[:head]}…{name[len(name) - (limit - head - 1) :]}"
    shown = "".join(c if c.isprintable() else REPLACEMENT for c in name)
    return _LOG_COMMAND.sub(REPLACEMENT, shown)


def first_line(error: BaseException) -> str:
    """Format an exception as ``Kind: message (FILE, line N)``, by its message's first line."""
    message = str(error).strip().split("\n")[0]
    kind = type(error).__name__
    return (f"{kind}: {message}" if message else kind) + user_line(error)


def user_line(error: BaseException) -> str:
    """Return `` (FILE, line N)``, the last line of a user's code that raised; empty without one."""
    lines = [
        f" ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not _OF_LIBRARIES.match(frame.filename)
    ]
    return lines[-1] if lines else ""


def inert_json(document: str) -> str:
    """Returns an equivalent JSON document without commands to a terminal or a log.

    What ``printable`` replaces stands in it as an escape of JSON, and so does all but the first
    character of ``::`` and ``##``, wherever they stand: that can only be within a text.
    """
    return _OF_JSON.sub(lambda match: _escaped(match[0]), document)


def _escaped(found: str) -> str:
    """Escapes characters as JSON, except a first one that may stay as it is."""
    kept = found[0] if found[0] in ":#" or found.isprintable() else ""
    units = found[len(kept) :].encode("utf-16-be", "surrogatepass")
    return kept + "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def listed(names: Collection[str], limit: int = 4) -> str:
    """Lists names from an untrusted file in a sentence: ``a, b, c and 12 more``."""
    shown = ", ".join(printable(name) for name in list(names)[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def markdown_escape(text: str) -> str:
    """Returns text on one line that Markdown and HTML show as it is.

    Active characters become entities, which can never be read as markup.
    """
    return _ACTIVE_IN_MARKDOWN.sub(lambda m: f"&#{ord(m[0])};", printable(text, limit=None))


def markdown_paragraph(text: str) -> str:
    """Returns text as ``markdown_escape`` does, of at most ``LONGEST_PARAGRAPH`` characters."""
    return markdown_escape(printable(text, limit=LONGEST_PARAGRAPH))


def markdown_code(name: str) -> str:
    """Returns a name in code type; characters that a table cell cannot hold become entities."""
    if _PLAIN_IN_MARKDOWN.fullmatch(name):
        return f"`{name.strip() or ' '}`"
    spelled = re.sub(r"[^\w ./()-]", lambda m: f"&#{ord(m[0])};", printable(name, limit=None))
    return f"<code>{spelled.replace('_', '&#95;')}</code>" if name else ""


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0
) -> Iterator[str]:
    """Returns the lines of a table of Markdown cells; columns of ``right`` are aligned right."""
    yield f"| {' | '.join(headings)} |"
    rules = ["---:" if right and i == right else "---" for i in range(len(headings))]
    yield f"| {' | '.join(rules)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
