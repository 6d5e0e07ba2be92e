"""How hard an attack was tried, from its options beside those of the presets."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from gradaudit.audits.base import Audit, AuditOptions
from gradaudit.measurement import EFFORT
from gradaudit.report import Measurement


def with_effort(rows: Sequence[Measurement], audit: Audit[Any]) -> Sequence[Measurement]:
    """The rows with ``details.effort``, where the audit is an attack."""
    if audit.reports_as() != "attack":
        return rows
    presets = {"quick": audit.quick, "plain": audit.plain, "thorough": audit.thorough}
    effort = effort_of(audit.options, presets)
    return [row.with_details({EFFORT: effort}) for row in rows]


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
    defaults = {key: own[key] for key in least if key in own}
    reached = "below"
    for name, preset in {"quick": least, "default": defaults, "thorough": thorough}.items():
        if not _reaches_all(given, own, preset, thorough):
            break
        if preset or name != "thorough":
            reached = name
    return reached


def _reaches_all(
    given: Mapping[str, Any],
    own: Mapping[str, Any],
    preset: Mapping[str, Any],
    thorough: Mapping[str, JsonValue],
) -> bool:
    """Whether all options count at least as much as the preset's, with every method it runs."""
    methods = [[*(each or ())] for each in (own.get("method"), preset.get("method"))]
    complete = [*(given.get("method") or ())] in methods or _runs_all(given, thorough)
    return complete and all(_reaches(given, own, key, wanted) for key, wanted in preset.items())


def _reaches(given: Mapping[str, Any], own: Mapping[str, Any], key: str, wanted: JsonValue) -> bool:
    """Whether an option counts at least as much as wanted; None is the method's own number."""
    if key not in given or isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return True
    value = given[key]
    return bool(value == own[key] if value is None else value >= wanted)


def _runs_all(given: Mapping[str, Any], thorough: Mapping[str, JsonValue]) -> bool:
    """Whether every method of the preset ``thorough`` is among those given."""
    wanted = thorough.get("method")
    methods = {str(each).split(":")[0] for each in given.get("method") or ()}
    return isinstance(wanted, list) and {str(each).split(":")[0] for each in wanted} <= methods
