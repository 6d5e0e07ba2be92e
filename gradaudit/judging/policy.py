"""A policy: limits for metrics of layers, and what is accepted for now."""

from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Unclear, Variant
from gradaudit.yaml_file import read_yaml


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _listed(value: object) -> object:
    """A glob alone stands for a list of one; a layer ``0`` of a sequence needs no quotes."""
    globs = value if isinstance(value, list | tuple) else [value]
    return [str(glob) if type(glob) is int else glob for glob in globs]


_GLOB_SCHEMA = {"type": ["string", "integer"]}

MetricGlob = Annotated[
    str,
    StringConstraints(pattern=r"^[^\s.]+\.\S+$"),
    Field(description="AUDIT.METRIC; * and ? match, as in sensitivity.*."),
]
LayerGlobs = Annotated[
    tuple[str, ...],
    BeforeValidator(_listed),
    WithJsonSchema(
        {
            "anyOf": [_GLOB_SCHEMA, {"type": "array", "items": _GLOB_SCHEMA, "minItems": 1}],
            "description": "A glob of layer names or a list; '' is the row of the whole model.",
        }
    ),
    Field(min_length=1),
]
Limit = Annotated[float, Field(strict=True)]


class Rule(_Entry):
    """A limit for one metric (or several, by glob) of some layers.

    ``layers`` are matched as in ``named_modules``, where the whole model is called ``""``: ``*``
    takes in the model's own rows, ``?*`` only layers. A row is judged where every key of
    ``variant`` has the given value (a text may be a glob); without ``variant``, only headline
    rows are.
    """

    metric: MetricGlob
    layers: LayerGlobs = ("*",)
    variant: Variant = Field(default_factory=dict)
    max: Limit | None = None
    min: Limit | None = None
    level: Literal["error", "warning"] = "error"
    unclear: Unclear | None = None

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["max"]}, {"required": ["min"]}]}
    )

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.max is None) == (self.min is None):
            raise ValueError("a rule needs either max or min")
        return self

    @property
    def limit(self) -> float:
        """The limit, upper or lower."""
        return cast("float", self.min if self.max is None else self.max)

    @property
    def sign(self) -> int:
        """1 for an upper limit; −1 turns a lower one, and what it judges, into an upper one."""
        return -1 if self.max is None else 1

    def judges(self, row: Measurement) -> bool:
        """Whether this rule is about that row, layers aside."""
        if not fnmatchcase(row.id, self.metric):
            return False
        if not self.variant:
            return not row.variant
        return all(
            key in row.variant and _is(row.variant[key], wanted)
            for key, wanted in self.variant.items()
        )


class Ignore(_Entry):
    """Rows that may be beyond their limit, why, and through which day (UTC)."""

    metric: MetricGlob
    layers: LayerGlobs = ("*",)
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    until: date | None = None

    def covers(self, metric: str, layer: str | None) -> bool:
        """Whether it is about that row, whatever the day."""
        return fnmatchcase(metric, self.metric) and any(
            layer_matches(layer, glob) for glob in self.layers
        )


class Policy(_Entry):
    """Rules, exceptions, and whether intervals are corrected for the number of claims.

    ``unclear`` is what becomes of a row whose interval holds the limit, where a rule does not say
    otherwise: it passes, is warned of, or fails as what is shown does.
    """

    rules: tuple[Rule, ...] = Field(json_schema_extra={"minItems": 1})
    ignore: tuple[Ignore, ...] = ()
    family: Literal["none", "holm"] = "none"
    unclear: Unclear = "warn"

    def strict(self) -> Self:
        """The same policy, where what is unclear fails."""
        rules = tuple(rule.model_copy(update={"unclear": None}) for rule in self.rules)
        return self.model_copy(update={"rules": rules, "unclear": "fail"})


def read_policy(path: Path) -> Policy:
    """Read a policy file.

    Raises:
        UsageError: the file cannot be read, is not a policy, or has no rule.
    """
    policy = read_yaml(path, Policy, schema="gradaudit schema policy")
    if not policy.rules:
        raise UsageError(f"{path}: rules: a policy without a rule passes nothing; add one")
    return policy


def layer_matches(layer: str | None, glob: str) -> bool:
    """Whether a layer's name, or the whole model (None), matches."""
    return fnmatchcase(layer or "", glob)


def _is(actual: str | int | float | bool, wanted: str | int | float | bool) -> bool:
    if isinstance(wanted, str):
        return fnmatchcase(str(actual), wanted)
    return isinstance(actual, bool) == isinstance(wanted, bool) and actual == wanted
