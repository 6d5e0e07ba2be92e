"""Sentences about what was audited and how, and how an adapter prepared the data.

Those sections are open, so what is absent or of another type is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from pydantic import JsonValue

from gradaudit.core.text import listed, number
from gradaudit.judging.verdict import notes
from gradaudit.measurement import dict_of, number_of, text_of, texts_of
from gradaudit.report import Measurement, Report

WHOLE_UPDATE = "whole update"
EVERY_LAYER = "every layer"
MOST_NAMES = 3
MOST_PLACES = 8
WHAT_IS_PRIVATE = "private attribute"


class Place(NamedTuple):
    """The place of a finding: layers, every layer, or the update as a whole.

    Of more than ``MOST_PLACES`` layers it says how many.
    """

    layers: tuple[str, ...] = ()
    every: bool = False
    whole: bool = False

    @property
    def several(self) -> bool:
        """Whether there are several places, so that the worst of them must be named."""
        return len(self.layers) + self.whole > 1

    def __str__(self) -> str:
        """``conv1 and fc1``, ``layer 2``, ``every layer and the whole update``."""
        names = tuple(f"layer {name}" if name.isdecimal() else name for name in self.layers)
        if self.every or len(names) > MOST_PLACES:
            names = (EVERY_LAYER if self.every else f"{len(names):,} layers",)
        whole = () if names and not self.whole else (WHOLE_UPDATE,)
        return abridged((*names, *whole), MOST_NAMES + len(whole))


def filled_in(text: str, words: Mapping[str, str]) -> str:
    """Returns a text with the words in place of their placeholders, whatever braces they hold."""
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    return text


def secret_of(row: Measurement | None) -> str:
    """Returns the secret or attribute that a row names as attacked; empty where it names none."""
    details = row.details if row else {}
    return text_of(details.get("secret") or details.get("attribute"))


def batch_size(details: Mapping[str, JsonValue]) -> int | None:
    """Returns the number of records of an attacked update, where details have it."""
    size = details.get("batch_size", dict_of(details.get("knowledge")).get("batch_size"))
    return size if isinstance(size, int) else None


def abridged(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Lists names in a sentence, not all of very many."""
    shown, rest = list(names[:most]), len(names) - most
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


BETWEEN = ", "
_SHORTENED = {
    "smaller": "made at a smaller preset, as the work is too much",
    "cut_short": "cut short",
    "left_out": "left out",
}
"""Lists of audits in a scan's plan, with the words for what happened to them."""


def title(report: Report) -> str:
    """Formats model, checkpoints and size; files without their folders."""
    target = report.target
    files = [PurePath(checkpoint.file).name for checkpoint in target.checkpoints]
    # A factory's file is named without its folders, any other spec as it is.
    file, python, factory = target.model.rpartition(".py:")
    return joined(
        f"{PurePath(file).name}{python}{factory}" if python else target.model,
        files[0] if len(files) == 1 else f"{len(files)} checkpoints" if files else "",
        f"{target.parameters:,} parameters",
        "" if target.loss == "none" else target.loss,
        f"{target.mode} mode",
    )


def data_facts(report: Report) -> str:
    """Formats the data set, its size, and the model's accuracy on it."""
    records = report.data.get("records")
    return joined(
        text_of(report.data.get("adapter")),
        f"{records:,} records" if isinstance(records, int) else "",
        _moments(dict_of(report.data.get("inputs"))),
        _accuracy(dict_of(report.data.get("accuracy")), records),
    )


def _moments(inputs: Mapping[str, JsonValue]) -> str:
    """Formats range, mean and standard deviation of the inputs."""
    numbers = {name: f"{value:g}" for name, value in inputs.items() if isinstance(value, float)}
    ends = " from {low} to {high}" if "low" in numbers else ""
    return f"inputs{ends} with mean {{mean}} ± {{deviation}}".format(**numbers) if numbers else ""


def checkpoint_notes(report: Report) -> tuple[str, ...]:
    """Notes in a line each what was removed from the model and how checkpoints were made to fit.

    Files are named if there are several.
    """
    noted = [checkpoint for checkpoint in report.target.checkpoints if checkpoint.notes]
    named = len(report.target.checkpoints) > 1
    return (
        *texts_of(report.provenance.get("model_notes")),
        *(
            (f"{checkpoint.file}: " if named else "") + "; ".join(checkpoint.notes)
            for checkpoint in noted
        ),
    )


def warnings(report: Report) -> tuple[str, ...]:
    """Returns the warnings about the numbers."""
    of_accuracy = text_of(dict_of(report.data.get("accuracy")).get("warning"))
    of_plan = shortened(dict_of(report.provenance.get("plan")))
    noted = texts_of(report.provenance.get("warnings"))
    return tuple(filter(None, (of_accuracy, *noted, of_plan, *notes(report))))


def shortened(plan: Mapping[str, JsonValue]) -> str:
    """Says which audits were shortened or left out by the plan, a deadline or an interrupt."""
    cuts = [
        f"{listed(names)} {'was' if len(names) == 1 else 'were'} {how}"
        for key, how in _SHORTENED.items()
        if (names := texts_of(plan.get(key)))
    ]
    if plan.get("interrupted") is True:
        return "; ".join(["this report is incomplete: its command did not end", *cuts])
    return f"not all was run: {'; '.join(cuts)} (a longer --budget runs more)" if cuts else ""


def provenance_facts(report: Report) -> str:
    """Formats tool, confidence, samples, seed, device and time."""
    provenance = report.provenance
    tool = f"{report.tool.get('name', 'gradaudit')} {report.tool.get('version', '')}".strip()
    levels = {row.confidence for row in report.rows if row.interval and row.confidence}
    words = " and ".join(f"{100 * level:.4g} %" for level in sorted(levels))
    return joined(
        tool,
        f"{words} intervals" if levels else "",
        _named("samples", provenance),
        _named("seed", provenance),
        text_of(provenance.get("device")),
        text_of(provenance.get("finished"))[:16].replace("T", " "),
    )


def _named(key: str, values: Mapping[str, JsonValue]) -> str:
    value = values.get(key)
    return f"{key} {value}" if isinstance(value, int) else ""


def _accuracy(facts: Mapping[str, JsonValue], records: JsonValue) -> str:
    value, chance = number_of(facts.get("value")), number_of(facts.get("chance"))
    if value is None:
        return ""
    name = "R²" if facts.get("metric") == "r2" else "task accuracy"
    beside = [f"chance {number(chance)}"] if chance else []
    n = facts.get("n")
    beside += [f"on {n:,} of them"] if isinstance(n, int) and n != records else []
    return f"{name} {number(value)}" + (f" ({', '.join(beside)})" if beside else "")


def joined(*parts: str) -> str:
    """Joins the parts that are not empty, in a sentence."""
    return BETWEEN.join(part for part in parts if part)


_MOST_NAMES = 4

_WORDS: Mapping[str, str] = {
    "imputed_by_median": "missing numbers filled with the median of their column",
    "one_hot": "categories as one-hot groups",
    "codes": "categories as codes",
    "missing_as_category": "a missing text is a category of its own",
    "halved_at_median": "private quantities split at their median",
    "constant": "the same in every record",
    "separator": "cells separated by",
    "decimal": "decimals after",
    "encoding": "text read as",
    "dropped": "left out on request",
    "index": "left out, as it counts the records",
    "left": "not used",
    "resized": "pictures resized to",
    "first_records": "the first records of more",
    "unread": "files not read",
    "sampling_rate": "samples a second",
    "samples": "samples a record",
    "sounds_cut": "sounds cut to it",
    "sounds_filled_up": "sounds filled up to it with zeros",
    "sounds_mixed": "sounds of which the mean of the channels is taken",
    "split": "split",
    "splits_left": "splits not read",
    "transparent": "pictures whose transparency is left out",
    "several_frames": "pictures of which the first frame alone is read",
    "divided_by": "pictures divided by",
    "normalized": "pictures normalised by",
    "tokenizer": "tokens of",
    "length": "tokens a record",
    "inputs": "inputs by name",
    "labels": "labels",
}
"""Words for an adapter's notes; a note without words is shown by its key."""
_SCALES = {
    "none": "columns as the file has them",
    "standard": "number columns standardised over these records (mean 0, deviation 1)",
}
_UNSAID = {"labels_encoded", "numeric", "vocabulary"}
"""Notes that are not shown by their key."""


def preparation(report: Report) -> str:
    """Says how the data was prepared, a clause for each note of its adapter."""
    encoded = [f"{name} → {code}" for code, name in enumerate(dict_of(report.data.get("classes")))]
    return "; ".join(_clauses(dict_of(report.data.get("notes")), encoded))


def _clauses(notes: Mapping[str, JsonValue], encoded: Sequence[str]) -> Iterator[str]:
    if notes.get("labels_encoded"):
        yield f"labels encoded: {abridged(encoded, _MOST_NAMES)}"
    scale = notes.get("scale")
    if isinstance(scale, str) and notes.get("numeric") != 0:
        yield _SCALES.get(scale, f"scale {scale}")
    for key in (*_WORDS, *(key for key in notes if key not in _WORDS)):
        if key in notes and key != "scale" and key not in _UNSAID:
            yield f"{_WORDS.get(key, key.replace('_', ' '))}: {_step_named(notes[key])}"


def _step_named(note: JsonValue) -> str:
    """Formats ``age (3), job (1)`` for names with numbers, ``32×32`` for a size, else the names."""
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
