"""Specs: how a model or a data set is named on the command line, ``NAME[?key=value&key=value]``.

The options of a spec are the keyword parameters of the callable behind the name, so their types,
the allowed keys and the defaults are read off its signature.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from gradaudit.errors import UsageError

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Spec:
    """A parsed spec: its name and its options.

    Attributes:
        text: the spec as the user wrote it.
        name: everything before the first ``?``, verbatim (a path may hold ``%`` and ``:``).
        pairs: the options in order; keys may repeat. ``&``, ``=`` and ``%`` in a key or a value
            are written ``%26``, ``%3D`` and ``%25``.
    """

    text: str
    name: str
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> dict[str, str]:
        """Options of the spec by key.

        Raises:
            UsageError: a key is given twice.
        """
        return {key: self.value(key) for key, _ in self.pairs}

    def value(self, key: str) -> str:
        """Returns the only value of ``key``.

        Raises:
            UsageError: ``key`` is not given, or more than once.
        """
        values = self.values(key)
        if len(values) != 1:
            how = "given twice; keep one" if values else f"missing; add ?{key}=…"
            raise UsageError(f"{self.text}: option {key!r} is {how}")
        return values[0]

    def values(self, key: str) -> tuple[str, ...]:
        """Returns every value of ``key``, in order."""
        return tuple(value for name, value in self.pairs if name == key)

    @property
    def scheme(self) -> str:
        """Part of the name before its first colon; empty without one.

        A single letter is a Windows drive and no scheme.
        """
        scheme, colon, _ = self.name.partition(":")
        return scheme if colon and len(scheme) > 1 else ""

    @property
    def rest(self) -> str:
        """The name without its scheme."""
        return self.name[len(self.scheme) + 1 :] if self.scheme else self.name


def parse_spec(text: str) -> Spec:
    """Parse ``NAME[?key=value&…]``.

    Raises:
        UsageError: there is no name, or an option is not ``key=value``.
    """
    name, _, query = text.partition("?")
    if not name.strip():
        raise UsageError(f"{text!r}: nothing is named; write NAME[?key=value&key=value]")
    return Spec(text, name, tuple(_pair(text, item) for item in query.split("&") if item))


def files_in_spec(text: str) -> Iterator[Path]:
    """Returns every path that a spec may name.

    As in ``FILE``, ``FILE,FILE``, ``FILE.py:NAME``, ``KIND:FILE``, ``KIND:FOLDER?key=FILE``,
    ``KIND:FILE?key=FILE.py:NAME``.
    """
    try:
        spec = parse_spec(text)
    except UsageError:
        spec = Spec(text, text)
    given = [value for _, value in spec.pairs]
    values = [*given, *(value.rpartition(":")[0] for value in given)]
    inside = [f"{spec.rest}/{value}" for value in values]
    names = (text, *text.split(","), spec.name, spec.rest, spec.name.rpartition(":")[0])
    for name in (*names, *values, *inside):
        if name and "\0" not in name:
            yield Path(name).expanduser()


def _pair(text: str, item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise UsageError(
            f"{text}: {item!r} is no option; write key=value, with & in a value as %26"
        )
    return unquote(key), unquote(value)


def arguments(
    spec: Spec, function: Callable[..., object], given: Collection[str] = ()
) -> dict[str, Any]:
    """Returns the spec's options as arguments of a callable, in its parameters' types.

    Types are read from the annotations, else from the default, else guessed from the text
    (integer, number, true or false, text). Understood are ``int``, ``float``, ``bool``, ``str``,
    ``Literal``, tuples of these (``3x32x32`` or ``3,32,32``), and each of them ``| None``. A
    parameter ``tuple[str, ...]`` takes a repeated option, one element a time, commas and all.
    A callable with ``**kwargs`` takes any further key.

    Args:
        spec: the parsed spec.
        function: what will be called.
        given: parameters that the caller fills itself; they are no options.

    Returns:
        Only what the spec gives; defaults stay with the callable.

    Raises:
        UsageError: an unknown key, a value of another type, a required option that is missing.
    """
    allowed, more = _parameters(function, given)
    for key, _ in spec.pairs:
        if key in given:
            raise UsageError(f"{spec.text}: option {key!r} cannot be set here; leave it out")
        if key not in allowed and not more:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes no options"
            unknown = f"unknown option {key!r}{suggest(key, allowed)}"
            raise UsageError(f"{spec.text}: {unknown}; {takes}")
    wanted = dict.fromkeys([*required(function, given), *(key for key, _ in spec.pairs)])
    return {key: _argument(spec, key, allowed) for key in wanted}


def required(function: Callable[..., object], given: Collection[str] = ()) -> list[str]:
    """Return the options that a callable has no default for."""
    allowed, _ = _parameters(function, given)
    return [key for key, parameter in allowed.items() if parameter.default is parameter.empty]


def configured(options: type[M], where: str, values: Mapping[str, object]) -> M:
    """Options of a part from values by name, as they are given in Python.

    Raises:
        UsageError: an option that the part does not take, one that is missing, or a value out of
            range.
    """
    expect_options(options, where, values)
    try:
        return options.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        what = fault["msg"].removeprefix("Value error, ")
        at = ".".join(map(str, fault["loc"]))
        if fault["type"] == "missing":
            raise UsageError(f"{where}: no {at}; give {at}=…") from error
        raise UsageError(
            f"{where}: {at}={fault['input']!r}: {what}" if at else f"{where}: {what}"
        ) from error


def expect_options(options: type[BaseModel], where: str, names: Iterable[str]) -> None:
    """Raise an error where a part does not take an option of one of these names.

    Raises:
        UsageError: it does not.
    """
    takes = options.model_fields
    for name in names:
        if name not in takes:
            raise UsageError(
                f"{where}: no option {name!r}{suggest(name, takes)}; "
                f"it takes: {', '.join(takes) or 'none'}"
            )


def suggest(name: str, known: Collection[str]) -> str:
    """Returns `` (did you mean 'X'?)`` where a known name is close, else an empty text."""
    close = get_close_matches(name, list(known))
    swapped = [each for each in close if sorted(each) == sorted(name)]
    return f" (did you mean {[*swapped, *close][0]!r}?)" if close else ""


def pick(name: str, known: Mapping[str, T], given: str, what: str) -> T:
    """Returns what has a name.

    Args:
        name: the name.
        known: everything by name.
        given: what the user wrote, for the message.
        what: kind of thing, for the message.

    Raises:
        UsageError: nothing has this name.
    """
    if name not in known:
        raise UsageError(
            f"{given}: no such {what}{suggest(name, known)}; there are: {', '.join(known)}"
        )
    return known[name]


def _parameters(
    function: Callable[..., object], given: Collection[str]
) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """Returns the parameters that can be options, and whether any further key is accepted."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # evaluating annotations fails in whatever way it may
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # builtins have none
            return {}, False
    by_name = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in given
    }
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return by_name, inspect.Parameter.VAR_KEYWORD in kinds


def _argument(spec: Spec, key: str, allowed: Mapping[str, inspect.Parameter]) -> Any:
    kind: Any = None
    parameter = allowed.get(key)
    if parameter is not None and parameter.annotation is not parameter.empty:
        kind = parameter.annotation
    elif parameter is not None and isinstance(parameter.default, bool | int | float):
        kind = type(parameter.default)
    if kind == tuple[str, ...] and spec.values(key):
        return spec.values(key)
    text = spec.value(key)
    try:
        return _convert(text, kind)
    except ValueError as error:
        singular = key.removesuffix("s")
        meant = f" (did you mean {singular}={text}?)" if singular in {*allowed} - {key} else ""
        raise UsageError(f"{spec.text}: option {key}={text!r} is not {error}{meant}") from error


def _convert(text: str, kind: Any) -> Any:
    """Converts a value to the type ``kind``; a ValueError says what was expected."""
    if get_origin(kind) in (Union, UnionType):
        return _convert_union(text, get_args(kind))
    if get_origin(kind) is Literal:
        return _convert_choice(text, get_args(kind))
    if kind is tuple or get_origin(kind) is tuple:
        return _convert_tuple(text, get_args(kind) or (int, ...))
    if kind in _SCALARS:
        return _SCALARS[kind](text)
    return _guess(text)


def _convert_union(text: str, members: tuple[Any, ...]) -> Any:
    if NoneType in members and text.lower() == "none":
        return None
    expected = []
    for member in (m for m in members if m is not NoneType):
        try:
            return _convert(text, member)
        except ValueError as error:
            expected.append(str(error))
    raise ValueError(" or ".join(expected))


def _convert_choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if str(choice) == text:
            return choice
    names = [str(choice) for choice in choices]
    raise ValueError(f"one of {', '.join(names)}{suggest(text, names)}")


def _convert_tuple(text: str, elements: tuple[Any, ...]) -> tuple[Any, ...]:
    parts = [part.strip() for part in re.split("[x,]" if elements[0] is int else ",", text)]
    kinds = (elements[0],) * len(parts) if elements[-1] is Ellipsis else elements
    try:
        return tuple(_convert(part, kind) for part, kind in zip(parts, kinds, strict=True))
    except ValueError:
        length = 3 if elements[-1] is Ellipsis else len(elements)
        sizes = ["32"] * length
        exactly = "" if elements[-1] is Ellipsis else f"{length} "
        raise ValueError(
            f"a list of {exactly}values such as {'x'.join(sizes)} or {','.join(sizes)}"
        ) from None


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError("a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError("true or false")
    return text.lower() in _TRUE


_SCALARS: dict[Any, Callable[[str], Any]] = {
    int: _integer,
    float: _number,
    bool: _truth,
    str: str,
    Path: Path,
}


def _guess(text: str) -> Any:
    for convert in (_integer, _number):
        try:
            return convert(text)
        except ValueError:
            continue
    return text.lower() == "true" if text.lower() in ("true", "false") else text
