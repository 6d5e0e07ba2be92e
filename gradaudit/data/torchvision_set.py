"""Data sets of torchvision that are already on the disk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import isclass, signature
from pathlib import Path
from typing import Any, ClassVar

from gradaudit.core.text import first_line
from gradaudit.core.user_code import import_torchvision
from gradaudit.data.common.checks import choose
from gradaudit.data.common.picture_files import PictureAdapter
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TorchvisionSet(PictureAdapter):
    """A torchvision data set of pictures with one class each; nothing is ever downloaded.

    Attributes:
        root: the folder that holds the data set.
        split: ``train``, ``test`` or what else the data set calls its parts; ``test`` where the
            data set has parts and none is named.
    """

    name: ClassVar[str] = "torchvision"
    summary: ClassVar[str] = "a data set of torchvision, from the disk"
    example: ClassVar[str] = "torchvision:NAME?root=DIR&split=test&size=32x32"

    root: str
    split: str | None = None

    def load(self) -> Records:
        """Read the pictures of the data set."""
        kind = self._kind()
        root = Path(self.root).expanduser()
        part = self._part(signature(kind).parameters)
        try:
            pictures = kind(root, **part)
        except Exception as error:  # each data set has its own way to miss its files
            fetch = ""
            if "download" in str(error) and "download" in signature(kind).parameters:
                fetch = (
                    "; nothing is downloaded here, fetch it with "
                    f"torchvision.datasets.{self.source}({str(root)!r}, download=True)"
                )
            raise UsageError(
                f"torchvision:{self.source}: cannot be read from {root} "
                f"({first_line(error)}){fetch}"
            ) from error
        records = records_of(pictures, f"torchvision:{self.source}", prepare=self.prepared)
        read = part.get("split", "train" if part.get("train") else "test")
        named = {"split": read} if {"train", "split"} & part.keys() else {}
        return replace(records, notes={**records.notes, **named})

    def _kind(self) -> Any:
        module = import_torchvision("datasets")
        every = {name: getattr(module, name) for name in module.__all__}
        kinds = {
            name: kind
            for name, kind in every.items()
            if isclass(kind) and {"root", "transform"} <= set(signature(kind).parameters)
        }
        return kinds[choose(self.source, kinds, "torchvision", "data set")]

    def _part(self, parameters: Mapping[str, object]) -> dict[str, Any]:
        """The arguments that choose the part, and that nothing be downloaded."""
        keep = {"download": False} if "download" in parameters else {}
        if "train" in parameters:
            if self.split not in (None, "train", "test"):
                raise UsageError(
                    f"torchvision:{self.source}: split={self.split} is not one of train, test"
                )
            return {**keep, "train": self.split == "train"}
        if "split" in parameters:
            return {**keep, "split": self.split or "test"}
        if self.split is not None:
            raise UsageError(f"torchvision:{self.source}: has no parts; leave out split=")
        return keep
