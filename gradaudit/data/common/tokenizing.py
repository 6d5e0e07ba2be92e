"""Tokens of texts, and what a model's task makes of them."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core import contained
from gradaudit.core.contained import ContainedError
from gradaudit.core.huggingface import library, reason, settings_of
from gradaudit.core.randomness import rng
from gradaudit.data.common.packing import InputPart
from gradaudit.data.records import IGNORED, SpelledTexts
from gradaudit.errors import UsageError

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
TOKEN_BYTES = 8
"""Bytes of a token in memory."""
_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "bpe.codes", "vocab.bpe", "tekken.json"),
)
"""Files of which a tokenizer is made; without one the library makes an empty one."""
_CHARACTERS_A_SECOND = 100_000
"""How many of texts are made tokens in a second at least, by tokenizers in plain Python too."""
_CHARACTER_BYTES, _ENCODED_BYTES = 16, 512
"""Memory that a character and a token take at most while tokens are made."""
_MOST_FREQUENT = (
    "several of the data's words share a hashed token: the most frequent of them is shown"
)
_HALF = "\ufffd"
"""What stands for a character of which only some bytes are there."""
_REMEDY = "save one there with save_pretrained, or name its folder by tokenizer=DIR in --data"


_HIDDEN = 0.15
_REPLACED, _KEPT = 0.8, 0.1


@dataclass(frozen=True)
class Tokens:
    """Tokens of texts, and which of them are of the text: (records, length) each.

    The rest, at the end, is padding. ``special`` are those of the text that stand for no part of
    it, such as its beginning and its end.
    """

    ids: NDArray[np.int64]
    present: NDArray[np.bool_]
    special: NDArray[np.bool_]


@dataclass(frozen=True)
class Hashing:
    """A word is the same token in every data set, and needs no file.

    A word is a run of letters and digits, with apostrophes inside, in lower case; its token is
    1 + (CRC-32 of its UTF-8) mod (vocabulary − 1); the vocabulary, at least 2, has the padding, 0.
    """

    vocabulary: int
    mask: ClassVar[None] = None

    def notes(self) -> dict[str, JsonValue]:
        """The size of the vocabulary."""
        return {"vocabulary": self.vocabulary}

    def tokens(self, texts: Sequence[str], length: int, padding: int | None = None) -> Tokens:
        """Hashed words of texts, padded at the end with a token, or 0."""
        words = (islice(_words(text), length) for text in texts)
        rows = [list(map(self._token, of_text)) for of_text in words]
        return _padded(rows, length, padding or 0, frozenset())

    def spelled(
        self, texts: Sequence[Sequence[int]], read: Callable[[], Iterable[str]]
    ) -> SpelledTexts:
        """Spells a token as the most frequent of the data's words that hash to it, else as ``#17``.

        Args:
            texts: the tokens of each.
            read: reads the data's texts again.
        """
        counted = Counter(word for text in read() for word in _words(text))
        words: dict[int, list[str]] = {}
        for word, _ in counted.most_common():
            words.setdefault(self._token(word), []).append(word)
        wanted = {token for text in texts for token in text}
        shared = any(len(words.get(token, ())) > 1 for token in wanted)
        pieces = {token: words.get(token, [f"#{token}"])[0] for token in wanted}
        spaced = [[f"{' ' * (k > 0)}{pieces[x]}" for k, x in enumerate(text)] for text in texts]
        return SpelledTexts(spaced, _MOST_FREQUENT if shared else "")

    def _token(self, word: str) -> int:
        return 1 + zlib.crc32(word.encode()) % (self.vocabulary - 1)


def _words(text: str) -> Iterator[str]:
    return (match.group() for match in _WORD.finditer(text.lower()))


@dataclass(frozen=True)
class Pretrained:
    """The tokenizer in a folder that ``save_pretrained`` wrote."""

    folder: Path

    def tokens(self, texts: Sequence[str], length: int, padding: int | None = None) -> Tokens:
        """Returns tokens with the special ones, padded with a token, or one of the tokenizer's own.

        Raises:
            UsageError: the tokenizer cannot be read.
        """
        tokens, vars(self)["_facts"] = self._read(list(texts), length, padding)
        return tokens

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, those that were added among them."""
        return self._facts.vocabulary

    @property
    def mask(self) -> int | None:
        """The tokenizer's own token for a masked one; None without any."""
        return self._facts.mask

    def notes(self) -> dict[str, JsonValue]:
        """Returns the report's notes: the tokenizer's kind and its folder's name."""
        facts = self._facts
        kind = f"{facts.kind} of {self.folder.name}"
        return {"tokenizer": kind, "vocabulary": facts.vocabulary}

    @cached_property
    def _facts(self) -> "_Facts":
        return self._read([""], 1, None)[1]

    def spelled(
        self, texts: Sequence[Sequence[int]], read: Callable[[], Iterable[str]]
    ) -> SpelledTexts:
        """Decodes the tokens as the tokenizer does; a UsageError where it cannot be read."""
        return SpelledTexts(
            self._contained(lambda: _decoded(self.folder, texts), 0, sum(map(len, texts)))
        )

    def _read(self, texts: list[str], length: int, padding: int | None) -> tuple[Tokens, "_Facts"]:
        """Read the folder and make tokens."""
        characters = sum(map(len, texts))
        most = min(characters, len(texts) * length)
        tokens, facts = self._contained(
            lambda: _made(self.folder, texts, length, padding), characters, most
        )
        return Tokens(**tokens), _Facts(**facts)

    def _contained(self, work: Callable[[], Any], characters: int, tokens: int) -> Any:
        """Work with the folder's tokenizer in a process of its own, limited by what it handles."""
        if not any((self.folder / name).is_file() for name in _VOCABULARIES):
            raise UsageError(f"{self.folder}: holds no tokenizer ({_VOCABULARIES[0]}); {_REMEDY}")
        if (self.folder / _SETTINGS).exists():
            settings_of(self.folder, _SETTINGS)
        library("transformers")
        try:
            return contained.read(
                work,
                seconds=characters / _CHARACTERS_A_SECOND,
                memory=characters * _CHARACTER_BYTES + tokens * _ENCODED_BYTES,
                output=contained.FILE_BYTES + _ENCODED_BYTES * (characters + tokens),
            )
        except ContainedError as error:
            raise UsageError(
                f"{self.folder}: its tokenizer cannot be used ({reason(error)}); {_REMEDY}"
            ) from error


@dataclass(frozen=True)
class _Facts:
    """Facts about a tokenizer that are kept without the tokenizer itself."""

    kind: str
    vocabulary: int
    mask: int | None


Tokenizer = Hashing | Pretrained
"""A tokenizer: it encodes texts as tokens and spells tokens as words."""


def _made(
    folder: Path, texts: list[str], length: int, padding: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a folder's tokenizer and makes tokens of texts."""
    tokenizer = _opened(folder)
    facts = _Facts(type(tokenizer).__name__, len(tokenizer), tokenizer.mask_token_id)
    made = tokenizer(texts, truncation=True, max_length=length)
    given = padding, tokenizer.pad_token_id, tokenizer.eos_token_id, 0
    filling = next(token for token in given if token is not None)
    tokens = _padded(made["input_ids"], length, filling, frozenset(tokenizer.all_special_ids))
    return vars(tokens), vars(facts)


def _opened(folder: Path) -> Any:
    return library("transformers").AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )


def _decoded(folder: Path, texts: Sequence[Sequence[int]]) -> list[list[str]]:
    """Decodes each token of each text: what it adds to the text of the tokens before it."""
    tokenizer = _opened(folder)
    return [_pieces(tokenizer, text) for text in texts]


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Decodes ever more tokens; one that ends within a character adds nothing until it is whole."""
    pieces, before = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
        whole = end == len(ids) or not text.endswith(_HALF)
        pieces.append(text[len(before) :] if whole else "")
        before = text if whole else before
    return pieces


def _padded(
    rows: Sequence[Sequence[int]], length: int, padding: int, special: frozenset[int]
) -> Tokens:
    ids = np.full((len(rows), length), padding, dtype=np.int64)
    present = np.zeros((len(rows), length), dtype=bool)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = row
        present[k, : len(row)] = True
    return Tokens(ids, present, present & np.isin(ids, list(special)))


ReadingTask = Literal["next-token", "masked-token", "classification"]


@dataclass(frozen=True)
class TextModel:
    """The declared properties of a model that reads texts.

    Attributes:
        tokenizer: the folder of its tokenizer.
        task: what it was made to predict.
        vocabulary: tokens that it has embeddings of.
        positions: tokens of a text that it can take; None without a limit.
        padding: the token that it takes for none.
        classes: names of the classes that it distinguishes, where it names them.
    """

    tokenizer: Path
    task: ReadingTask
    vocabulary: int
    positions: int | None = None
    padding: int | None = None
    classes: tuple[str, ...] = ()


def parts_of(length: int) -> tuple[InputPart, ...]:
    """Arguments of transformers' models: tokens, and a mask, 1 where they are of the text."""
    return tuple(InputPart(name, (length,), "tokens") for name in ("input_ids", "attention_mask"))


def packed_tokens(tokens: Tokens) -> NDArray[np.int64]:
    """(records, 2 · length), as ``parts_of`` takes it apart."""
    return np.concatenate([tokens.ids, tokens.present.astype(np.int64)], axis=1)


def next_tokens(tokens: Tokens) -> NDArray[np.int64]:
    """The token that follows at each position, (records, length); ``IGNORED`` where none does."""
    labels = np.full_like(tokens.ids, IGNORED)
    labels[:, :-1] = np.where(tokens.present[:, 1:], tokens.ids[:, 1:], IGNORED)
    return labels


def hidden_tokens(
    tokens: Tokens, mask: int, vocabulary: int, seed: int = 0
) -> tuple[Tokens, NDArray[np.int64]]:
    """Tokens of which some are hidden, and what these were, ``IGNORED`` elsewhere.

    Of each text 15 % of the tokens that are not special, at least one, are drawn; of these 80 %
    become ``mask``, 10 % any token, and 10 % stay (J. Devlin et al., "BERT", 2019, section 3.1).
    """
    draws = rng(seed, "masked-token")
    free = tokens.present & ~tokens.special
    order = np.where(free, draws.random(free.shape), np.inf).argsort(axis=1).argsort(axis=1)
    many = np.where(free.any(axis=1), np.maximum(1, np.round(_HIDDEN * free.sum(axis=1))), 0)
    drawn = order < many[:, None]
    fate = draws.random(free.shape)
    others = draws.integers(0, vocabulary, free.shape)
    ids = np.where(drawn & (fate < _REPLACED), mask, tokens.ids)
    ids = np.where(drawn & (fate >= _REPLACED + _KEPT), others, ids)
    return replace(tokens, ids=ids), np.where(drawn, tokens.ids, IGNORED)
