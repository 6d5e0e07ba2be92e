"""Mechanisms: successive defenses, some of whose options run over a grid."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradaudit.defenses import Defense, defenses, parse_defense
from gradaudit.errors import UsageError

THEN = " then "
OR = "|"
MOST_SETTINGS = 100


@dataclass(frozen=True)
class DefenseSetting:
    """One setting of a mechanism's grid.

    Attributes:
        values: what is varied, as ``dp.sigma``, and its value here.
        defenses: in the order in which they are applied.
    """

    values: Mapping[str, str]
    defenses: tuple[Defense[Any], ...]

    def __str__(self) -> str:
        varied = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return varied or THEN.join(map(str, self.defenses))


@dataclass(frozen=True)
class DefenseGrid:
    """Successive defenses with every setting of their grid, the last option varied fastest."""

    text: str
    settings: tuple[DefenseSetting, ...]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Axis:
    """An option, by its defense and its place in the spec, with its values."""

    name: str
    prefix: str
    values: tuple[str, ...]


def read_mechanism(specs: Sequence[str], option: str) -> DefenseGrid:
    """Parse defenses' specs, in which ``V1|V2|…`` stands for each of these values.

    Args:
        specs: in the order of application, as ``selective:0.05`` and ``dp:clip=1,sigma=0.1|0.5``;
            one spec may name several defenses, joined by `` then ``.
        option: what error messages call it.

    Raises:
        UsageError: a spec is wrong, a value is missing or stands twice, or the grid is too large.
    """
    parts = [part.strip() for spec in specs for part in spec.split(THEN)]
    axes = [list(_axes(part, option)) for part in parts]
    values = [axis.values for of_part in axes for axis in of_part]
    count = math.prod(map(len, values))
    if count > MOST_SETTINGS:
        raise UsageError(f"{option}: {count:,} settings are more than {MOST_SETTINGS}")
    settings = [_setting(parts, axes, point, option) for point in itertools.product(*values)]
    return DefenseGrid(THEN.join(parts), tuple(settings))


def _axes(part: str, option: str) -> Iterator[_Axis]:
    """List one defense's options in the order of its spec, with one value where fixed."""
    name, _, rest = part.partition(":")
    for item in filter(None, rest.split(",")):
        key, equals, text = item.partition("=")
        values = tuple(value.strip() for value in (text if equals else key).split(OR))
        if not all(values):
            raise UsageError(f"{option} {part}: a value is missing; write V1|V2|…")
        if len(set(values)) < len(values):
            raise UsageError(f"{option} {part}: a value stands twice")
        kind = defenses().get(name)
        option_name = key.strip() if equals else (kind and kind.positional) or "value"
        yield _Axis(f"{name}.{option_name}", f"{key}=" if equals else "", values)


def _setting(
    parts: Sequence[str], axes: Sequence[Sequence[_Axis]], point: Sequence[str], option: str
) -> DefenseSetting:
    left = iter(point)
    varied: dict[str, str] = {}
    chain = []
    for number, (part, of_part) in enumerate(zip(parts, axes, strict=True), start=1):
        values = [next(left) for _ in of_part]
        items = ",".join(axis.prefix + value for axis, value in zip(of_part, values, strict=True))
        name = part.partition(":")[0]
        chain.append(parse_defense(f"{name}:{items}" if items else name, option))
        for axis, value in zip(of_part, values, strict=True):
            if len(axis.values) > 1:
                varied[f"{number}.{axis.name}" if axis.name in varied else axis.name] = value
    return DefenseSetting(varied, tuple(chain))
