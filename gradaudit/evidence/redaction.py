"""Removes private words from a report: attributes, values, columns and paths.

Numbers, layers, options and metrics stay, so that a redacted report can be judged and compared.
What stands for a word is numbered by the order in which the words are met.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Report

MAX_WORDS, MAX_COMPARED = 20_000, 5_000_000_000
"""Largest number of private words, and of words times characters (10⁹ take a second)."""
_KEPT_KEYS = {"infinite", "claimed", "exceeded"}
_SUFFIX = (
    "py|csv|tsv|npz|npy|json|html?|md|sarif|xml|txt|safetensors|pt2?|pth|bin|ckpt|ya?ml|svg|png|"
    "jpe?g|gz|zip"
)
_FILE = re.compile(rf"[^\s'\"]*[\w@+-]\.(?:{_SUFFIX})(?:\.gz)?$", re.IGNORECASE)
_IN_PROSE = re.compile(
    r"(?<![\w:/\\.@+-])(?:"
    rf"(?:~|\.{{1,2}})?(?:/[\w.@+-]+)+/?"
    rf"|(?:[\w.@+-]+/)*(?![A-Z_]+\.)[\w@+-][\w.@+-]*\.(?:{_SUFFIX})\b)"
)
_SCHEME = re.compile(r"^(?:csv|npz|images|text|torchvision|hf|zoo):")
_FUNCTION = re.compile(r"(\.py):[^/]*$")
_NAMING = {"attribute", "label", "drop", "user", "member", "text", "inputs", "column", "id"}
_ATTRIBUTE_FLAGS = {"-a", "--attribute", "--knows"}


def redact(report: Report, columns: Mapping[str, Sequence[str]] | None = None) -> Report:
    """Returns a copy in which each private word is replaced by the same placeholder everywhere.

    ``attribute-1``, ``value-1``, ``class-1``, ``column-1`` and ``file-1`` are numbered in order of
    appearance in the report. Numbers and single characters are replaced where they are a whole
    string or stand in quotes or after ``=``, not in the midst of a sentence.

    Args:
        report: any report.
        columns: all columns of the data with their categories; a report alone does not list them.
    """
    words = PrivateWords()
    _learn_data(words, report.data)
    for name, values in (columns or {}).items():
        words.learn("column", name)
        for value in values:
            words.learn("value", value)
    for text in _requests(report):
        _learn_request(words, text)
    replace, target = words.replace, report.target
    checkpoints = [
        each.model_copy(
            update={"file": replace(each.file), "notes": [replace(note) for note in each.notes]}
        )
        for each in target.checkpoints
    ]
    named = {"model": replace(target.model), "loss": replace(target.loss)}
    return report.model_copy(
        update={
            "target": target.model_copy(update={**named, "checkpoints": checkpoints}),
            "data": {key: _all(value, replace) for key, value in report.data.items()},
            "provenance": {
                key: shlex.join(map(replace, split_command(value)))
                if key == "command" and isinstance(value, str)
                else _all(value, replace, keys=False)
                for key, value in report.provenance.items()
            },
            "measurements": [_row(row, replace) for row in report.measurements],
            "findings": [
                finding.model_copy(
                    update={
                        "variant": _all(finding.variant, replace, keys=False),
                        "message": replace(finding.message),
                    }
                )
                for finding in report.findings
            ],
        }
    )


def _all(value: Any, masked: Callable[[str], str], *, keys: bool = True) -> Any:
    """Returns a JSON value with every string and every object key replaced."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_all(part, masked, keys=keys) for part in value]
    if isinstance(value, dict):
        return {
            masked(key) if keys and key not in _KEPT_KEYS else key: _all(part, masked, keys=keys)
            for key, part in value.items()
        }
    return value


def _row(row: Measurement, masked: Callable[[str], str]) -> Measurement:
    return row.model_copy(
        update={
            "variant": _all(row.variant, masked, keys=False),
            "reason": None if row.reason is None else masked(row.reason),
            "details": _all(row.details, masked),
        }
    )


class PrivateWords:
    """Private words and their placeholders; a word keeps the first kind that it is learnt as."""

    def __init__(self) -> None:
        self.placeholders: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._compared = 0
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, word: str) -> None:
        """Assign a placeholder ``KIND-N`` to a word."""
        if word.strip() and word not in self.placeholders:
            self._counts[kind] += 1
            self.placeholders[word] = f"{kind}-{self._counts[kind]}"
            self._pattern = None

    def learn_path(self, path: str) -> None:
        """Assign one placeholder to a path and to its last part."""
        path = path.rstrip("/\\")
        name = re.split(r"[/\\]", path)[-1]
        known = self.placeholders.get(name)
        self.learn("file", path)
        if path in self.placeholders and name not in ("", ".", ".."):
            self.placeholders.setdefault(name, known or self.placeholders[path])

    def replace(self, text: str) -> str:
        """Returns the text with all private words replaced in one pass, the longest first.

        Raises:
            UsageError: the words are too many, or too many for all texts together.
        """
        if text in self.placeholders:
            return self.placeholders[text]
        words = len(self.placeholders)
        self._compared += words * len(text)
        if words > MAX_WORDS or self._compared > MAX_COMPARED:
            raise UsageError(
                f"--redact: {words:,} private names are too many to be replaced in so long a "
                "report; take attributes and columns of many values out of the data"
            )
        if self._pattern is None:
            self._pattern = _pattern(self.placeholders)
        replaced = self._pattern.sub(lambda match: self.placeholders[match[0]], text)
        return _IN_PROSE.sub(lambda match: self._of_path(match[0]), replaced)

    def _of_path(self, path: str) -> str:
        if path not in self.placeholders:  # it is found again where it occurs, without a pattern
            self._counts["file"] += 1
            self.placeholders[path] = f"file-{self._counts['file']}"
        return self.placeholders[path]


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    spelled = sorted(words, key=len, reverse=True)
    long = "|".join(re.escape(word) for word in spelled if not _is_short(word))
    short = "|".join(re.escape(word) for word in spelled if _is_short(word))
    parts = [rf"(?<![\w-])(?:{long})(?![\w-])"] if long else []
    if short:
        parts += [rf"(?<=['\"=])(?:{short})(?=['\"&,\s]|$)"]
    return re.compile("|".join(parts) or r"(?!)")


def _is_short(word: str) -> bool:
    return len(word) == 1 or bool(re.fullmatch(r"[-+]?[\d.,]+(?:e[-+]?\d+)?", word))


def _learn_data(words: PrivateWords, data: Mapping[str, JsonValue]) -> None:
    attributes, classes = data.get("attributes"), data.get("classes")
    counts = attributes if isinstance(attributes, dict) else {}
    for name in counts:
        words.learn("attribute", name)
    for of_values in counts.values():
        for value in of_values if isinstance(of_values, dict) else ():
            words.learn("value", value)
    for value in classes if isinstance(classes, dict) else ():
        words.learn("class", value)
    for column in _noted(data.get("notes")):
        words.learn("column", column)


def _noted(notes: JsonValue) -> Iterator[str]:
    """Yields the columns that an adapter names in its notes."""
    for note in notes.values() if isinstance(notes, dict) else ():
        if isinstance(note, dict | list):
            yield from (name for name in note if isinstance(name, str))


def _requests(report: Report) -> Iterator[str]:
    """Yields every text that names files or columns: specs, command words, options."""
    yield report.target.model
    yield report.target.loss
    for checkpoint in report.target.checkpoints:
        yield checkpoint.file
    yield from _strings(report.data.get("adapter"))
    yield from _strings(report.provenance.get("audits"))
    yield from _strings(report.provenance.get("defenses"))
    command = report.provenance.get("command")
    yield from _command_words(command) if isinstance(command, str) else ()


def _command_words(command: str) -> list[str]:
    """Yields the command's words; attributes are written as specs of an attribute."""
    given = split_command(command)
    words = []
    for before, word in zip(["", *given], given, strict=False):
        flag, equals, value = word.partition("=")
        if before in _ATTRIBUTE_FLAGS or (flag in _ATTRIBUTE_FLAGS and equals):
            names = word if before in _ATTRIBUTE_FLAGS else value
            words += [f"?attribute={name}" for name in names.split(",")]
        else:
            words += [value if flag.startswith("--") and equals else word]
    return words


def split_command(command: str) -> list[str]:
    """Splits a command line into words, also where a quote is left open."""
    try:
        return shlex.split(command)
    except ValueError:  # a quote that nothing closes
        return command.split()


def _learn_request(words: PrivateWords, text: str) -> None:
    """Learn the path and the columns that a spec, an option or a command word names."""
    place, _, options = text.partition("?")
    path = _FUNCTION.sub(r"\1", _SCHEME.sub("", place))
    if _looks_like_a_path(path):
        words.learn_path(path)
    for pair in options.split("&"):
        key, _, value = pair.partition("=")
        if key in _NAMING and not place.startswith("zoo:"):
            words.learn("attribute" if key == "attribute" else "column", value)
        elif key == "root" or _looks_like_a_path(value):
            words.learn_path(value)


def _looks_like_a_path(text: str) -> bool:
    return "\n" not in text and len(text) < 4096 and ("/" in text or bool(_FILE.match(text)))


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
