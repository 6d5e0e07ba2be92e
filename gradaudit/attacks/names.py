"""What reconstruction attacks declare, read from their source: nothing is imported."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

GROUP = "gradaudit.attacks.reconstruction"


@dataclass(frozen=True)
class Declaration:
    """What the class of an attack says of itself, as in ``Reconstruction``."""

    name: str
    summary: str
    default_steps: int | None = None


def declarations() -> dict[str, Declaration]:
    """Every attack of this package by its name, in alphabetical order."""
    folder = Path(__file__).parent / "reconstruction"
    attacks = [attack for file in folder.glob("*.py") for attack in _declared_in(file)]
    return {attack.name: attack for attack in sorted(attacks, key=lambda attack: attack.name)}


def reconstruction_summaries() -> dict[str, str]:
    """Every reconstruction attack with its one-line summary, in alphabetical order.

    Attacks of other distributions are imported, since their source may lie anywhere.
    """
    parts = [entry.load() for entry in entry_points(group=GROUP)]
    summaries = {attack.name: attack.summary for attack in (*declarations().values(), *parts)}
    return dict(sorted(summaries.items()))


def names_in_words() -> str:
    """The names of the attacks of this package: A, B or C."""
    *names, last = declarations()
    return f"{', '.join(names)} or {last}"


def default_steps_in_words() -> str:
    """How many steps attacks take by default: 300 for A and B, 2400 for C."""
    by_steps: dict[int, list[str]] = defaultdict(list)
    for attack in declarations().values():
        if attack.default_steps is not None:
            by_steps[attack.default_steps].append(attack.name)
    return ", ".join(
        f"{steps} for {' and '.join(names)}" for steps, names in sorted(by_steps.items())
    )


def _declared_in(file: Path) -> Iterator[Declaration]:
    source = file.read_text(encoding="utf-8")
    if "\n    summary = " not in source:
        return
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            attributes = dict(_constants(node))
            if attributes.keys() >= {"name", "summary"}:
                names = attributes.keys() & {field.name for field in fields(Declaration)}
                yield Declaration(**{name: attributes[name] for name in names})


def _constants(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Class attributes that are written out."""
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            (target,) = line.targets
            if isinstance(target, ast.Name):
                yield target.id, line.value.value
