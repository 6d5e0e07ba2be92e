"""Defenses, one a file: each changes an update before it is shared.

A spec, ``prune:0.99,layers=conv*``, names one with its options.
"""

from typing import Any

from pydantic import ValidationError

from gradaudit.core.parts import classes_of, discover
from gradaudit.core.specs import pick, suggest
from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.defenses.defense_chain import Chain
from gradaudit.errors import UsageError

__all__ = ["Chain", "Defense", "DefenseOptions", "defenses", "parse_defense"]

OPTION = "--defense"
__getattr__ = classes_of("gradaudit.defenses", Defense)


def defenses() -> dict[str, type[Defense[Any]]]:
    """Returns every defense by its name."""
    return discover("gradaudit.defenses", Defense)


def parse_defense(text: str, option: str = OPTION) -> Defense[Any]:
    """Returns the defense that ``NAME``, ``NAME:value`` or ``NAME:key=value,…`` names.

    Raises:
        UsageError: no such defense, an option that it does not take or that is missing, or a
            value out of range.
    """
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        raise UsageError(
            f"{option} {text}: a defense of your own is a class in an installed package, named by "
            "its entry point; docs/parts.md shows one"
        )
    kind = pick(name, defenses(), f"{option} {text}", "defense")
    return made(kind, rest, f"{option} {text}")


def made(kind: type[Defense[Any]], rest: str, where: str) -> Defense[Any]:
    """Make a defense from what follows the colon of its spec.

    Raises:
        UsageError: as ``parse_defense``.
    """
    values = _values(where, kind, [item for item in rest.split(",") if item.strip()])
    try:
        options = kind.Options.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{where}: {_fault(error, kind)}") from error
    return kind(options)


def _values(where: str, kind: type[Defense[Any]], items: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for index, item in enumerate(items):
        key, value = _pair(where, kind, item, first=index == 0)
        if key in values:
            raise UsageError(f"{where}: {key} is given twice; keep one")
        if key not in kind.Options.model_fields:
            takes = ", ".join(name.replace("_", "-") for name in kind.Options.model_fields)
            raise UsageError(
                f"{where}: unknown option {key!r}{suggest(key, kind.Options.model_fields)}; "
                f"it takes: {takes}"
            )
        values[key] = value
    return values


def _pair(where: str, kind: type[Defense[Any]], item: str, *, first: bool) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if equals and key and value:
        return key.replace("-", "_"), value
    if equals or not first or kind.positional is None:
        raise UsageError(f"{where}: {item!r} is no option; write key=value, as in {kind.example}")
    return kind.positional, key


def _fault(error: ValidationError, kind: type[Defense[Any]]) -> str:
    fault = error.errors()[0]
    what = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return f"{what}; write {kind.example}"
    key = str(fault["loc"][0]).replace("_", "-")
    if fault["type"] == "missing":
        return f"no {key}; write {kind.example}"
    return f"{key}={fault['input']}: {what[0].lower()}{what[1:]}"
