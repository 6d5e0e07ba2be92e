"""Texts as tokens: by hashing words, or with the tokenizer that a folder holds."""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.common.checks import expect_to_fit
from gradaudit.errors import UsageError
from gradaudit.huggingface import library, reason, settings_of

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_TOKEN_BYTES = 8
_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "bpe.codes", "vocab.bpe", "tekken.json"),
)
"""Files of which a tokenizer is made; without one the library makes an empty one."""
_REMEDY = "save one there with save_pretrained, or name its folder by tokenizer=DIR in --data"


@dataclass(frozen=True)
class Tokens:
    """Tokens of texts, and which of them are of the text: (records, length) each.

    The rest, at the end, is padding. ``special`` are those of the text that stand for no part of
    it, such as its beginning and its end. ``types`` says of a pair's tokens, 0 or 1, which of the
    two texts they are of, where the tokenizer does.
    """

    ids: NDArray[np.int64]
    present: NDArray[np.bool_]
    special: NDArray[np.bool_]
    types: NDArray[np.int64] | None = None


class Tokenizer(ABC):
    """A way to make tokens of texts."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many different tokens there are; all are below it."""

    @property
    @abstractmethod
    def mask(self) -> int | None:
        """The token that stands for a hidden one."""

    @abstractmethod
    def notes(self) -> dict[str, JsonValue]:
        """The report's notes on the tokenizer."""

    @abstractmethod
    def tokens(
        self,
        texts: Sequence[str],
        length: int,
        padding: int | None = None,
        seconds: Sequence[str] | None = None,
    ) -> Tokens:
        """The first tokens of each text, padded at the end with a token, or one of its own.

        With ``seconds``, each text and its second are a pair, of which the longer is cut first.

        Raises:
            UsageError: the tokenizer takes no pairs, or cannot be read.
        """


@dataclass(frozen=True)
class Hashing(Tokenizer):
    """A word is the same token in every data set, and needs no file.

    A word is a run of letters and digits, with apostrophes inside, in lower case; its token is
    1 + (CRC-32 of its UTF-8) mod (vocabulary − 1); the vocabulary, at least 2, has the padding, 0.
    """

    size: int

    @property
    def vocabulary(self) -> int:
        """The vocabulary size that was given."""
        return self.size

    @property
    def mask(self) -> None:
        """There is none."""

    def notes(self) -> dict[str, JsonValue]:
        """The size of the vocabulary."""
        return {"vocabulary": self.size}

    def tokens(
        self,
        texts: Sequence[str],
        length: int,
        padding: int | None = None,
        seconds: Sequence[str] | None = None,
    ) -> Tokens:
        """Hashed words of single texts."""
        if seconds is not None:
            raise UsageError(
                "two columns of texts are a pair of a tokenizer's; name its folder by "
                "tokenizer=DIR in --data (hashed words are of one column)"
            )
        rows = [self._of(text, length) for text in texts]
        return _padded(rows, length, padding or 0, frozenset())

    def _of(self, text: str, length: int) -> list[int]:
        words = [match.group() for match in islice(_WORD.finditer(text.lower()), length)]
        return [1 + zlib.crc32(word.encode()) % (self.size - 1) for word in words]


@dataclass(frozen=True)
class Pretrained(Tokenizer):
    """The tokenizer in a folder that ``save_pretrained`` wrote."""

    folder: Path

    @cached_property
    def _library(self) -> Any:
        if not any((self.folder / name).is_file() for name in _VOCABULARIES):
            raise UsageError(f"{self.folder}: holds no tokenizer ({_VOCABULARIES[0]}); {_REMEDY}")
        if (self.folder / _SETTINGS).exists():
            settings_of(self.folder, _SETTINGS)
        try:
            return library("transformers").AutoTokenizer.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # whatever the library makes of a file that it did not write
            raise UsageError(
                f"{self.folder}: its tokenizer cannot be read ({reason(error)}); {_REMEDY}"
            ) from error

    @property
    def vocabulary(self) -> int:
        """With the tokens that were added."""
        return len(self._library)

    @property
    def mask(self) -> int | None:
        """Its own."""
        token: int | None = self._library.mask_token_id
        return token

    def notes(self) -> dict[str, JsonValue]:
        """Its kind and the folder's name."""
        kind = type(self._library).__name__
        return {"tokenizer": f"{kind} of {self.folder.name}", "vocabulary": self.vocabulary}

    def tokens(
        self,
        texts: Sequence[str],
        length: int,
        padding: int | None = None,
        seconds: Sequence[str] | None = None,
    ) -> Tokens:
        """With special tokens where it puts them; padded with its own padding, or its end."""
        pair = [list(part) for part in (texts, seconds) if part is not None]
        made = self._library(*pair, truncation=True, max_length=length)
        special = self._library.pad_token_id, self._library.eos_token_id, 0
        filling = next(token for token in (padding, *special) if token is not None)
        tokens = _padded(
            made["input_ids"], length, filling, frozenset(self._library.all_special_ids)
        )
        if seconds is None or "token_type_ids" not in made:
            return tokens
        return replace(tokens, types=_padded(made["token_type_ids"], length, 0, frozenset()).ids)


def _padded(
    rows: Sequence[Sequence[int]], length: int, padding: int, special: frozenset[int]
) -> Tokens:
    ids = np.full((len(rows), length), padding, dtype=np.int64)
    present = np.zeros((len(rows), length), dtype=bool)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = row
        present[k, : len(row)] = True
    return Tokens(ids, present, present & np.isin(ids, list(special)))


def tokens_of(
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    length: int,
    origin: str,
    padding: int | None = None,
) -> Tokens:
    """The first tokens of each text, or of each pair where there are two columns of texts.

    Raises:
        UsageError: the tokenizer takes no pairs.
        DataError: they would take too much memory.
    """
    expect_to_fit((len(texts[0]), length), origin, _TOKEN_BYTES)
    return tokenizer.tokens(texts[0], length, padding, *texts[1:])
