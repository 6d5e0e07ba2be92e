"""How a model reads texts: what its task makes of their tokens."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.common.packing import InputPart
from gradaudit.data.common.tokens import Tokens
from gradaudit.data.records import IGNORED
from gradaudit.randomness import rng

ReadingTask = Literal["next-token", "masked-token", "classification"]

_HIDDEN = 0.15
_REPLACED, _KEPT = 0.8, 0.1


@dataclass(frozen=True)
class TextModel:
    """The declared properties of a model that reads texts.

    Attributes:
        tokenizer: the folder of its tokenizer.
        task: what it was made to tell.
        vocabulary: tokens that it has embeddings of.
        positions: tokens of a text that it can take; None without a limit.
        padding: the token that it takes for none.
        classes: names of the classes that it tells apart, where it names them.
        types: whether it takes which of a pair's texts a token is of.
    """

    tokenizer: Path
    task: ReadingTask
    vocabulary: int
    positions: int | None = None
    padding: int | None = None
    classes: tuple[str, ...] = ()
    types: bool = False


def parts_of(length: int, *, types: bool = False) -> tuple[InputPart, ...]:
    """Arguments of transformers' models: tokens, a mask, 1 where they are of the text; types."""
    names = ("input_ids", "attention_mask", *(("token_type_ids",) if types else ()))
    return tuple(InputPart(name, (length,), "tokens") for name in names)


def packed_tokens(tokens: Tokens) -> NDArray[np.int64]:
    """(records, 2 · length), or 3 · length with types, as ``parts_of`` takes it apart."""
    types = [] if tokens.types is None else [tokens.types]
    return np.concatenate([tokens.ids, tokens.present.astype(np.int64), *types], axis=1)


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
