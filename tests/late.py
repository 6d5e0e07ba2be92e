"""Frameworks that a test module names at its top and its tests import.

Every worker collects every test module: one that imports a framework costs seconds in each of
them, though only one will run its tests.
"""

from importlib import import_module
from typing import Any


class Late:
    """A module that is imported when something of it is first asked for.

    Not for names that begin with an underscore, which pytest asks of all that it collects.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
