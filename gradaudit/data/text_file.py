"""Texts in CSV files, as tokens by hashing: a word is the same token in every data set."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.checks import choose, expect_to_fit
from gradaudit.data.common.columns import Inputs
from gradaudit.data.common.roles import assemble, labels_of
from gradaudit.data.common.tables import read_table
from gradaudit.data.records import Records
from gradaudit.errors import UsageError

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_TOKEN_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class TextFile(DataAdapter):
    """A column of texts in a CSV file, plain or compressed by gzip, as hashed words.

    Each word in lower case has the token 1 + CRC-32 mod (vocabulary − 1), so a model trained on
    another part of the data knows the same tokens; 0 is padding at the end.

    Attributes:
        text: column of the texts.
        label: column of the task's label.
        attribute: columns of private attributes; a quantity is split in halves at its median.
        user: column that says whose record it is.
        member: column that says whether a record was trained on.
        length: tokens of a record; longer texts are cut.
        vocabulary: number of different tokens, the padding included.
        task: whether the label is a class or a number; told by its values if not said.
    """

    name: ClassVar[str] = "text"
    summary: ClassVar[str] = "texts in a column of a CSV file, as hashed words"
    example: ClassVar[str] = "text:FILE.csv?text=COL&label=COL&attribute=COL&length=128"

    text: str
    label: str
    attribute: tuple[str, ...] = ()
    user: str | None = None
    member: str | None = None
    length: int = 128
    vocabulary: int = 10_000
    task: Literal["classification", "regression"] | None = None

    def load(self) -> Records:
        """Read and tokenise the texts."""
        if self.length < 1 or self.vocabulary < 2:
            raise UsageError(f"text:{self.source}: length is at least 1 and vocabulary at least 2")
        table = read_table(Path(self.source))
        texts = table.cells[choose(self.text, table.cells, table.file, "column")]
        tokens = tokens_of(texts, self.length, self.vocabulary, table.file)
        return assemble(
            Inputs(tokens, notes={"length": self.length, "vocabulary": self.vocabulary}),
            labels_of(table.column(self.label), self.task),
            table.columns(self.attribute),
            user=table.column_if(self.user),
            member=table.column_if(self.member),
        )


def tokens_of(texts: Sequence[str], length: int, vocabulary: int, origin: str) -> NDArray[np.int64]:
    """The first words of each text as tokens, padded with 0 at the end.

    A word is a run of letters and digits, with apostrophes inside, in lower case; its token is
    1 + (CRC-32 of its UTF-8) mod (vocabulary − 1); the vocabulary, at least 2, has the padding.

    Returns:
        (records, length) tokens below ``vocabulary``.

    Raises:
        DataError: the tokens would take too much memory.
    """
    expect_to_fit((len(texts), length), origin, _TOKEN_BYTES)
    tokens = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        words = [match.group() for match in islice(_WORD.finditer(text.lower()), length)]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
    return tokens
