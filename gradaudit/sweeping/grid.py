"""The grid of a sweep: the settings that vary, and their values; it imports no torch."""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gradaudit.core.specs import suggest
from gradaudit.deployment import RUNGS
from gradaudit.errors import UsageError
from gradaudit.report import Report

_PLACEHOLDER = re.compile(r"\{([A-Za-z][\w-]*)\}")
_MANY = 1000


@dataclass(frozen=True)
class Axis:
    """An axis of the grid: an option, or a name that other options hold as ``{name}``."""

    name: str
    values: tuple[str, ...]

    @property
    def field(self) -> str:
        """The axis's name as settings spell it."""
        return self.name.replace("-", "_")

    @property
    def numbers(self) -> bool:
        """Whether all values are numbers."""
        return not any(isinstance(_number(value), str) for value in self.values)

    @property
    def places(self) -> dict[str | int | float | bool, float]:
        """Positions of the values on a picture's axis: numbers at themselves, texts in order."""
        values = [_number(value) for value in self.values]
        return {v: float(v) if self.numbers else float(i) for i, v in enumerate(values)}


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid: ``values`` by the axes' names."""

    values: Mapping[str, str]

    @property
    def variant(self) -> dict[str, str | int | float | bool]:
        """The point as a row's variant; numbers are written as numbers."""
        return {name: _number(value) for name, value in self.values.items()}

    def filled(self, flags: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
        """Returns the flags with this point's values.

        Args:
            flags: values by field name, as the command line gave them.
            fields: the fields of these settings; axes of other names fill placeholders only.
        """
        filled = {name: self._replaced(value) for name, value in flags.items()}
        for name, value in self.values.items():
            field = name.replace("-", "_")
            if field in fields:
                filled[field] = value
        return filled

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            return _PLACEHOLDER.sub(lambda m: self.values.get(m[1], m[0]), value)
        return [self._replaced(item) for item in value] if isinstance(value, list) else value


def read_axes(specs: Sequence[str]) -> tuple[Axis, ...]:
    """Parses the axes of ``NAME=V1,V2,…``, or ``NAME=V1|V2|…`` where values hold commas.

    Raises:
        UsageError: a spec is malformed, names no value, one twice, or an axis is named twice.
    """
    axes = tuple(map(_axis, specs))
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--over {name}: named twice; give all its values at once")
    if not axes:
        raise UsageError("--over is needed: name what is varied, as --over NAME=V1,V2,…")
    return axes


def axes_of(report: Report) -> tuple[Axis, ...]:
    """Returns the axes of the sweep that made a report.

    Raises:
        UsageError: the report is not of a sweep.
    """
    varied = report.provenance.get("sweep")
    axes = varied.items() if isinstance(varied, dict) else ()
    found = tuple(Axis(n, tuple(map(str, vs))) for n, vs in axes if isinstance(vs, list) and vs)
    if not found:
        raise UsageError("the report is not of a sweep; `gradaudit sweep … -o FILE` writes one")
    return found


def points(axes: Sequence[Axis]) -> list[GridPoint]:
    """Returns every combination of the axes' values; the last axis varies fastest.

    Raises:
        UsageError: there are more than a thousand.
    """
    grid = list(itertools.product(*(axis.values for axis in axes)))
    if len(grid) > _MANY:
        raise UsageError(f"--over: {len(grid):,} combinations are more than {_MANY:,}")
    names = [axis.name for axis in axes]
    return [GridPoint(dict(zip(names, values, strict=True))) for values in grid]


def expect_known(axes: Sequence[Axis], fields: Collection[str], flags: Mapping[str, Any]) -> None:
    """Raise an error where an axis is neither an option nor a placeholder in one.

    Raises:
        UsageError: an axis would change nothing.
    """
    asked = set(_placeholders(flags.values()))
    for axis in axes:
        if axis.field not in fields and axis.name not in asked:
            known = sorted(name.replace("_", "-") for name in fields)
            raise UsageError(
                f"--over {axis.name}: no such option{suggest(axis.name, known)}, and no option "
                f"holds {{{axis.name}}}, as in --defense 'dp:clip=1,sigma={{{axis.name}}}'"
            )


def _axis(spec: str) -> Axis:
    name, equals, text = spec.partition("=")
    values = [value.strip() for value in text.split("|" if "|" in text else ",")]
    if not equals or not name.strip() or not all(values):
        raise UsageError(f"--over {spec}: give it as NAME=V1,V2,… or NAME=V1|V2|…")
    if len(set(values)) < len(values):
        raise UsageError(f"--over {spec}: a value stands twice")
    return Axis(name.strip().lstrip("-"), tuple(values))


def _placeholders(values: Collection[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield from _PLACEHOLDER.findall(value)
        elif isinstance(value, list):
            yield from _placeholders(value)


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            return value
    return text


NAME = "rung"
"""Key of the rung in a row's variant."""
FIRST = "diagnostic"
R = TypeVar("R")


@dataclass(frozen=True)
class Rung(Generic[R]):
    """A rung of a sweep: the change from the rung below, what is run, and what decides it.

    Attributes:
        title: the change in words.
        run: settings and options.
        names: of the settings that the federation decides on this rung.
    """

    title: str
    run: R
    names: tuple[str, ...] = ()


def ladder(values: dict[str, Any], of: Callable[[tuple[str, ...]], R]) -> list[Rung[R]]:
    """Returns the rungs on which something changes.

    Args:
        values: what the federation says, by name of settings and options.
        of: what is run where the federation decides these settings alone; equal where nothing
            changes.
    """
    known: tuple[str, ...] = ()
    rungs = [Rung(FIRST, of(known))]
    for names in RUNGS:
        known += names
        run = of(known)
        if run != rungs[-1].run:
            rungs.append(Rung("+ " + ", ".join(_words(values, names)), run, known))
    return rungs


def _words(values: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Formats these settings as ``name value``."""
    for name in names:
        if values.get(name) not in (None, (), 0):
            value = values[name]
            text = " then ".join(value) if isinstance(value, tuple) else value
            yield f"{name.replace('_', '-')} {text}"
