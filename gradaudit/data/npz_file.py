"""Arrays in ``.npz`` archives."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gradaudit.data.common.arrays import Archive, as_inputs, read_arrays, scaled
from gradaudit.data.common.checks import expect_length
from gradaudit.data.common.picture_files import PictureAdapter
from gradaudit.data.common.roles import Labels, labels_of_array, named_label
from gradaudit.data.common.table_columns import NOT_A_TABLE, Inputs, table_of
from gradaudit.data.common.tabular import DescribedRecords
from gradaudit.data.records import Records
from gradaudit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class NpzFile(DescribedRecords, PictureAdapter):
    """A NumPy archive with one array of inputs and one each of labels, attributes, users.

    Bytes of shape (records, height, width[, channels]) are pictures and become (records, channels,
    height, width) in [0, 1]; other inputs are taken as they are. Whole numbers as labels are the
    model's class indices. ``KEY_names``, where the archive holds it, names the values of ``KEY``.
    The report names the keys that nothing is read from.

    Attributes:
        inputs: key of the inputs, (records, …).
        scale: ``standard`` gives each column of a table mean 0 and deviation 1.
        tokens: whether the inputs are tokens, whole numbers for an embedding.
        task: whether the label is a class or a number; its values decide where it is not given.
    """

    name: ClassVar[str] = "npz"
    summary: ClassVar[str] = "pictures, tables or tokens in a NumPy archive"
    example: ClassVar[str] = "npz:FILE?inputs=KEY&label=KEY&attribute=KEY&user=KEY&member=KEY"

    inputs: str
    scale: Literal["none", "standard"] = "none"
    tokens: bool = False
    task: Literal["classification", "regression"] | None = None

    def load(self) -> Records:
        """Read the arrays."""
        label = named_label(self.label, "KEY", self.source)
        columns = (label, *self.attribute, self.user, self.member)
        archive = read_arrays(Path(self.source), (self.inputs, *filter(None, columns)))
        inputs = self._inputs(archive)
        records = len(inputs.array)
        for key in archive.names(filter(None, columns)):
            expect_length(len(np.atleast_1d(archive[key])), records, archive.origin(key))
        used = (*archive.arrays, "class_names")
        return self.described(archive, inputs, self._labels(archive, label), used)

    def _labels(self, archive: Archive, key: str) -> Labels:
        names = archive.names_of(key) or archive.names_of("class")
        return labels_of_array(archive[key], archive.origin(key), names, self.task)

    def _inputs(self, archive: Archive) -> Inputs:
        origin, raw = archive.origin(self.inputs), archive[self.inputs]
        if self.size:
            raise UsageError(f"{origin}: size= is for files of pictures; store them in that size")
        if self.scale == "standard" and self.normalize:
            raise UsageError(f"{origin}: {NOT_A_TABLE}")
        array = as_inputs(raw, origin, tokens=self.tokens)
        if self.normalize is not None:
            return self.normal(array, origin, scaled(raw))
        inputs = table_of(array, self.scale, origin, archive.names_of(self.inputs))
        return inputs if self.tokens else replace(inputs, notes=scaled(raw, inputs.notes))
