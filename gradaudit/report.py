"""The report: measurements, what they were taken of, and how.

It imports no format: what shows it is registered from above (``presentation``).

One tidy document, published as a JSON Schema (``cli.listing``); NaN and infinity cannot be written
(infinity is ``value=None`` with ``details["infinite"] = True``).
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from gradaudit.errors import UsageError
from gradaudit.files import read_input
from gradaudit.presentation import presentation
from gradaudit.text import DOUBTED, UNBOUNDED, number, printable, variant_text

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION: Literal[1] = 1
MAX_BYTES = 64 << 20
MAX_COMMAS = 2_000_000
"""Of a report that is read: about 100,000 rows, which take some 200 MiB in memory."""

Status = Literal["measured", "skipped", "failed"]
Outcome = Literal["failed", "unclear", "unmeasured", "passed", "not-applicable", "ignored", "known"]
Says = Outcome | Literal["error", "warning"]
Unclear = Literal["pass", "warn", "fail"]
"""What the gate makes of a row that is neither beyond its limit nor within it."""
RISKIEST_BY = "riskiest_by"
"""Detail of a headline that is a copy of the riskiest of several rows: their variants' keys."""
LEARNERS = "learners"
"""Detail of what an adversary got that learns: its predictive families, each with its size."""
LINEAR = "linear"
"""The size of a family whose members are linear functions of the gradient."""
Variant = dict[str, str | int | float | bool]
Key = tuple[str, str | None, str]
"""``audit.metric``, layer, and the variant as JSON with sorted keys."""


class _Document(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


_VALUE_OR_REASON: dict[str, JsonValue] = {
    "if": {"properties": {"status": {"const": "measured"}}},
    "then": {
        "anyOf": [
            {"properties": {"value": {"type": "number"}}},
            {
                "properties": {
                    "details": {
                        "properties": {"infinite": {"const": True}},
                        "required": ["infinite"],
                    }
                }
            },
        ]
    },
    "else": {
        "properties": {
            "value": {"type": "null"},
            "interval": {"type": "null"},
            "reason": {"type": "string", "minLength": 1},
        }
    },
}
"""What ``Measurement`` checks of a row as a whole, for its JSON Schema."""


class Measurement(_Document):
    """One row: a metric of one audit, for one layer (or the model, ``layer=None``).

    The key of a row is (audit, metric, layer, variant); the row with the empty variant is the
    headline. A row that is not measured says why in ``reason`` and holds no value.
    """

    model_config = ConfigDict(json_schema_extra=_VALUE_OR_REASON)

    audit: str
    metric: str
    layer: str | None = None
    variant: Variant = Field(default_factory=dict)
    value: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = Field(None, gt=0, lt=1)
    unit: str = ""
    n: int | None = None
    status: Status = "measured"
    reason: str | None = None
    details: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.status == "measured" and self.value is None and not self.infinite:
            raise ValueError("a measured row needs a value, or details.infinite")
        if self.status != "measured" and not self.reason:
            raise ValueError(f"a {self.status} row needs a reason")
        if self.status != "measured" and (self.value is not None or self.interval is not None):
            raise ValueError(f"a {self.status} row holds no value and no interval")
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise ValueError("an interval is [low, high]")
        return self

    def with_details(self, more: Mapping[str, JsonValue]) -> Self:
        """The same row with more in its details."""
        return self.model_copy(update={"details": {**self.details, **more}})

    @property
    def infinite(self) -> bool:
        """Whether the measured value is positive infinity."""
        return self.details.get("infinite") is True

    @property
    def number(self) -> float | None:
        """The value with infinity restored; None where nothing was measured."""
        return math.inf if self.infinite else self.value

    @property
    def imprecise(self) -> bool:
        """Whether the audit says that its interval cannot be trusted."""
        return self.details.get("imprecise") is True

    @property
    def linear(self) -> bool:
        """Whether its adversary learned by predictive families that are all linear."""
        families = self.details.get(LEARNERS)
        return isinstance(families, dict) and bool(families) and {*families.values()} == {LINEAR}

    @property
    def unbounded(self) -> bool:
        """Whether its interval has an end that nothing bounds."""
        return self.interval is not None and self.interval[1] >= UNBOUNDED

    @property
    def left_out(self) -> bool:
        """Whether it may apply, but nobody tried: there was no time for it."""
        return self.details.get("left_out") is True

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the value should not be taken as it stands, a clause each."""
        given = self.details.get("imprecise_because")
        because = given if isinstance(given, str) and given else "imprecise: no interval to trust"
        said = [because] if self.imprecise else []
        return tuple(x for x in (*said, self.details.get("warning")) if isinstance(x, str))

    @property
    def id(self) -> str:
        """``audit.metric``, as policies name it."""
        return f"{self.audit}.{self.metric}"

    @property
    def key(self) -> Key:
        """Key that identifies the row."""
        return _key(self.id, self.layer, self.variant)


def estimate(row: Measurement) -> str:
    """A measured value with its interval: ``0.120 [0.100, 0.140]``."""
    value = row.number
    if value is None:
        return "–"
    if row.interval is None:
        return number(value)
    low, high = row.interval
    return f"{number(value)} [{number(low)}, {number(high)}]"


def marked(row: Measurement) -> str:
    """A measured value with its interval, and a mark where there is a doubt about it."""
    return estimate(row) + (f" {DOUBTED}" if row.doubts else "")


class LayerRecord(_Document):
    """A layer of the target as the report describes it."""

    name: str
    kind: str
    parameters: int
    position: int


class CheckpointRecord(_Document):
    """A checkpoint file by name and content hash, with what was done to make it fit the model.

    ``random`` are the model's tensors that a partial one has no weights for.
    """

    file: str
    sha256: str
    notes: list[str] = Field(default_factory=list)
    random: list[str] = Field(default_factory=list)


class TargetRecord(_Document):
    """The audited model."""

    model: str
    checkpoints: list[CheckpointRecord] = Field(default_factory=list)
    parameters: int
    layers: list[LayerRecord]
    loss: str
    mode: Literal["eval", "train"]


_UNCLEAR_OR_NOT: dict[str, JsonValue] = {
    "if": {"properties": {"outcome": {"const": "unclear"}}},
    "then": {"properties": {"unclear": {"type": "string"}}},
    "else": {"properties": {"unclear": {"type": "null"}, "times": {"type": "null"}}},
}
"""What ``Finding`` checks of its outcome, for its JSON Schema."""


class Finding(_Document):
    """A rule's finding on one row, or on rows that it found missing.

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
            raise ValueError("a rule's finding has either max or min")
        if not self.rule and self.outcome != "unmeasured":
            raise ValueError("rule 0 is only ever unmeasured")
        if (self.outcome == "unclear") != (self.unclear is not None):
            raise ValueError("an unclear finding, and no other, says what the policy makes of it")
        return self

    @property
    def key(self) -> Key:
        """The key of the row it speaks of."""
        return _key(self.metric, self.layer, self.variant)

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
        """As the gate says it: ``error conv1 leak.bits 3 exceeds the max of 2 (rule 1)``."""
        if not self.rule:
            return printable(f"{self.says} {self.message}", limit=None)
        variant = f"({variant_text(self.variant)})" if self.variant else ""
        rule = f"(rule {self.rule})"
        words = (self.says, self.layer, self.metric, variant, self.message, rule)
        return printable(" ".join(filter(None, words)), limit=None)


class Report(_Document):
    """A whole report, as written to and read from JSON."""

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
    def interrupted(self) -> bool:
        """Whether the command that made it was interrupted."""
        plan = self.provenance.get("plan")
        return isinstance(plan, dict) and plan.get("interrupted") is True

    def by_key(self) -> dict[Key, Measurement]:
        """Every row by its key."""
        return {row.key: row for row in self.measurements}

    def select(
        self, metric: str, layer: str | None = None, variant: Variant | None = None
    ) -> list[Measurement]:
        """Rows of ``AUDIT.METRIC``, optionally of one layer and one variant."""
        return [
            row
            for row in self.measurements
            if row.id == metric
            and (layer is None or row.layer == layer)
            and (variant is None or row.variant == variant)
        ]

    def to_json(self) -> str:
        """The report as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the report to a file, whole or not at all, in the format of the file's suffix.

        Raises:
            UsageError: no format has this suffix, or the file cannot be written.
        """
        presentation().save(self, Path(path))

    def to_dataframe(self) -> "DataFrame":
        """The rows as a table of pandas; ``variant`` is in words and empty for headlines.

        Raises:
            UsageError: pandas is not installed.
        """
        return presentation().dataframe(self)

    def __repr__(self) -> str:
        """What was audited and the riskiest layers, in at most ten lines."""
        return presentation().glance(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """The same for a notebook, with every layer."""
        return presentation().notebook(self)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read and validate a report, from standard input where the path is a dash.

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
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            raise UsageError(
                f"{path}: not a gradaudit report: {where}: {first['msg']} "
                "(write one with `gradaudit scan -o report.json`)"
            ) from error


def _key(metric: str, layer: str | None, variant: Variant) -> Key:
    return metric, layer, json.dumps(variant, sort_keys=True)


def utc_now() -> str:
    """The current time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
