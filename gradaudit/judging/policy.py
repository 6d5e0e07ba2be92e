"""A policy: limits for metrics of layers, and values that are accepted for now.

The default one holds the limits that the audits' metrics declare.
"""

import hashlib
import re
import textwrap
from collections.abc import Mapping, Set
from datetime import date, timedelta
from fnmatch import translate
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from gradaudit.audits import Audit, Metric, audits
from gradaudit.core.yaml_file import read_yaml
from gradaudit.deployment import Setting
from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Report, Unclear, Variant

DEFAULT = "the default policy"
_HEADER = """\
# gradaudit's default policy: what each audit declares about its metrics. An interval that lies
# beyond the limit of an error rule shows a high risk, beyond that of a warning rule a medium one;
# an interval that holds the limit shows neither and excludes neither.
"""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def _listed(value: object) -> object:
    """Turns a single glob into a list; a layer ``0`` of a sequence needs no quotes."""
    globs = value if isinstance(value, list | tuple) else [value]
    return [str(glob) if type(glob) is int else glob for glob in globs]


MAX_ENTRIES, MAX_LENGTH = 2000, 500
"""Largest numbers of a policy's globs of layers, of which each entry has one, and of characters."""
_GLOB_SCHEMA = {"type": ["string", "integer"], "maxLength": MAX_LENGTH}

MetricGlob = Annotated[
    str,
    StringConstraints(pattern=r"^[^\s.]+\.\S+$", max_length=MAX_LENGTH),
    Field(
        description="Metric that the rule judges, AUDIT.METRIC; * and ? match, as in sensitivity.*."
    ),
]
LayerGlobs = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=MAX_LENGTH)], ...],
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
    rows are. With ``setting`` only rows measured in it are judged: as the federation of
    ``--deployment`` shares (deployed), or in the attacker's best case (diagnostic).
    """

    metric: MetricGlob
    layers: LayerGlobs = ("*",)
    variant: Variant = Field(default_factory=dict)
    setting: Setting | None = None
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
        if any(isinstance(v, str) and len(v) > MAX_LENGTH for v in self.variant.values()):
            raise ValueError(f"a text of variant has more than {MAX_LENGTH} characters")
        return self

    def heeds(self, row: Measurement) -> bool:
        """Whether a row was measured in the setting that this rule asks for."""
        return self.setting in (None, row.details.get("setting"))

    @property
    def everywhere(self) -> bool:
        """Whether it judges the headlines of all layers, in every setting."""
        return "*" in self.layers and not self.variant and self.setting is None

    @property
    def limit(self) -> float:
        """The limit, whether upper or lower."""
        return cast("float", self.min if self.max is None else self.max)

    @property
    def sign(self) -> int:
        """Factor that makes the limit an upper one: 1 for an upper limit, −1 for a lower one."""
        return -1 if self.max is None else 1

    def judges(self, row: Measurement) -> bool:
        """Whether this rule judges the row's metric and variant, whatever its layer and setting."""
        if not matches(row.id, self.metric):
            return False
        if not self.variant:
            return not row.variant
        for key, wanted in self.variant.items():
            actual = row.variant.get(key)
            if isinstance(wanted, str):
                fits = actual is not None and matches(str(actual), wanted)
            else:
                fits = isinstance(actual, bool) == isinstance(wanted, bool) and actual == wanted
            if not fits:
                return False
        return True


class Ignore(_Entry):
    """An exception: rows that may be beyond their limit, why, and through which day (UTC)."""

    metric: MetricGlob
    layers: LayerGlobs = ("*",)
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    until: date | None = None

    @property
    def lapses(self) -> date | None:
        """First day on which it is no longer in force."""
        return None if self.until is None else self.until + timedelta(days=1)

    def covers(self, metric: str, layer: str | None) -> bool:
        """Whether the exception is about that row, whatever the day."""
        return matches(metric, self.metric) and any(
            layer_matches(layer, glob) for glob in self.layers
        )


class Policy(_Entry):
    """Rules, exceptions, and whether intervals are corrected for the number of claims.

    ``unclear`` is what becomes of a row that is neither beyond its limit nor within it, where a
    rule does not say otherwise: it passes, leaves the verdict undecided, or fails the gate too;
    where neither says, a row of a metric that is a guarantee fails. ``name`` is what a verdict
    calls it; a file's is its name, unless it says another. With ``extends: default``, which a file
    without rules says by that, the default policy's rules hold too, but those whose metric and
    level a rule for all layers has.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [x]} for x in ("rules", "ignore", "extends")]}
    )

    name: str = ""
    extends: Literal["default"] | None = None
    rules: tuple[Rule, ...] = Field((), json_schema_extra={"minItems": 1})
    ignore: tuple[Ignore, ...] = ()
    family: Literal["none", "holm"] = "none"
    unclear: Unclear = "warn"

    @property
    def sha256(self) -> str:
        """SHA-256 of everything in the policy except its name, in hexadecimal digits."""
        return hashlib.sha256(self.model_dump_json(exclude={"name"}).encode()).hexdigest()

    @model_validator(mode="after")
    def _is_of_a_size(self) -> Self:
        globs = [*(rule.layers for rule in self.rules), *(each.layers for each in self.ignore)]
        if (count := sum(map(len, globs))) > MAX_ENTRIES:
            raise ValueError(
                f"{count:,} globs of layers in rules and exceptions are more than {MAX_ENTRIES:,}; "
                "say several by one glob"
            )
        return self

    def in_force(self, report: Report, *, every: bool = False) -> Self:
        """Return the policy with all rules that a report is judged by: its own ones first.

        Args:
            report: adds its claims, in place of default limits; leaves out default rules on
                metrics of which it has no headline row.
            every: keep these, so that the policy is the same for every report.
        """
        stated = claims(report)
        base = self.written_out(None if every else report, {rule.metric for rule in stated})
        return base.model_copy(update={"rules": (*base.rules, *stated)})

    def written_out(self, report: Report | None = None, without: Set[str] = frozenset()) -> Self:
        """Return the policy with the rules of the default one that it extends, but some metrics'.

        Args:
            report: leaves out default rules on metrics of which it has no headline row.
            without: metrics whose default rules are left out.
        """
        if self.extends is None:
            return self
        replaced = {(own.metric, own.level) for own in self.rules if own.everywhere}
        added = [
            rule
            for rule in default_policy(report).rules
            if (rule.metric, rule.level) not in replaced and rule.metric not in without
        ]
        return self.model_copy(update={"rules": (*self.rules, *added), "extends": None})

    def strict(self) -> Self:
        """Returns the policy with every unclear row failing."""
        rules = tuple(rule.model_copy(update={"unclear": None}) for rule in self.rules)
        return self.model_copy(update={"rules": rules, "unclear": "fail"})


def read_policy(path: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        UsageError: the file cannot be read, is not a policy, or judges nothing.
    """
    path = Path(path)
    policy = read_yaml(path, Policy, schema="gradaudit schema policy")
    if not (policy.rules or policy.ignore or policy.extends):
        raise UsageError(
            f"{path}: rules: a policy without a rule judges nothing; add one, or extends: default"
        )
    named = policy if policy.name else policy.model_copy(update={"name": path.name})
    return named if policy.rules else named.model_copy(update={"extends": "default"})


def layer_matches(layer: str | None, glob: str) -> bool:
    """Whether a glob matches a layer's name; the whole model (None) has the empty name."""
    return matches(layer or "", glob)


def matches(text: str, glob: str) -> bool:
    """Whether a glob matches all of a text; upper and lower case differ."""
    return _expression(glob).match(text) is not None


@lru_cache(maxsize=4 * MAX_ENTRIES)
def _expression(glob: str) -> re.Pattern[str]:
    """Returns a glob as an expression; ``fnmatch`` itself keeps those of few globs."""
    return re.compile(translate(glob))


_CLAIMED = "dp-audit.epsilon_lower"
"""Metric whose headline states the claimed epsilon."""


def default_policy(report: Report | None = None) -> Policy:
    """Returns the limits that the installed audits declare for their metrics.

    Args:
        report: leaves out metrics of which this report has no headline row, so that a report of
            one audit is not failed for the others. An audit that was asked for and broke has
            rows that say so, and keeps its rules.
    """
    held = None if report is None else {row.id for row in report.rows if not row.variant}
    return Policy(
        name=DEFAULT,
        rules=tuple(
            rule
            for name, metric in known_metrics().items()
            if held is None or name in held
            for rule in _rules(name, metric)
        ),
    )


def claims(report: Report) -> tuple[Rule, ...]:
    """Return an error rule for each epsilon that a claim bounds: lower bound, pair and law."""
    stated = [row.details.get("claimed") for row in report.select(_CLAIMED, variant={})]
    limits = [float(limit) for limit in stated if isinstance(limit, int | float)]
    judged = {row.id for row in report.rows if row.status == "measured" and not row.variant}
    return tuple(
        Rule(metric=metric, max=limit)
        for limit in limits
        for metric in (_CLAIMED, "dp-audit.epsilon_pair", "dp-audit.epsilon_theory")
        if metric in judged
    )


def default_policy_yaml() -> str:
    """Returns the default policy as YAML, with the reason for each limit.

    A rule fails where a report has no row of it. Those about audits that open a model of their own
    are therefore comments: a scan has their rows only where it is asked for them.
    """
    apart = [f"{audit.reports_as()}.*" for audit in audits().values() if audit.brings_model]
    lines, commented = [_HEADER + "rules:\n"], ""
    for rule in default_policy().rules:
        held = not any(matches(rule.metric, each) for each in apart)
        lines += [_comment(rule.metric, held=held)] if rule.metric != commented else []
        commented = rule.metric
        values = rule.model_dump(include={"metric", "max", "min", "level"}, exclude_none=True)
        text = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000)
        lines.append(f"  {'' if held else '# '}- {text}")
    return "".join(lines)


def known_metrics() -> Mapping[str, Metric]:
    """Returns the metrics of the installed audits by ``audit.metric``."""
    return _metrics_of(tuple(audits().values()))


def proxies() -> Set[str]:
    """Returns the metrics of audits that attack nothing, by ``audit.metric``."""
    return _proxies_of(tuple(audits().values()))


@cache
def _proxies_of(known: tuple[type[Audit[Any]], ...]) -> Set[str]:
    return frozenset(
        f"{audit.reports_as()}.{metric.id}"
        for audit in known
        if audit.proxy
        for metric in audit.metrics
    )


@cache
def _metrics_of(known: tuple[type[Audit[Any]], ...]) -> Mapping[str, Metric]:
    return MappingProxyType(
        {f"{audit.reports_as()}.{metric.id}": metric for audit in known for metric in audit.metrics}
    )


def _rules(name: str, metric: Metric) -> list[Rule]:
    limits = {"error": metric.error, "warning": metric.warning}
    if metric.riskier == "higher":
        return [Rule(metric=name, max=x, level=lv) for lv, x in limits.items() if x is not None]
    if metric.riskier == "lower":
        return [Rule(metric=name, min=x, level=lv) for lv, x in limits.items() if x is not None]
    return []


def _comment(name: str, *, held: bool) -> str:
    metric = known_metrics()[name]
    why = f"{metric.title}: {metric.why}" if metric.why else metric.title
    text = why if held else f"{why}. Uncomment it for reports of `gradaudit job` or `scan --job`."
    return textwrap.fill(text, width=98, initial_indent="  # ", subsequent_indent="  # ") + "\n"
