"""The object that a spec of middleware names, and what it is made with."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from gradaudit.audits.dp_audit.mechanisms import OPTION
from gradaudit.errors import UsageError
from gradaudit.specs import Spec, arguments, parse_spec
from gradaudit.user_code import first_line, load_callable


def named_object(text: str) -> tuple[Any, Spec]:
    """The object that ``SCHEME:MODULE:OBJECT?key=value&…`` names, and its spec without the scheme.

    Raises:
        UsageError: nothing is named, or no such module, file or object.
    """
    scheme, _, named = text.partition(":")
    if not named.strip():
        raise UsageError(
            f"{OPTION} {scheme}: names nothing; write {scheme}:MODULE:NAME or {scheme}:FILE.py:NAME"
        )
    spec = parse_spec(named)
    found = load_callable(spec.name, f"{OPTION} {scheme}:")
    return found, Spec(f"{OPTION} {text}", spec.name, spec.pairs)


def instantiate(found: Callable[..., Any], spec: Spec) -> Any:
    """Call a class or a function with the spec's options.

    Raises:
        UsageError: an option is wrong, or it cannot be made.
    """
    options = arguments(spec, found)
    try:
        return found(**options)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UsageError(f"{spec.text}: {first_line(error)}") from error


def accepts_positions(found: Callable[..., Any], count: int) -> bool:
    """Whether something that is no class can be called with so many values, by position."""
    if inspect.isclass(found):
        return False
    try:
        inspect.signature(found).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def library(module: str, title: str, extra: str) -> Any:
    """A module of a framework.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{OPTION} {extra}: {title} is not installed; install gradaudit[{extra}]"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the lines that a framework logs for every result."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
