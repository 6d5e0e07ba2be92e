"""Base class of data adapters: a name, options, and ``load``.

The options of an adapter are the fields of its dataclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from gradaudit.core.specs import Spec, arguments
from gradaudit.data.common.tokenizing import TextModel
from gradaudit.data.records import Records
from gradaudit.errors import UsageError

MEMBER = "member"
"""The attribute that stands for membership in the training set, where that is known."""


@dataclass(frozen=True, kw_only=True)
class DataAdapter(ABC):
    """A way to come by records; every further field of a subclass is an option of its spec.

    An adapter whose attributes are chosen by the user has the field ``attribute``, a tuple of
    names; others always yield the ones they have.

    Attributes:
        source: what follows ``NAME:`` in the spec, e.g. a file.
        classes: names of the classes in the order of the model's outputs, with commas between
            them, or a file with one a line; those that no record has may be among them.
        reading: how the model that gets the records reads texts, if it does; no option.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    """The form of its specs, as `gradaudit list` shows it."""
    needs_source: ClassVar[bool] = True

    source: str = ""
    classes: str | None = None
    reading: TextModel | None = None

    @classmethod
    def of(cls, spec: Spec, attributes: Iterable[str] = ()) -> Self:
        """The adapter that a spec asks for, with further attributes.

        Raises:
            UsageError: an option is unknown, missing or of another type, or the source is missing
                or not taken.
        """
        source = spec.rest if spec.scheme else ""
        if bool(source) != cls.needs_source:
            raise UsageError(f"{spec.text}: is not understood; write {cls.example}")
        options = arguments(spec, cls, given=("source", "reading"))
        if "attribute" in (field.name for field in fields(cls)):
            options["attribute"] = (*options.get("attribute", ()), *attributes)
        return cls(source=source, **options)

    @abstractmethod
    def load(self) -> Records:
        """Read the data.

        Raises:
            UsageError: a file, column or key is missing.
            DataError: the content cannot be used.
        """
