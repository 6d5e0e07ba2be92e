"""How hard an adversary was tried, from its audit's options beside those of the presets."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from gradaudit.audits.base import Audit, AuditOptions
from gradaudit.core.parts import offered
from gradaudit.measurement import CUT_DERIVATIVE, EFFORT
from gradaudit.report import Measurement

_RECONSTRUCTIONS = "gradaudit.attacks.reconstruction"
_WHOLE = 10_000
"""Elements from which on a gradient is reduced without being asked."""


def with_effort(rows: Sequence[Measurement], audit: Audit[Any]) -> Sequence[Measurement]:
    """Return the rows with ``details.effort``: those of attacks, and of other lower bounds."""
    attack = audit.reports_as() == "attack"
    bounds = {metric.id for metric in audit.metrics if metric.stronger or metric.proven}
    if not (attack or bounds):
        return rows
    presets = {"quick": audit.quick, "plain": audit.plain, "thorough": audit.thorough}
    effort = effort_of(audit.options, presets)
    return [
        row.with_details({EFFORT: "below" if CUT_DERIVATIVE in row.details else effort})
        if attack or row.metric in bounds
        else row
        for row in rows
    ]


def effort_of(options: AuditOptions, presets: Mapping[str, Mapping[str, JsonValue]]) -> str:
    """Returns the most that the options reach: below, quick, default or thorough."""
    own = type(options)().model_dump()
    given = options.model_dump()
    quick, plain, thorough = (presets[name] for name in ("quick", "plain", "thorough"))
    least = dict(quick)
    for key, value in quick.items():
        other = plain.get(key)
        if isinstance(value, int | float) and isinstance(other, int | float):
            least[key] = min(value, other)  # a plain scan must not be below
    known = [own, quick, plain, thorough]
    tuned = any(given.get(key) not in {each.get(key) for each in known} for key in options.tuned)
    if tuned or not _methods(given, known):
        return "below"
    defaults = {key: own[key] for key in least if key in own}
    reached = "below"
    for name, preset in {"quick": least, "default": defaults, "thorough": thorough}.items():
        texts = known if name == "quick" else [own]
        if not (_families(given, texts) and _reduction(given, texts)):
            break
        if not all(_reaches(given, own, key, wanted) for key, wanted in preset.items()):
            break
        if preset or name != "thorough":
            reached = name
    return reached


def _reaches(given: Mapping[str, Any], own: Mapping[str, Any], key: str, wanted: JsonValue) -> bool:
    """Whether an option counts at least as much as wanted; None is the method's own number."""
    if key not in given or isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return True
    value = given[key]
    return bool(value == own[key] if value is None else value >= wanted)


_Known = Sequence[Mapping[str, Any]]
"""Options that stand for an effort: the audit's own ones and its presets."""


def _methods(given: Mapping[str, Any], known: _Known) -> bool:
    """Whether all methods of the default or of a preset are given, none with fewer steps."""
    methods = [*(given.get("method") or ())]
    sets = [[*(each.get("method") or ())] for each in known if "method" in each]
    if not sets or methods in sets:
        return True
    usual = {spec for each in sets for spec in each}
    names = {spec.partition(":")[0] for spec in methods}
    complete = [{spec.partition(":")[0] for spec in each} for each in sets if each]
    every = max(complete, key=len, default=names)
    return every <= names and all(spec in usual or _steps(spec) for spec in methods)


def _steps(spec: str) -> bool:
    """Whether a method's own options in its text ask for no fewer steps than it takes by itself."""
    name, _, text = spec.partition(":")
    steps = offered(_RECONSTRUCTIONS).get(name, {}).get("default_steps")
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return all(
        key == "iterations" and steps is not None and value.isdecimal() and int(value) >= steps
        for key, _, value in pairs
    )


def _families(given: Mapping[str, Any], known: _Known) -> bool:
    """Whether all predictive families of the default or of a preset are given."""
    families = {*(given.get("family") or ())}
    sets = [{*(each["family"] or ())} for each in known if "family" in each]
    return not sets or any(each <= families if each else not families for each in sets)


def _reduction(given: Mapping[str, Any], known: _Known) -> bool:
    """Whether the gradient is reduced as by default or in a preset, or to as many elements."""
    reduce = given.get("reduce")
    if reduce in (None, "none") or any(reduce == each.get("reduce") for each in known):
        return True
    name, _, count = str(reduce).partition(":")
    return name == "subset" and count.isdecimal() and int(count) >= _WHOLE
