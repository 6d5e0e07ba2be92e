"""A row of a report: one number, or the reason why there is none."""

import json
import math
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from gradaudit.core.text import DOUBTED, UNBOUNDED, number

Status = Literal["measured", "skipped", "failed"]
NO_EVIDENCE = "no_evidence"
"""Detail of a row that no value could have shown to be beyond its limit; ``doubts`` say why."""
RISKIEST_BY = "riskiest_by"
"""Detail of a headline that copies the riskiest of several rows: those rows' variant keys."""
APART_BY = "apart_by"
"""Detail of a headline that copies the first of several games: those rows' variant keys."""
LEARNERS = "learners"
"""Detail that lists the predictive families of an adversary, each with its size."""
LINEAR = "linear"
"""Size that is written for a family whose members are linear functions of the gradient."""
EFFORT = "effort"
"""Detail of an attack's row: below, quick, default or thorough, by its options."""
CUT_DERIVATIVE = "cut_derivative"
"""Detail of an attack's row: why it cannot follow the model's derivative by the input."""
CLOSEST = "closest"
"""Detail that lists the relative error of the closest record of each attacked update."""
CHANCE = "closest_by_chance"
"""Detail that lists the same of another update's records."""
TOO_FEW = "too_few"
"""Detail of a skipped row: the records looked at do not suffice for an audit that applies."""
CLOSED_FORM = "closed_form"
"""Detail of a skipped row: no number is needed, as the gradient gives the layer's input exactly."""
Variant = dict[str, str | int | float | bool]
Key = tuple[str, str | None, str]
"""Key of a row: ``audit.metric``, layer, and the variant as JSON with sorted keys."""
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
"""JSON Schema of the checks that ``Measurement`` makes of a whole row."""


class Document(BaseModel):
    """Base of all parts of a report; they are frozen and take no unknown field."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


class Measurement(Document):
    """A row: one metric of one audit, for one layer or for the model (``layer=None``).

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
        """Returns the row with these details added."""
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
    def known_to(self) -> tuple[float, float] | None:
        """The interval, else the range that redraws of the value span; None without either."""
        given = self.details.get("known_to")
        ends = given if self.interval is None and isinstance(given, list) else []
        numbers = [float(end) for end in ends if isinstance(end, int | float)]
        return (numbers[0], numbers[1]) if len(numbers) == 2 else self.interval

    @property
    def imprecise(self) -> bool:
        """Whether the audit says that its interval cannot be trusted."""
        return self.details.get("imprecise") is True

    @property
    def linear(self) -> bool:
        """Whether the adversary's predictive families are all linear."""
        families = self.details.get(LEARNERS)
        return isinstance(families, dict) and bool(families) and {*families.values()} == {LINEAR}

    @property
    def unbounded(self) -> bool:
        """Whether the row's interval is open at an end."""
        return self.interval is not None and self.interval[1] >= UNBOUNDED

    @property
    def left_out(self) -> bool:
        """Whether the audit may apply but was left out for lack of time."""
        return self.details.get("left_out") is True

    @property
    def doubts(self) -> tuple[str, ...]:
        """Returns why the value is doubtful, a clause for each reason."""
        given = self.details.get("imprecise_because")
        because = given if isinstance(given, str) and given else "imprecise: no interval to trust"
        reasons = [because] if self.imprecise else []
        return tuple(x for x in (*reasons, self.details.get("warning")) if isinstance(x, str))

    @property
    def id(self) -> str:
        """``audit.metric``, as policies name it."""
        return f"{self.audit}.{self.metric}"

    @property
    def key(self) -> Key:
        """Returns the key of the row."""
        return key_of(self.id, self.layer, self.variant)


def estimate(row: Measurement) -> str:
    """Formats a measured value with its interval: ``0.120 [0.100, 0.140]``."""
    value = row.number
    if value is None:
        return "–"
    if row.interval is None:
        return number(value)
    low, high = row.interval
    return f"{number(value)} [{number(low)}, {number(high)}]"


def marked(row: Measurement) -> str:
    """Formats a measured value with its interval, and a mark where it is doubtful."""
    return estimate(row) + (f" {DOUBTED}" if row.doubts else "")


def key_of(metric: str, layer: str | None, variant: Variant) -> Key:
    """Returns the key of the row of ``AUDIT.METRIC`` with this layer and variant."""
    return metric, layer, json.dumps(variant, sort_keys=True)


def dict_of(value: JsonValue) -> dict[str, JsonValue]:
    """Returns a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: JsonValue) -> list[JsonValue]:
    """Returns a JSON array; an empty one for anything else."""
    return value if isinstance(value, list) else []


def texts_of(value: JsonValue) -> list[str]:
    """Returns the texts of a JSON array; none for anything else."""
    return [each for each in list_of(value) if isinstance(each, str)]


def numbers_of(value: JsonValue) -> list[float]:
    """Returns the numbers of a JSON array; none for anything else."""
    return [float(each) for each in list_of(value) if isinstance(each, int | float)]


def text_of(value: JsonValue) -> str:
    """Returns a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def number_of(value: JsonValue) -> float | None:
    """Returns a number; None for anything else."""
    return float(value) if isinstance(value, int | float) else None
