"""Distributional inference: how many of a batch's records have a value (Li et al. 2024, 3.2)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gradaudit.attacks.inference.deal import (
    SHARES,
    Deal,
    IntArray,
    Setup,
    deal_parts,
    members_of,
    no_batches,
    trials_of,
)
from gradaudit.attacks.inference.game import Answers, AttributeBased
from gradaudit.attacks.inference.ordinal import Ordinal
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.families import Family
from gradaudit.families.base import Features
from gradaudit.inference.batches import Batches, draw_any
from gradaudit.inference.scores import ENOUGH

_FEWEST = 8


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
        """The paper's, or less, so that either kind has room for enough separate batches."""
        codes = self.column(records)
        counts = np.bincount((codes.codes == self._value(codes)).astype(np.int64), minlength=2)
        room = int(counts.min() * SHARES[2] / ENOUGH)
        return max(min(self.batch_size, room, shadow // 2), _FEWEST)

    def deal(self, records: Records, setup: Setup, seed: np.random.SeedSequence) -> Deal:
        """Batches of every ratio bin, as many of each."""
        attribute = self.column(records)
        held_value = self._value(attribute)
        codes = (attribute.codes == held_value).astype(np.int64)
        name = attribute.values[held_value]
        secret = f"share of {self.attribute}={name}"
        _expect(setup)
        names = (f"other than {name}", name)
        parts = deal_parts(codes, names, self.attribute, records.users, setup, seed)
        generator = np.random.default_rng(seed.spawn(1)[0])
        prior = np.full(setup.bins, 1 / setup.bins)
        observed = _drawn(codes, parts.private, setup, setup.trials, generator)
        return Deal(
            secret=secret,
            values=bin_names(setup.bins),
            prior=prior,
            parts=parts,
            shadow=_drawn(codes, parts.shadow, setup, setup.batches, generator),
            held=_drawn(codes, parts.held, setup, setup.batches // 4, generator),
            observed=observed,
            clusters=members_of(observed.indices, records.users),
            notes={"property": name, **self.merged(records)},
        )

    def answers(
        self, deal: Deal, family: Family, own: Features, released: Features, seed: int
    ) -> Answers:
        """A member of the family for each threshold between bins (Frank and Hall)."""
        return super().answers(deal, Ordinal(family), own, released, seed)

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
    """The bins in words."""
    edges = [f"{j / (bins - 1):.3g}" for j in range(bins)]
    return ("0", *(f"({low}, {high}]" for low, high in pairwise(edges)))


def _expect(setup: Setup) -> None:
    if setup.batch_size < setup.bins - 1:
        raise UsageError(
            f"--batch-size {setup.batch_size}: some of the {setup.bins} ratio bins hold no count; "
            f"take at least {setup.bins - 1}"
        )
    if setup.trials < setup.bins:
        raise UsageError(f"--trials {setup.trials}: there are {setup.bins} ratio bins; play more")


def _drawn(
    codes: IntArray, pool: IntArray, setup: Setup, batches: int, generator: np.random.Generator
) -> Batches:
    """Batches (batches, k) of the bins in turn, with their bins."""
    size = setup.batch_size
    if not len(pool):
        return no_batches(size)
    least = np.bincount(codes[pool], minlength=2).min()
    if least < size:
        raise NotApplicable(
            f"{least} records of one kind in a set, and a batch takes up to {size} of them; give "
            "more records, a larger --shadow, or a smaller --batch-size"
        )
    each = trials_of(np.full(setup.bins, 1 / setup.bins), batches)
    bins = np.repeat(np.arange(setup.bins), each)
    low, high = counts_of(size, setup.bins)
    having = generator.integers(low[bins], high[bins] + 1)
    without, with_it = (
        generator.permuted(draw_any(pool[codes[pool] == kind], size, batches, generator), axis=1)
        for kind in (0, 1)
    )
    chosen = np.where(np.arange(size) < having[:, None], with_it, without)
    return Batches(chosen, bins.astype(np.int64))
