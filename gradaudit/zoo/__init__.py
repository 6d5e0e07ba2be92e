"""The papers' architectures; a function's name with dashes is the architecture's.

Listing them imports neither them nor torch.
"""

import ast
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradaudit.core.parts import parsed
from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


@cache
def zoo_names() -> Mapping[str, str]:
    """Returns every architecture with its one-line summary, in alphabetical order."""
    source = Path(__file__).with_name("architectures.py").read_text(encoding="utf-8")
    functions = [node for node in parsed(source).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name.replace("_", "-"): (ast.get_docstring(node) or "").split("\n")[0]
        for node in sorted(functions, key=lambda node: node.name)
    }


def factory(name: str) -> "Callable[..., nn.Module]":
    """Returns the function that builds the architecture ``name``; its parameters are the options.

    Raises:
        UsageError: there is no such architecture.
    """
    names = zoo_names()
    if name not in names:
        raise UsageError(f"zoo:{name}: unknown{suggest(name, names)}; known: {', '.join(names)}")
    architectures = importlib.import_module(f"{__name__}.architectures")
    return getattr(architectures, name.replace("-", "_"))  # type: ignore[no-any-return]


def build(name: str, **options: object) -> "nn.Module":
    """Builds a new model of the architecture ``name`` with torch's global generator.

    Raises:
        UsageError: there is no such architecture, or an option's value does not fit it.
    """
    return factory(name)(**options)
