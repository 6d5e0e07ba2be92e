"""Data from a function in the user's own file."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from gradaudit.core.specs import Spec, arguments
from gradaudit.core.text import first_line
from gradaudit.core.user_code import load_callable
from gradaudit.data.base import DataAdapter
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError, GradauditError, foreign


def _options(
    *,
    labels: Literal["given", "none"] = "given",
    inputs: int | None = None,
    records: int | None = None,
) -> dict[str, Any]:
    """Options that every factory function takes, unless it has a parameter of that name."""
    return {"unlabelled": labels == "none", "inputs": inputs, "records": records}


_WORDS = tuple(inspect.signature(_options).parameters)


def _pairs(spec: Spec, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in spec.pairs if pair[0] in keys)


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class UserFactory(DataAdapter):
    """Data from a user's function, which returns one of the documented forms.

    The options of the spec are the function's keyword parameters. It may return ``Records``; a pair
    (inputs, labels); a mapping of ``inputs``, ``labels``, ``attributes``, ``users``, ``members``,
    ``classes`` and ``columns``; or a data set, loader or iterable of pairs (input, label), triples
    with an attribute, or mappings of arrays (the model's arguments by name), a label (``labels``,
    ``label``, ``y``, ``target``), ``user``, ``member`` and attributes. Several inputs, and several
    labels for a loss of the user's, are a mapping or a tuple of arrays. Of an item that is a tuple
    as many parts are inputs as the model needs arguments, or ``inputs=N``. ``labels=none`` says
    that there are inputs alone. Of what has no length the first records are taken, ``records=N`` or
    10,000.

    Attributes:
        layout: what was said by ``labels=none``, ``inputs=N`` and ``records=N``.
    """

    name: ClassVar[str] = "file"
    summary: ClassVar[str] = (
        "a function in a Python file that returns records, arrays, a Dataset or a DataLoader"
    )
    example: ClassVar[str] = "path/to/file.py:factory?k=v"

    factory: Callable[[], Any]
    layout: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Spec, attributes: Iterable[str] = ()) -> Self:
        """The function that a spec names, with its options; its attributes are its own affair."""
        function = load_callable(spec.name, "--data")
        ours = [key for key, _ in spec.pairs if key in _WORDS and not _takes(function, key)]
        settings = arguments(replace(spec, pairs=_pairs(spec, ours)), _options)
        rest = _pairs(spec, [key for key, _ in spec.pairs if key not in ours])
        factory = partial(function, **arguments(replace(spec, pairs=rest), function))
        return cls(source=spec.name, factory=factory, layout=_options(**settings))

    def load(self) -> Records:
        """Call the function."""
        layout = {**self.layout, "inputs": self.layout.get("inputs") or self.arguments}
        try:
            with foreign():
                return records_of(self.factory(), self.source, **layout)
        except GradauditError:
            raise
        except Exception as error:
            raise DataError(f"--data {self.source}: failed with {first_line(error)}") from error
