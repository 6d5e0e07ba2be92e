"""Arrays in ``.npz`` archives."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gradaudit.data.common.arrays import Archive, as_inputs, pictures_in, read_arrays, scaled
from gradaudit.data.common.checks import choose_all, expect_length
from gradaudit.data.common.picture_files import PictureAdapter
from gradaudit.data.common.roles import (
    Labels,
    assemble,
    labels_of_array,
    left_aside,
    named_label,
    no_labels,
)
from gradaudit.data.common.table_columns import NOT_A_TABLE, Inputs, table_of
from gradaudit.data.records import Records
from gradaudit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class NpzFile(PictureAdapter):
    """A NumPy archive with one array of inputs and one each of labels, attributes, users.

    Bytes of shape (records, height, width[, channels]) are pictures and become (records, channels,
    height, width) in [0, 1]; other inputs are taken as they are. Whole numbers as labels are the
    model's class indices. ``KEY_names``, where the archive holds it, names the values of ``KEY``.
    The report names the keys that nothing is read from.

    Attributes:
        inputs: key of the inputs, (records, …).
        label: key of the label, (records,) or real targets (records, outputs).
        labels: ``none`` where there are none, for a loss of the outputs alone.
        attribute: keys of private attributes; a quantity is split in halves at its median.
        user: key that says whose record it is.
        member: key that says whether a record was trained on.
        scale: ``standard`` gives each column of a table mean 0 and deviation 1.
        tokens: whether the inputs are tokens, whole numbers for an embedding.
        task: whether the label is a class or a number; its values decide where it is not given.
    """

    name: ClassVar[str] = "npz"
    summary: ClassVar[str] = "pictures, tables or tokens in a NumPy archive"
    example: ClassVar[str] = "npz:FILE?inputs=KEY&label=KEY&attribute=KEY&user=KEY&member=KEY"

    inputs: str
    label: str | None = None
    labels: Literal["given", "none"] = "given"
    attribute: tuple[str, ...] = ()
    user: str | None = None
    member: str | None = None
    scale: Literal["none", "standard"] = "none"
    tokens: bool = False
    task: Literal["classification", "regression"] | None = None

    def load(self) -> Records:
        """Read the arrays."""
        named_label(self.label, self.labels, "KEY", self.source)
        asked = (self.inputs, self.label, *self.attribute, self.user, self.member)
        archive = read_arrays(Path(self.source), filter(None, asked))
        attributes = choose_all(self.attribute, archive.keys, self.source, "key")
        inputs = self._inputs(archive)
        records = len(inputs.array)
        for key in filter(None, (self.label, *attributes, self.user, self.member)):
            expect_length(len(np.atleast_1d(archive[key])), records, archive.origin(key))
        return assemble(
            inputs,
            self._labels(archive, records),
            [archive.column(key) for key in attributes],
            user=None if self.user is None else archive.column(self.user),
            member=None if self.member is None else archive.column(self.member),
            notes=left_aside(archive.keys, (*archive.arrays, "class_names")),
        )

    def _labels(self, archive: Archive, records: int) -> Labels:
        if (key := self.label) is None:
            return no_labels(records, self.source)
        names = archive.names(key) or archive.names("class")
        return labels_of_array(archive[key], archive.origin(key), names, self.task)

    def _inputs(self, archive: Archive) -> Inputs:
        origin, raw = archive.origin(self.inputs), archive[self.inputs]
        if self.scale == "standard" and (self.size or self.channels or self.normalize):
            raise UsageError(f"{origin}: {NOT_A_TABLE}")
        if self.size:
            if raw.dtype != np.uint8 or raw.ndim < 3:
                raise UsageError(f"{origin}: size= is for pictures of bytes")
            return self.prepared(pictures_in(raw, origin), origin)
        array = as_inputs(raw, origin, tokens=self.tokens)
        if self.normalize is not None or self.channels is not None:
            return self.normal(array, origin, scaled(raw))
        inputs = table_of(array, self.scale, origin, archive.names(self.inputs))
        return inputs if self.tokens else replace(inputs, notes=scaled(raw, inputs.notes))
