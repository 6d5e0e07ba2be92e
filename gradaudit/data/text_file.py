"""Texts in tables, as tokens of hashed words or of a tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import JsonValue

from gradaudit.data.common.checks import expect_to_fit
from gradaudit.data.common.roles import Labels, in_order, labels_of, named_label
from gradaudit.data.common.table_columns import Inputs
from gradaudit.data.common.tables import TextTable, read_table
from gradaudit.data.common.tabular import DescribedRecords
from gradaudit.data.common.tokenizing import (
    TOKEN_BYTES,
    Hashing,
    Pretrained,
    Tokenizer,
    Tokens,
    hidden_tokens,
    next_tokens,
    packed_tokens,
    parts_of,
)
from gradaudit.data.hf_datasets import open_folder
from gradaudit.data.records import Records, SpelledTexts
from gradaudit.errors import UsageError

_LENGTH = 128


@dataclass(frozen=True, kw_only=True)
class TextFile(DescribedRecords):
    """A column of texts in a table, as tokens.

    The table is a CSV file or one of JSON lines, plain or compressed by gzip, a Parquet or Arrow
    file, or a folder that ``datasets`` wrote by ``save_to_disk``.

    With a model ``hf:DIR`` they are those of the folder's tokenizer, and the model gets a mask of
    the padding with them. Else each word in lower case has the token 1 + CRC-32 mod (vocabulary −
    1), so a model trained on another part of the data knows the same tokens; 0 is padding at the
    end.

    Labels are those of the model's task: a column, or the text's own tokens. Next tokens are told
    at every position but a text's last; of masked ones 15 % are drawn, always the same, of which
    80 % are masked, 10 % become any token and 10 % stay.

    Attributes:
        text: column of the texts.
        length: tokens of a record; longer texts are cut. 128, or as many as the model takes.
        vocabulary: number of different hashed words, the padding included.
        tokenizer: folder of a tokenizer, where it is not the model's own.
        task: whether the label is a class, a number, or the next or a masked token; told by the
            model, or the label's values, if not said.
        split: which of a folder's; ``test`` where none is named.
    """

    name: ClassVar[str] = "text"
    summary: ClassVar[str] = "texts in a column of a table, as tokens"
    example: ClassVar[str] = "text:FILE?text=COL&label=COL&attribute=COL&length=128"

    text: str
    length: int | None = None
    vocabulary: int = 10_000
    tokenizer: str | None = None
    task: Literal["classification", "regression", "next-token", "masked-token"] | None = None
    split: str | None = None

    def load(self) -> Records:
        """Read and tokenise the texts."""
        if self._length < 1 or self.vocabulary < 2:
            raise UsageError(f"text:{self.source}: length is at least 1 and vocabulary at least 2")
        table, classes, read = self._table()
        tokens, labels = self._with_labels(self._tokens(table), table)
        notes = {**read, "length": self._length, **self._tokenizer.notes()}
        inputs = Inputs(packed_tokens(tokens) if self.reading else tokens.ids, notes=notes)
        records = self.described(table, inputs, labels, used=[self.text])
        records = replace(records, spelling=self.spelled)
        if classes and records.classes:
            records = in_order(records, classes, self.source)
        return self._for_model(records) if self.reading else records

    def spelled(self, texts: Sequence[Sequence[int]]) -> SpelledTexts:
        """Spells texts of tokens in words; the words of hashed ones are read again.

        Raises:
            UsageError: the tokenizer or the table cannot be read any more.
        """

        def read() -> Iterator[str]:
            table, _, _ = self._table()
            return iter(table.texts(self.text))

        return self._tokenizer.spelled(texts, read)

    def _table(self) -> tuple[TextTable, tuple[str, ...], dict[str, JsonValue]]:
        """The table, the order of the label's classes where the file has one, and notes."""
        path = Path(self.source).expanduser()
        if path.is_dir():
            saved = open_folder(path, self.split)
            table = saved.read()
            return table, saved.class_names(table, self.label), saved.notes
        if self.split is not None:
            raise UsageError(f"text:{self.source}: has no splits; leave out split=")
        return read_table(path), (), {}

    def _for_model(self, records: Records) -> Records:
        """Separate tokens and mask for the model, with its own order of classes."""
        assert self.reading is not None
        records = replace(records, parts=parts_of(self._length))
        if records.classes and set(records.classes) <= set(self.reading.classes):
            return in_order(records, self.reading.classes, self.source)
        return records

    @property
    def _length(self) -> int:
        most = self.reading.positions if self.reading else None
        if self.length is None:
            return min(_LENGTH, most or _LENGTH)
        if most is not None and self.length > most:
            raise UsageError(
                f"text:{self.source}: length={self.length} is beyond the {most} positions of the "
                f"model; say length={most} or less"
            )
        return self.length

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """The tokenizer that is named, else the model's, else one that hashes words."""
        if self.tokenizer is not None:
            return Pretrained(Path(self.tokenizer).expanduser())
        return Pretrained(self.reading.tokenizer) if self.reading else Hashing(self.vocabulary)

    def _tokens(self, table: TextTable) -> Tokens:
        texts = table.texts(self.text)
        padding = self.reading.padding if self.reading else None
        expect_to_fit((len(texts), self._length), table.file, TOKEN_BYTES)
        tokens = self._tokenizer.tokens(texts, self._length, padding)
        if self.reading:
            self._expect_embeddings(tokens, self.reading.vocabulary)
        return tokens

    def _expect_embeddings(self, tokens: Tokens, known: int) -> None:
        """Refuse tokens or padding for which the model has no embedding, with a UsageError."""
        largest = int(tokens.ids[tokens.present].max(initial=0))
        if largest >= known:
            raise UsageError(
                f"text:{self.source}: the tokenizer gives tokens up to {largest:,}, and the model "
                f"has embeddings of {known:,}; name the tokenizer that it was trained with, by "
                "tokenizer=DIR"
            )
        if (filling := int(tokens.ids.max())) >= known:
            raise UsageError(
                f"text:{self.source}: shorter texts are filled with the token {filling:,}, and the "
                f"model has embeddings of {known:,}; set pad_token_id in the model's config.json"
            )

    def _with_labels(self, tokens: Tokens, table: TextTable) -> tuple[Tokens, Labels]:
        """Returns the tokens as the model gets them, and the labels that it predicts."""
        task = self.task or (self.reading.task if self.reading else None)
        if task != "next-token" and task != "masked-token":
            label = named_label(self.label, "COL", f"text:{self.source}")
            return tokens, labels_of(table.column(label), task)
        if self.label is not None:
            raise UsageError(
                f"text:{self.source}: label={self.label}: the model predicts tokens, which are the "
                "labels; leave it out (a private attribute is named by attribute=)"
            )
        if task == "next-token":
            return tokens, Labels(next_tokens(tokens), (), self.source)
        if (mask := self._tokenizer.mask) is None:
            raise UsageError(
                f"text:{self.source}: the tokenizer has no token for a masked one; name another "
                "by tokenizer=DIR, or say task=next-token"
            )
        hidden, labels = hidden_tokens(tokens, mask, self._tokenizer.vocabulary)
        return hidden, Labels(labels, (), self.source)
