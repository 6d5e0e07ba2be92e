"""Distributional inference: how many of a batch's records have a value (Li et al. 2024, 3.2).

Ratio bins are ordered, and guessed by predictors of "more than i": E. Frank and M. Hall, "A simple
approach to ordinal classification" (2001), as in section 4.1; of forests one for all i. The
differences P(a > i − 1) − P(a > i) are negative where predictors disagree; they are clipped at zero
and every value keeps a small share, so that each row is a distribution with finite logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gradaudit.audits.attack_inference.game import Answers, AttributeBased, training_of
from gradaudit.audits.attack_inference.split import (
    SHARES,
    Design,
    FloatArray,
    GameSplit,
    IntArray,
    Secret,
    no_batches,
    split_parts,
    trials_of,
)
from gradaudit.core.randomness import rng
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.families import family
from gradaudit.families.base import Features
from gradaudit.games.scores import ENOUGH
from gradaudit.games.splits import Batches, draw_any

_FEWEST = 8
_SHARE = 1e-3
"""Probability that is spread evenly over all values, so that none is impossible."""


@dataclass(frozen=True)
class DistributionGame(AttributeBased):
    """Guess the bin of the share of records with the property: {0}, (0, 1/5], …, (4/5, 1].

    A bin is drawn uniformly, then one of the counts inside it. (The paper draws a ratio and rounds
    it down, which can fall out of the bin.)

    Attributes:
        value: the attribute's value that is the property; its rarest without one.
    """

    value: str | None = None
    name: ClassVar[str] = "distribution"
    batch_size: ClassVar[int] = 128

    def fitting_batch_size(self, records: Records, shadow: int) -> int:
        """The paper's batch size, or a smaller one where records are too few."""
        column = self.column(records)
        count = int((column.codes == self._value(column)).sum())
        room = int(min(count, len(records) - count) * SHARES[2] / ENOUGH)
        return max(min(self.batch_size, room, shadow // 2), _FEWEST)

    def split(self, records: Records, design: Design, seed: np.random.SeedSequence) -> GameSplit:
        """Batches of every ratio bin, as many of each."""
        column = self.column(records)
        value = self._value(column)
        name = column.values[value]
        codes = (column.codes == value).astype(np.int64)
        secret = Secret(self.attribute, (f"other than {name}", name), codes, records.users)
        _expect(design)
        parts = split_parts(secret, design, seed)
        generator = rng(seed, "batches")
        observed = _drawn(secret, parts.private, design, design.trials, generator)
        return GameSplit(
            secret=f"share of {self.attribute}={name}",
            values=bin_names(design.bins),
            prior=np.full(design.bins, 1 / design.bins),
            parts=parts,
            shadow=_drawn(secret, parts.shadow, design, design.batches, generator),
            held=_drawn(secret, parts.held, design, design.batches // 4, generator),
            observed=observed,
            clusters=secret.behind(observed.indices),
            notes={"property": name, **self.merged(records)},
        )

    def answers(
        self, split: GameSplit, name: str, own: Features, released: Features, seed: int
    ) -> Answers:
        """Train a classifier of the family for each threshold between bins, and guess."""
        chosen = family(name)
        training, held = training_of(split, chosen, own)
        above = chosen.fit_ordered(training, np.random.default_rng(seed))
        rows = chosen.reads(released), held
        return Answers.of(split, lambda features: from_thresholds(above(features)), *rows)

    def _value(self, attribute: Attribute) -> int:
        if self.value is None:
            return int(np.bincount(attribute.codes).argmin())
        if self.value not in attribute.values:
            raise UsageError(
                f"--value {self.value}: {self.attribute} has no such value; it has: "
                f"{', '.join(attribute.values)}"
            )
        return attribute.values.index(self.value)


def counts_of(size: int, bins: int) -> tuple[IntArray, IntArray]:
    """Smallest and largest count of each bin: 0, then (j − 1)/(m − 1) < n/k ≤ j/(m − 1)."""
    steps = np.arange(1, bins)
    low = (steps - 1) * size // (bins - 1) + 1
    high = steps * size // (bins - 1)
    return np.r_[0, low].astype(np.int64), np.r_[0, high].astype(np.int64)


def bin_names(bins: int) -> tuple[str, ...]:
    """Names of the bins, in words."""
    edges = [f"{j / (bins - 1):.3g}" for j in range(bins)]
    return ("0", *(f"({low}, {high}]" for low, high in pairwise(edges)))


def _expect(design: Design) -> None:
    size, bins, trials = design.batch_size, design.bins, design.trials
    if size < bins - 1:
        raise UsageError(
            f"--batch-size {size}: some of the {bins} ratio bins hold no count; "
            f"take at least {bins - 1}"
        )
    if trials < bins:
        raise UsageError(f"--trials {trials}: there are {bins} ratio bins; play more")


def _drawn(
    secret: Secret, pool: IntArray, design: Design, batches: int, generator: np.random.Generator
) -> Batches:
    """Batches (batches, k) of the bins in turn, with their bins."""
    size = design.batch_size
    if not len(pool):
        return no_batches(size)
    least = secret.counts(pool).min()
    if least < size:
        raise NotApplicable(
            f"{least} records of one kind in a set, and a batch takes up to {size} of them; give "
            "more records, a larger --shadow, or a smaller --batch-size"
        )
    per_bin = trials_of(np.full(design.bins, 1 / design.bins), batches)
    bins = np.repeat(np.arange(design.bins), per_bin)
    low, high = counts_of(size, design.bins)
    having = generator.integers(low[bins], high[bins] + 1)
    without, with_it = (
        generator.permuted(draw_any(secret.having(kind, pool), size, len(bins), generator), axis=1)
        for kind in (0, 1)
    )
    chosen = np.where(np.arange(size) < having[:, None], with_it, without)
    return Batches(chosen, bins.astype(np.int64))


def from_thresholds(above: FloatArray) -> FloatArray:
    """Compute log P(a = i) from P(a > i): (rows, values − 1) to (rows, values).

    Raises:
        ValueError: there is no threshold.
    """
    if above.ndim != 2 or not above.shape[1]:
        raise ValueError("ordered values need at least one threshold")
    edges = np.pad(above, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
    differences = np.clip(edges[:, :-1] - edges[:, 1:], 0, None)
    shares = differences / differences.sum(axis=1, keepdims=True)
    return np.asarray(np.log((1 - _SHARE) * shares + _SHARE / shares.shape[1]))
