"""Pictures and texts that attacks wrote beside the originals, where they are asked for."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from gradaudit.measurement import text_of
from gradaudit.report import Report

MOST_EXAMPLES = 8
"""Most pictures, and most files of texts, of a page."""
MOST_TEXTS = 16
"""Most texts of a file."""
MOST_BYTES = 100_000
MOST_TEXT_BYTES = 1 << 20
_NAME = r"[a-z][a-z0-9-]*-\d\d"
_PNG = b"\x89PNG\r\n\x1a\n"
_ORIGINALS = "originals beside what an attacker rebuilt"
_SHOWN = {
    "attack table": "a line for each record and a square for each column: green is right, red is "
    "wrong, and the fuller the colour, the surer the attacker is; a black bar marks certified rows"
}

Pieces = tuple[tuple[str, Literal["right", "elsewhere", "wrong"]], ...]
"""A text in pieces, each with whether the other of two texts has it in order, or the batch has."""


class RebuiltText(BaseModel):
    """A text beside what an attacker rebuilt; the original is empty where nobody knows it."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    original: Pieces
    rebuilt: Pieces


class RebuiltTexts(BaseModel):
    """The texts behind one update beside what an attacker rebuilt.

    Attributes:
        private: says that the file holds private data.
        note: what a reader must know of the words.
        texts: of the update.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    private: str
    note: str
    texts: tuple[RebuiltText, ...]

    @property
    def shown(self) -> tuple[RebuiltText, ...]:
        """Return the first texts, as many as the page shows."""
        return self.texts[:MOST_TEXTS]


class Picture(NamedTuple):
    """A picture's name, its ``data:`` address, and what it shows."""

    name: str
    address: str
    shows: str


def pictures_of(report: Report) -> Iterator[Picture]:
    """Yields each picture that is still where the report says.

    A report names any folder it likes: only small PNG files, named as reconstructions are, are
    taken.
    """
    for audit, path in _files(report, "png", MOST_BYTES):
        content = path.read_bytes()
        if content.startswith(_PNG):
            address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            yield Picture(path.stem, address, _SHOWN.get(audit, _ORIGINALS))


def texts_of(report: Report) -> Iterator[tuple[str, RebuiltTexts]]:
    """Yields name and texts of each file of rebuilt texts that is still where the report says.

    Only small JSON files that are named and made as such are taken.
    """
    for _, path in _files(report, "json", MOST_TEXT_BYTES):
        try:
            yield path.stem, RebuiltTexts.model_validate_json(path.read_bytes(), strict=True)
        except ValidationError:
            continue


def _files(report: Report, suffix: str, most: int) -> Iterator[tuple[str, Path]]:
    """Yields the first files that are named as examples are, and are no larger than ``most``.

    With each goes the audit that wrote it.
    """
    files = [
        (audit, path)
        for folder, audit in _folders(report).items()
        for path in sorted(folder.glob(f"*.{suffix}"))
        if re.fullmatch(_NAME, path.stem)
    ]
    for audit, path in files[:MOST_EXAMPLES]:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= most:
            yield audit, path


def _folders(report: Report) -> dict[Path, str]:
    """Returns the folders that attacks wrote examples to, each with the audit."""
    named = {text_of(given.get("save_examples")): name for name, given in report.options.items()}
    return {Path(name): audit for name, audit in named.items() if name and Path(name).is_dir()}
