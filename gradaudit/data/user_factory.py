"""Data from a function in the user's own file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError, GradauditError
from gradaudit.specs import Spec, arguments
from gradaudit.user_code import first_line, load_callable


@dataclass(frozen=True, kw_only=True)
class UserFactory(DataAdapter):
    """What a function of the user's returns: records, or arrays that become records.

    The options of the spec are the function's keyword parameters. It may return ``Records``, a
    pair (inputs, labels), a mapping of ``inputs``, ``labels``, ``attributes``, ``users``,
    ``members`` and ``classes``, or a ``Dataset`` or ``DataLoader`` of torch. Its items are pairs
    (input, label), triples with an attribute, or mappings of an input (``image``,
    ``pixel_values``, ``input_ids``, ``x``, …), a label (``label``, ``y``, …) and attributes.
    Inputs may be a mapping too, of the model's keyword arguments (tensors, tokens, masks); in an
    item that is a mapping, arrays beside the input are such arguments.
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
            return records_of(self.factory(), self.source)
        except GradauditError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"--data {self.source}: failed with {first_line(error)}") from error
