"""Names and summaries of reconstruction attacks, read from their source: nothing is imported."""

import ast
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

GROUP = "gradaudit.attacks.reconstruction"


def reconstruction_summaries() -> dict[str, str]:
    """Every reconstruction attack with its one-line summary, in alphabetical order.

    Attacks of other distributions are imported, since their source may lie anywhere.
    """
    folder = Path(__file__).parent / "reconstruction"
    own = (found for file in folder.glob("*.py") for found in _attacks(file))
    return dict(sorted([*own, *_others()]))


def _attacks(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            words = dict(_words(node))
            if words.keys() >= {"name", "summary"}:
                yield words["name"], words["summary"]


def _words(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Class attributes that are strings, as they are written."""
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            (target,) = line.targets
            if isinstance(target, ast.Name) and isinstance(line.value.value, str):
                yield target.id, line.value.value


def _others() -> Iterator[tuple[str, str]]:
    for entry in entry_points(group=GROUP):
        part = entry.load()
        yield part.name, part.summary
