"""What an adapter did to the data before the model got it: scaling, encoding, imputation, gaps."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from gradaudit.report import Report
from gradaudit.view.wording import abridged

_MOST_NAMES = 4

_WORDS: Mapping[str, str] = {
    "imputed_by_median": "missing numbers filled with the median of their column",
    "one_hot": "categories as one-hot groups",
    "codes": "categories as codes",
    "missing_as_category": "a missing text is a category of its own",
    "dates_as_categories": "dates taken as categories",
    "halved_at_median": "private quantities split at their median",
    "constant": "the same in every record",
    "count_the_records": "a number that counts the records",
    "dropped": "left out on request",
    "left": "not used",
    "resized": "pictures resized to",
    "normalized": "pictures normalised by",
    "transform": "pictures prepared by",
    "tokenizer": "tokens of",
    "pairs": "pairs of the texts of",
    "length": "tokens a record",
    "inputs": "inputs by name",
    "targets": "targets by name",
    "labels": "labels",
}
"""What a note of an adapter says; of one that is not here its key is shown."""
_SCALES = {
    "none": "columns as the file has them",
    "standard": "number columns standardised over these records (mean 0, deviation 1)",
}
_UNSAID = {"numeric", "vocabulary"}
"""Notes that change no number."""


def preparation(report: Report) -> str:
    """How the data was prepared, each note of its adapter as a clause; empty where none noted."""
    notes = report.data.get("notes")
    return "; ".join(_clauses(notes)) if isinstance(notes, dict) else ""


def _clauses(notes: Mapping[str, JsonValue]) -> Iterator[str]:
    scale = notes.get("scale")
    if isinstance(scale, str) and notes.get("numeric") != 0:
        yield _SCALES.get(scale, f"scale {scale}")
    for key in (*_WORDS, *(key for key in notes if key not in _WORDS)):
        if key in notes and key != "scale" and key not in _UNSAID:
            yield f"{_WORDS.get(key, key.replace('_', ' '))}: {_named(notes[key])}"


def _named(note: JsonValue) -> str:
    """``age (3), job (1)`` of names with numbers, ``32×32`` of a size, else the names."""
    if isinstance(note, dict):
        return abridged([f"{name} ({_size(value)})" for name, value in note.items()], _MOST_NAMES)
    if isinstance(note, list):
        whole = all(isinstance(part, int) for part in note)
        return _size(note) if whole else abridged(list(map(str, note)), _MOST_NAMES)
    return _size(note)


def _size(value: JsonValue) -> str:
    if isinstance(value, list):
        return "×".join(map(str, value)) or "one number"
    return f"{value:,}" if isinstance(value, int) else str(value)
