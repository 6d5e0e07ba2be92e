"""Draws repetitions of an estimate: each splits the records anew and draws batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradaudit.core.randomness import Word, rng, sequence
from gradaudit.errors import NotApplicable
from gradaudit.games import splits
from gradaudit.games.splits import Batches, IntArray, Users

FOLDS = 3
"""Folds of the adversary's records: each chooses in turn among members that the others fitted."""
SCORED = 0.3
"""Share of the records that scores, unless the adversary has so many."""
SCORED_TIMES = 4
"""Batches to score on for each to choose on: they cost no fit, and leave less to chance."""
FEWEST = 10
"""Records of every value that each set needs, whatever the batch size."""
_FOLD_NAMES = tuple(
    f"fold {number} of {FOLDS} of the adversary's" for number in range(1, FOLDS + 1)
)


@dataclass(frozen=True)
class Question:
    """The attribute, the records and the number of repetitions of an estimate.

    Attributes:
        codes: (records,) of all records, indices into ``values``.
        users: (records,) or None.
        pool: indices of the records to use.
        size: records in a batch.
        batches: of each value, to fit on in a turn; half as many to choose on, and twice as many
            to score on.
        shadow: records of the adversary, for fitting and choosing; None is all but the score set's.
    """

    attribute: str
    values: tuple[str, ...]
    codes: IntArray
    users: Users | None
    pool: IntArray
    size: int
    batches: int
    shadow: int | None
    repeats: int
    seed: np.random.SeedSequence

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the records in the folds and in the score set."""
        everyone = len(self.pool)
        adversary = (1 - SCORED) * everyone if self.shadow is None else self.shadow
        return (adversary / FOLDS,) * FOLDS + (everyone - adversary,)


@dataclass(frozen=True)
class Repetition:
    """One split of the records, with its batches.

    Attributes:
        number: from 0.
        permuted: whether the attribute was permuted among records first.
        parts: indices of the records of each fold and of the score set, no record and no user in
            two of them.
        batches: of each fold and of the score set.
        independent: about how many of the folds' batches are worth an independent one.
        disjoint: how many batches of the rarest value all records make that share no record or
            user, about.
        frequencies: (values,) shares of the values among the adversary's records.
    """

    number: int
    permuted: bool
    parts: tuple[IntArray, ...]
    batches: tuple[Batches, ...]
    independent: float
    disjoint: float
    frequencies: NDArray[np.float64]

    @property
    def words(self) -> tuple[Word, ...]:
        """The words that name this estimate's streams of random numbers."""
        return ("repetition", self.number, "permuted" if self.permuted else "as it is")

    @property
    def adversary(self) -> IntArray:
        """The indices of the records of all folds, ascending."""
        return np.sort(np.concatenate(self.parts[:-1]))


def repetitions(question: Question, *, permuted: bool = False) -> Iterator[Repetition]:
    """Draw every repetition; its draws depend on its number alone.

    Raises:
        NotApplicable: the attribute has one value, or a set has too few records of one.
    """
    asked = _of_values_that_occur(question)
    for number in range(question.repeats):
        words = "repetition", number, "permuted" if permuted else "as it is"
        seed = sequence(question.seed, *words)
        codes = asked.codes
        if permuted:
            codes = splits.shuffled(codes, asked.users, rng(seed, "permutation"))
        yield _repetition(asked, number, permuted, codes, seed)


def occurring_values(codes: IntArray, values: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """Drop the values that no record has, and renumber the codes."""
    present, renumbered = np.unique(codes, return_inverse=True)
    return renumbered.astype(np.int64), tuple(values[code] for code in present)


def _of_values_that_occur(question: Question) -> Question:
    """Restrict the estimate to these records, their users and the values that they have."""
    codes, values = occurring_values(question.codes[question.pool], question.values)
    if len(values) < 2:
        raise NotApplicable(
            f"{question.attribute}: every record looked at has the value {values[0]!r}, so there "
            "is nothing to infer; at least 2 values are needed"
        )
    users = None if question.users is None else question.users[question.pool]
    return replace(question, codes=codes, values=values, users=users)


def _repetition(
    question: Question, number: int, permuted: bool, codes: IntArray, seed: np.random.SeedSequence
) -> Repetition:
    splitting = sequence(seed, "split")
    parts = splits.split(len(codes), question.users, question.shares, splitting, codes=codes)
    named = dict(zip((*_FOLD_NAMES, "the score set"), parts, strict=True))
    splits.expect_enough(
        named, codes, question.values, max(question.size, FEWEST), question.attribute
    )
    generator = rng(seed, "batches")
    half = (question.batches + 1) // 2
    drawn = tuple(
        splits.draw_batches(
            codes, part, question.size, count, generator, values=len(question.values)
        )
        for part, count in zip(parts, (*[half] * FOLDS, SCORED_TIMES * half), strict=True)
    )
    folds = np.concatenate(parts[:-1])
    everyone = np.arange(len(codes))
    return Repetition(
        number=number,
        permuted=permuted,
        parts=tuple(question.pool[part] for part in parts),
        batches=tuple(Batches(question.pool[each.indices], each.labels) for each in drawn),
        independent=sum(
            _independent(question, codes, part, own)
            for part, own in zip(parts[:-1], drawn[:-1], strict=True)
        ),
        disjoint=max(1.0, _holders(question, codes, everyone) / _held(question, drawn[-1])),
        frequencies=np.bincount(codes[folds], minlength=len(question.values)) / len(folds),
    )


def _independent(question: Question, codes: IntArray, members: IntArray, drawn: Batches) -> float:
    """Estimate the number of independent batches among those drawn from some records.

    As many of each value as the rarest allows, and no more than were drawn.
    """
    rarest = _holders(question, codes, members)
    distinct = min(len(np.unique(_names(question)[members])), rarest * len(question.values))
    return max(1.0, min(len(drawn.labels), distinct / _held(question, drawn)))


def _holders(question: Question, codes: IntArray, members: IntArray) -> int:
    """Count the records (or users) that have the rarest value."""
    names = _names(question)[members]
    return min(
        len(np.unique(names[codes[members] == value])) for value in range(len(question.values))
    )


def _held(question: Question, drawn: Batches) -> float:
    """Compute the effective number of records (or users) in a batch: k²/Σ n²."""
    names = _names(question)[drawn.indices]
    same = (names[:, :, None] == names[:, None, :]).sum(axis=(1, 2))
    return float(names.shape[1] ** 2 / same.mean())


def _names(question: Question) -> IntArray:
    return splits.owners(question.users, len(question.codes))
