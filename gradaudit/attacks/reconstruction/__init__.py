"""Reconstruction attacks, found by name, and as the command line names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
)
from gradaudit.core.parts import classes_of, discover
from gradaudit.core.specs import pick, suggest
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError

__all__ = [
    "AttackerView",
    "Candidates",
    "Execution",
    "Method",
    "Reconstruction",
    "expect_numbers",
    "load_method",
    "load_methods",
    "reconstructions",
]
Method = Reconstruction[Any]
OPTION = "--method"
__getattr__ = classes_of("gradaudit.attacks.reconstruction", Reconstruction)
_FLAGS = {"rate": "learning-rate"}


def reconstructions() -> dict[str, type[Reconstruction[Any]]]:
    """Every reconstruction attack by its name."""
    return discover("gradaudit.attacks.reconstruction", Reconstruction)


def load_methods(
    texts: Sequence[str], flags: Mapping[str, object], restarts: int
) -> dict[str, Method]:
    """Load the named methods, each with its own options over the flags.

    Args:
        texts: ``NAME`` or ``NAME:key=value,…``.
        flags: options by name for whichever of the methods take them.
        restarts: how many starting points each takes, where another can end elsewhere.

    Returns:
        Methods by the text that named them.

    Raises:
        UsageError: no such method, an option that it does not take, a flag that none takes, or a
            method that is named twice.
    """
    if len(set(texts)) < len(texts):
        raise UsageError(f"{OPTION}: a method is named twice ({', '.join(texts)})")
    methods = {text: load_method(text, flags, restarts) for text in texts}
    for flag in flags:
        if not any(flag in method.Options.model_fields for method in methods.values()):
            raise UsageError(
                f"--{_FLAGS.get(flag, flag).replace('_', '-')}: is no option of "
                f"{' or '.join(texts)}"
            )
    return methods


def expect_numbers(methods: Mapping[str, Method], records: Records) -> None:
    """Refuse records of tokens before an update is made, where no method takes any.

    Raises:
        NotApplicable: every method solves for real numbers.
    """
    tokens = records.discrete or records.looked_up
    if tokens and all(method.solves_for_numbers for method in methods.values()):
        raise NotApplicable(
            f"{', '.join(methods)}: solve for real numbers, and these records are of tokens"
        )


def load_method(text: str, flags: Mapping[str, object], restarts: int) -> Method:
    """Load one method; its own options override the flags, and unknown flags are ignored.

    Raises:
        UsageError: no such method, or an option that it does not take.
    """
    name, _, rest = text.partition(":")
    kind = pick(name, reconstructions(), f"{OPTION} {text}", "method")
    fields = kind.Options.model_fields
    given = {flag: value for flag, value in flags.items() if flag in fields}
    pairs = dict(_pair(text, item) for item in rest.split(",") if item)
    for key in pairs:
        if key not in fields:
            raise UsageError(
                f"{OPTION} {text}: unknown option {key!r}{suggest(key, fields)}; "
                f"{name} takes {', '.join(fields) or 'no options'}"
            )
    try:
        return kind(kind.Options.model_validate({**given, **pairs}), restarts=restarts)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(
            f"{OPTION} {text}: {'.'.join(map(str, fault['loc']))}: {fault['msg']} "
            f"(got {fault['input']!r})"
        ) from error


def _pair(text: str, item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise UsageError(f"{OPTION} {text}: {item!r} is no option; write key=value,key=value")
    return key.strip().replace("-", "_"), value.strip()
