"""The report: its measurements, what they were taken of, and how.

It imports no format: what shows it is registered from above (``presentation``).

One tidy document, published as a JSON Schema (``gradaudit schema``); NaN and infinity cannot be
written (infinity is ``value=None`` with ``details["infinite"] = True``).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from gradaudit.core.files import once, read_input
from gradaudit.core.text import printable, variant_text
from gradaudit.errors import UsageError
from gradaudit.measurement import (
    APART_BY,
    CLOSED_FORM,
    LEARNERS,
    LINEAR,
    RISKIEST_BY,
    Document,
    Key,
    Measurement,
    Status,
    Variant,
    dict_of,
    estimate,
    key_of,
    marked,
)
from gradaudit.presentation import presentation

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "APART_BY",
    "CLOSED_FORM",
    "LEARNERS",
    "LINEAR",
    "RISKIEST_BY",
    "CheckpointRecord",
    "Finding",
    "Key",
    "LayerRecord",
    "Measurement",
    "Outcome",
    "Report",
    "Says",
    "Status",
    "TargetRecord",
    "Unclear",
    "Variant",
    "estimate",
    "marked",
    "utc_now",
]

SCHEMA_VERSION: Literal[1] = 1
MAX_BYTES = 64 << 20
MAX_COMMAS = 2_000_000
"""Most commas in a report that is read: about 100,000 rows, some 200 MiB in memory."""
MAX_TEXT = 1 << 20
"""Most characters of a single text in a report that is read."""

Outcome = Literal["failed", "unclear", "unmeasured", "passed", "not-applicable", "ignored", "known"]
Says = Outcome | Literal["error", "warning"]
Unclear = Literal["pass", "warn", "fail"]
"""Effect of an unclear row, which is neither beyond its limit nor within it, at the gate."""
MOST_INDENTED = 2_000
"""Rows up to which JSON is indented for people; without, a report of 1,000 layers is a quarter
smaller (2.2 MB)."""
_UNCLEAR_OR_NOT: dict[str, JsonValue] = {
    "if": {"properties": {"outcome": {"const": "unclear"}}},
    "then": {"properties": {"unclear": {"type": "string"}}},
    "else": {"properties": {"unclear": {"type": "null"}, "times": {"type": "null"}}},
}
"""JSON Schema of the checks that ``Finding`` makes of its outcome."""


class LayerRecord(Document):
    """A layer of the target as the report describes it."""

    name: str
    kind: str
    parameters: int
    position: int


class CheckpointRecord(Document):
    """A checkpoint file by name and content hash, with what was done to make it fit the model.

    ``random`` are the model's tensors that a partial one has no weights for.
    """

    file: str
    sha256: str
    notes: list[str] = Field(default_factory=list)
    random: list[str] = Field(default_factory=list)


class TargetRecord(Document):
    """The audited model."""

    model: str
    checkpoints: list[CheckpointRecord] = Field(default_factory=list)
    parameters: int
    layers: list[LayerRecord]
    loss: str
    mode: Literal["eval", "train"]


class Finding(Document):
    """A rule's finding about one row, or about rows that it found missing.

    ``rule`` counts from 1; 0 is the demand that a report holds anything to judge. An outcome is
    ``failed`` (shown: the whole interval is beyond the limit), ``passed`` (all of it is within),
    ``unclear`` (neither: the limit lies inside, or a linear adversary shows no value within it),
    ``unmeasured`` (no such row, or a row that failed), ``not-applicable`` (a skipped row),
    ``ignored`` (beyond the limit, and the policy accepts it) or ``known`` (beyond the limit, but
    no worse than in the baseline).

    Attributes:
        unclear: what the policy makes of an unclear outcome; None for every other.
        ends: of the interval that was judged, where a correction moved them.
        times: about how many times as many records or trials would settle an unclear outcome;
            None where no number of them would.
    """

    model_config = ConfigDict(json_schema_extra=_UNCLEAR_OR_NOT)

    rule: int
    metric: str
    layer: str | None = None
    variant: Variant = Field(default_factory=dict)
    level: Literal["error", "warning"]
    max: float | None = None
    min: float | None = None
    outcome: Outcome
    unclear: Unclear | None = None
    ends: tuple[float, float] | None = None
    times: float | None = None
    message: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rule and (self.max is None) == (self.min is None):
            raise ValueError("a rule's finding must have either max or min")
        if not self.rule and self.outcome != "unmeasured":
            raise ValueError("a finding of rule 0 must be unmeasured")
        if (self.outcome == "unclear") != (self.unclear is not None):
            raise ValueError("only an unclear finding must name its effect in the policy")
        return self

    @property
    def key(self) -> Key:
        """Key of the row that the finding is about."""
        return key_of(self.metric, self.layer, self.variant)

    @property
    def limit(self) -> float | None:
        """The limit, whether upper or lower; None of the demand that a report holds anything."""
        return self.min if self.max is None else self.max

    @property
    def about_missing_rows(self) -> bool:
        """Whether the finding is about rows that the report lacks, not about one that it has."""
        return self.outcome == "unmeasured" and self.layer is None

    @property
    def says(self) -> Says:
        """Level of the finding at the gate: an error fails it, a warning does not.

        What failed, could not be measured, or is unclear where the policy lets that fail, is of
        the rule's level; else the outcome speaks for itself.
        """
        if self.outcome in ("failed", "unmeasured") or self.unclear == "fail":
            return self.level
        return self.outcome

    def __str__(self) -> str:
        """Formats the finding: ``error conv1 leak.bits 3 exceeds the max of 2``."""
        if not self.rule:
            return printable(f"{self.says} {self.message}", limit=None)
        variant = f"({variant_text(self.variant)})" if self.variant else ""
        words = (self.says, self.layer, self.metric, variant, self.message)
        return printable(" ".join(filter(None, words)), limit=None)


class Report(Document):
    """A whole report, as written to and read from JSON.

    ``rows`` are the measurements.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    tool: dict[str, JsonValue]
    target: TargetRecord
    data: dict[str, JsonValue]
    provenance: dict[str, JsonValue]
    measurements: list[Measurement]
    findings: list[Finding] = Field(default_factory=list)

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Self:
        seen: set[Key] = set()
        for row in self.measurements:
            if row.key in seen:
                raise ValueError(f"two measurements share the key {row.key}")
            seen.add(row.key)
        return self

    @property
    def rows(self) -> list[Measurement]:
        """Every row."""
        return self.measurements

    @cached_property
    def rows_by_place(self) -> Mapping[str, Mapping[str | None, Sequence[Measurement]]]:
        """Rows of all variants, by ``AUDIT.METRIC`` and layer."""
        places: dict[str, dict[str | None, list[Measurement]]] = {}
        for row in self.rows:
            places.setdefault(row.id, {}).setdefault(row.layer, []).append(row)
        return places

    @cached_property
    def _by_key(self) -> Mapping[Key, Measurement]:
        return {row.key: row for row in self.rows}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy with other fields, whose look-ups are computed anew."""
        copied = super().model_copy(update=update, deep=deep)
        if update and "measurements" in update:
            for made in ("rows_by_place", "_by_key"):
                vars(copied).pop(made, None)
        return copied

    @property
    def interrupted(self) -> bool:
        """Whether the command that wrote the report was interrupted."""
        return dict_of(self.provenance.get("plan")).get("interrupted") is True

    @property
    def options(self) -> dict[str, dict[str, JsonValue]]:
        """The options of each audit that was run, by its name."""
        audits = dict_of(self.provenance.get("audits"))
        return {name: given for name, given in audits.items() if isinstance(given, dict)}

    def by_key(self) -> Mapping[Key, Measurement]:
        """Every row by its key."""
        return self._by_key

    def select(
        self, metric: str, layer: str | None = None, variant: Variant | None = None
    ) -> list[Measurement]:
        """Returns the rows of ``AUDIT.METRIC``, optionally of one layer and one variant."""
        return [
            row
            for row in self.rows
            if row.id == metric
            and (layer is None or row.layer == layer)
            and (variant is None or row.variant == variant)
        ]

    def to_json(self) -> str:
        """Returns the report as JSON with a final newline, indented where it has few rows."""
        few = len(self.measurements) <= MOST_INDENTED
        return self.model_dump_json(indent=1 if few else None) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the report to a file, whole or not at all, in the format of the file's suffix.

        Raises:
            UsageError: no format has this suffix, or the file cannot be written.
        """
        presentation().save(self, Path(path))

    def to_frame(self) -> "DataFrame":
        """Returns the rows as a pandas table, the one that ``-o FILE.csv`` writes."""
        return presentation().dataframe(self)

    def __repr__(self) -> str:
        """Summarises what was audited and the riskiest layers in at most ten lines."""
        return presentation().glance(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Returns the summary for a notebook, with every layer."""
        return presentation().notebook(self)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads and validates a report, from standard input for a dash.

        Raises:
            UsageError: the file is missing, too large, is not JSON or is not a gradaudit report.
        """
        try:
            text = read_input(path, MAX_BYTES).decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not a gradaudit report: not UTF-8 text") from error
        if text.count(",") > MAX_COMMAS:
            raise UsageError(f"{path}: has over {MAX_COMMAS:,} commas; is it the right file?")
        try:
            report = cls.model_validate_json(text, strict=True)
            json.loads(text, object_pairs_hook=_expect_bounded)
        except ValueError as error:
            if not isinstance(error, ValidationError):
                raise UsageError(
                    f"{path}: not a gradaudit report: {error}; write it anew"
                ) from error
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            raise UsageError(
                f"{path}: not a gradaudit report: {where}: {first['msg']} "
                "(write one with `gradaudit scan -o report.json`)"
            ) from error
        return report


def _expect_bounded(pairs: Sequence[tuple[str, Any]]) -> None:
    """Refuse a JSON object with a key twice or an overlong text, with a ValueError."""
    waiting: list[tuple[str, Any]] = list(once(pairs).items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(key, item) for item in value]
        elif len(key) > MAX_TEXT or (isinstance(value, str) and len(value) > MAX_TEXT):
            raise ValueError(
                f"key {printable(key, 60)!r} has a text of over {MAX_TEXT:,} characters"
            )


def utc_now() -> str:
    """Returns the current time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
