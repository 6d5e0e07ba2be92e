"""Text as tokens by hashing its words: the same word is the same token in every data set."""

import re
import zlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.common.checks import expect_to_fit

PADDING = 0

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_TOKEN_BYTES = 8


def tokens_of(texts: Sequence[str], length: int, vocabulary: int, origin: str) -> NDArray[np.int64]:
    """The first words of each text as tokens, padded with 0 at the end.

    A word is a run of letters and digits, with apostrophes inside, in lower case; its token is
    1 + (CRC-32 of its UTF-8) mod (vocabulary − 1).

    Args:
        texts: one a record.
        length: tokens a record.
        vocabulary: number of tokens with the padding, at least 2.
        origin: where the texts are from, for messages.

    Returns:
        (records, length) tokens below ``vocabulary``.

    Raises:
        DataError: the tokens would take too much memory.
    """
    expect_to_fit((len(texts), length), origin, _TOKEN_BYTES)
    tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        words = [match.group() for match in islice(_WORD.finditer(text.lower()), length)]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
    return tokens
