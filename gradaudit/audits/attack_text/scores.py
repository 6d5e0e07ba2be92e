"""How much of a batch's texts an answer holds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

Text = Sequence[int]


@dataclass(frozen=True)
class TextScores:
    """Scores of the texts recovered from one batch; shares in [0, 1].

    Attributes:
        tokens: how many of the batch's tokens were named and how many there are.
        sequences: how many of the batch's texts were named whole and how many there are.
        rouge1: mean over texts, each compared with the answer that an optimal assignment gives it.
        rouge2: the same of pairs.
    """

    tokens: tuple[int, int]
    sequences: tuple[int, int]
    rouge1: float
    rouge2: float


def scores_of(answers: Sequence[Text], tokens: Text, texts: Sequence[Text]) -> TextScores:
    """Compare answers with the truth.

    Args:
        answers: the texts that were named, no more than there are.
        tokens: the tokens that were named, no more than there are, each as often as it was.
        texts: the batch's.
    """
    present = Counter(token for text in texts for token in text)
    named = sum((present & Counter(tokens)).values())
    rouges = np.zeros((len(texts), max(len(texts), len(answers)), 2))
    for row, text in enumerate(texts):
        for column, answer in enumerate(answers):
            rouges[row, column] = rouge(answer, text, 1), rouge(answer, text, 2)
    matched = rouges[linear_sum_assignment(rouges.sum(axis=2), maximize=True)].mean(axis=0)
    whole = sum((Counter(map(tuple, texts)) & Counter(map(tuple, answers))).values())
    return TextScores(
        (named, present.total()), (whole, len(texts)), float(matched[0]), float(matched[1])
    )


def rouge(answer: Text, text: Text, size: int) -> float:
    """ROUGE-n, the F-measure of runs of ``size`` tokens (Lin 2004, section 2).

    Two texts without such a run are alike only where they are equal.
    """
    ours, theirs = _runs(answer, size), _runs(text, size)
    if not ours or not theirs:
        return float(list(answer) == list(text))
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def _runs(text: Text, size: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(text[start:] for start in range(size)), strict=False))
