"""Writes the texts that were recovered from each update beside the originals."""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from gradaudit.audits.attack_text.recovery.recover import Answer
from gradaudit.audits.attack_text.text_scores import Text, assigned
from gradaudit.core.files import write_atomically
from gradaudit.data.records import SpelledTexts, Spelling

PRIVATE = "private data: these texts show records, as --save-examples asked for"
Marked = tuple[str, Literal["right", "elsewhere", "wrong"]]
_NO_WORDS = "the data know no words of these tokens, which stand as their numbers"


@dataclass(frozen=True)
class TextExamples:
    """The files of originals beside recovered texts, one for each update.

    Attributes:
        folder: exists.
        name: of the files, before the number of the update.
        spelling: what spells tokens in words; None shows their numbers.
    """

    folder: Path
    name: str
    spelling: Spelling | None

    def write(self, answers: Sequence[Answer], truth: Sequence[Sequence[Text]]) -> None:
        """Write ``NAME-01.json``, …: of each text its pieces, and whether each is right.

        A piece of a recovered text is right where it stands in its original, in the same order,
        "elsewhere" where another place of the batch has it, else "wrong"; one of an original is
        right where it was recovered. The texts are matched by an optimal assignment.

        Args:
            answers: to each update.
            truth: the texts behind each update; empty where nobody knows them.

        Raises:
            UsageError: the words cannot be read, or the folder cannot be written to.
        """
        updates = [
            [(text, found) for text, found, _ in assigned(answer.texts, truth[number])]
            if truth
            else [((), found) for found in answer.texts]
            for number, answer in enumerate(answers)
        ]
        ids = [text for update in updates for pair in update for text in pair]
        texts, note = self.spelling(ids) if self.spelling else _numbers(ids)
        words = iter(texts)
        for number, update in enumerate(updates, start=1):
            content = {"private": PRIVATE, "note": note, "texts": _marked_all(update, words)}
            path = self.folder / f"{self.name}-{number:02d}.json"
            write_atomically(path, json.dumps(content, ensure_ascii=False), private=True)


def _marked_all(
    update: Sequence[tuple[Text, Text]], words: Iterator[Sequence[str]]
) -> list[dict[str, list[Marked]]]:
    """Mark each original and what was recovered; where nobody knows originals all is right."""
    true = {token for text, _ in update for token in text}
    named = {token for _, found in update for token in found}
    return [
        {
            "original": _marked(text, found, next(words), named),
            "rebuilt": _marked(found, text if true else found, next(words), true),
        }
        for text, found in update
    ]


def _marked(text: Text, other: Text, words: Sequence[str], others: Set[int]) -> list[Marked]:
    """Pair each piece of a text with where its token stands in the other: in order, or elsewhere.

    Args:
        text: an original, or what was recovered.
        other: its answer, or its original.
        words: the text's pieces.
        others: all tokens of the other side.
    """
    blocks = SequenceMatcher(None, text, other, autojunk=False).get_matching_blocks()
    right = {block.a + k for block in blocks for k in range(block.size)}
    return [
        (word, "right" if k in right else "elsewhere" if token in others else "wrong")
        for k, (token, word) in enumerate(zip(text, words, strict=True))
    ]


def _numbers(ids: Sequence[Text]) -> SpelledTexts:
    return SpelledTexts(
        [[f"{' ' * (k > 0)}{x}" for k, x in enumerate(text)] for text in ids], _NO_WORDS
    )
