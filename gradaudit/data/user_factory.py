"""Data from a function in the user's own file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from gradaudit.core.specs import Spec, arguments
from gradaudit.core.text import first_line
from gradaudit.core.user_code import load_callable
from gradaudit.data.base import DataAdapter
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError, GradauditError, foreign


@dataclass(frozen=True, kw_only=True)
class UserFactory(DataAdapter):
    """Data from a user's function, which returns one of the documented forms.

    The options of the spec are the function's keyword parameters. It may return ``Records``; a pair
    (inputs, labels); a mapping of ``inputs``, ``labels``, ``attributes``, ``users``, ``members``,
    ``classes`` and ``columns``; or a data set, loader or iterable of pairs (input, label) or of
    mappings of arrays (the model's arguments by name), a label (``labels``, ``label``, ``y``,
    ``target``), ``user``, ``member`` and attributes. Several inputs are a mapping of arrays.
    Labels are None where there are none. Of what has no length the first 10,000 items are taken.
    """

    name: ClassVar[str] = "file"
    summary: ClassVar[str] = (
        "a function in a Python file that returns records, arrays, a Dataset or a DataLoader"
    )
    example: ClassVar[str] = "path/to/file.py:factory?k=v"

    factory: Callable[[], Any]

    @classmethod
    def of(cls, spec: Spec, attributes: Iterable[str] = ()) -> Self:
        """The function that a spec names, with its options; its attributes are its own affair."""
        function = load_callable(spec.name, "--data")
        return cls(source=spec.name, factory=partial(function, **arguments(spec, function)))

    def load(self) -> Records:
        """Call the function."""
        try:
            with foreign():
                return records_of(self.factory(), self.source)
        except GradauditError:
            raise
        except Exception as error:
            raise DataError(f"--data {self.source}: failed with {first_line(error)}") from error
