"""Data from a function in the user's own file."""

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from gradaudit.core.specs import Spec, arguments
from gradaudit.core.text import first_line
from gradaudit.core.user_code import load_callable
from gradaudit.data.base import DataAdapter
from gradaudit.data.common.items import ItemLayout
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import DataError, GradauditError, foreign


def _layout(
    *,
    labels: Literal["given", "none"] = "given",
    inputs: int | None = None,
    records: int | None = None,
) -> ItemLayout:
    """Options that every factory function takes, unless it has a parameter of that name."""
    return ItemLayout(unlabelled=labels == "none", inputs=inputs, records=records)


_WORDS = tuple(inspect.signature(_layout).parameters)


def _pairs(spec: Spec, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in spec.pairs if pair[0] in keys)


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class UserFactory(DataAdapter):
    """Data from a user's function, which returns records, or arrays that become records.

    The options of the spec are the function's keyword parameters. It may return ``Records``, a
    pair (inputs, labels), a mapping of ``inputs``, ``labels``, ``attributes``, ``users``,
    ``members``, ``classes`` and ``columns``, or a ``Dataset`` or ``DataLoader`` of torch. Its items
    are pairs (input, label), triples with an attribute (or, where the model takes several
    arguments or ``inputs=N`` is said, as many inputs before the label), or mappings of an input
    (``image``, ``pixel_values``, ``input_ids``, ``x``, …), a label (``label``, ``y``, …) and
    attributes. Inputs may be a mapping too, of the model's keyword arguments (tensors, tokens,
    masks); in an item that is a mapping, arrays beside the input are such arguments. Labels may
    be a mapping or a tuple of arrays, which a loss of the user's gets whole. ``labels=none``
    says that there are no labels: then the arrays of an item, or a tuple of arrays, are all
    inputs. Of a data set that is a stream the first records are taken, ``records=N`` or 10,000.
    Batches of different widths are padded to the widest where a mask says what is filled.

    Attributes:
        layout: what was said of items, by ``labels=none``, ``inputs=N`` and ``records=N``.
    """

    name: ClassVar[str] = "file"
    summary: ClassVar[str] = (
        "a function in a Python file that returns records, arrays, a Dataset or a DataLoader"
    )
    example: ClassVar[str] = "path/to/file.py:factory?k=v"

    factory: Callable[[], Any]
    layout: ItemLayout = ItemLayout()  # noqa: RUF009 - it is frozen

    @classmethod
    def of(cls, spec: Spec, attributes: Iterable[str] = ()) -> Self:
        """The function that a spec names, with its options; its attributes are its own affair."""
        function = load_callable(spec.name, "--data")
        ours = [key for key, _ in spec.pairs if key in _WORDS and not _takes(function, key)]
        settings = arguments(replace(spec, pairs=_pairs(spec, ours)), _layout)
        rest = _pairs(spec, [key for key, _ in spec.pairs if key not in ours])
        factory = partial(function, **arguments(replace(spec, pairs=rest), function))
        return cls(source=spec.name, factory=factory, layout=_layout(**settings))

    def load(self) -> Records:
        """Call the function."""
        layout = replace(self.layout, takes=self.takes)
        try:
            with foreign():
                return records_of(self.factory(), self.source, layout)
        except GradauditError:
            raise
        except Exception as error:
            raise DataError(f"--data {self.source}: failed with {first_line(error)}") from error
