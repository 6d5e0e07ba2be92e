"""The papers' architectures, one a file: ``build(**options)`` and a docstring with the source.

A file's name with dashes is the architecture's name. Listing them imports neither them nor torch.
"""

import ast
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING

from gradaudit.errors import UsageError
from gradaudit.specs import suggest

if TYPE_CHECKING:
    from torch import nn


def zoo_names() -> dict[str, str]:
    """Every architecture with its one-line summary, in alphabetical order."""
    modules = [name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]
    return {name.replace("_", "-"): _summary(name) for name in sorted(modules)}


def factory(name: str) -> "Callable[..., nn.Module]":
    """The function that builds the architecture ``name``; its parameters are the options.

    Raises:
        UsageError: there is no such architecture.
    """
    names = zoo_names()
    if name not in names:
        raise UsageError(f"zoo:{name}: unknown{suggest(name, names)}; known: {', '.join(names)}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return module.build  # type: ignore[no-any-return]


def build(name: str, **options: object) -> "nn.Module":
    """A fresh model of the architecture ``name``, drawn from torch's global generator.

    Raises:
        UsageError: there is no such architecture, or an option's value does not fit it.
    """
    return factory(name)(**options)


def _summary(module: str) -> str:
    spec = importlib.util.find_spec(f"{__name__}.{module}")
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    source = spec.loader.get_source(spec.name) or ""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
