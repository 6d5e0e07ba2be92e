"""The unified inference game: what the four games share (Li et al. 2024, definition 3.1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.inference.deal import (
    SHARES,
    Deal,
    FloatArray,
    IntArray,
    Setup,
    deal_parts,
    draw_values,
    frequencies,
    members_of,
    no_batches,
    trials_of,
)
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.families import Family
from gradaudit.families.base import Features
from gradaudit.inference.attributes import merge_rare, shuffled
from gradaudit.inference.batches import Batches, draw_batches
from gradaudit.inference.scores import ROOM


@dataclass(frozen=True)
class Answers:
    """What an adversary says after one round.

    Attributes:
        observed: (trials, values) log-posterior of the batches to guess.
        held: (held batches, values) the same of held-out shadow batches; may be none.
    """

    observed: FloatArray
    held: FloatArray


class InferenceGame(ABC):
    """One of the games: who may be asked about what, and how it is guessed."""

    name: ClassVar[str]
    batch_size: ClassVar[int]
    """Records in a batch, where nobody says otherwise (Li et al. 2024, section 5.1.4)."""

    def fitting_batch_size(self, records: Records, shadow: int) -> int:
        """Records in a batch, where nobody says how many.

        Args:
            records: of the data set.
            shadow: records that the adversary has, at most.
        """
        return self.batch_size

    @abstractmethod
    def deal(self, records: Records, setup: Setup, seed: np.random.SeedSequence) -> Deal:
        """Split the records and draw every batch.

        Raises:
            NotApplicable: the records do not have what is asked about, or too little of it.
            UsageError: an option does not go with these records.
        """

    @abstractmethod
    def answers(
        self, deal: Deal, family: Family, own: Features, released: Features, seed: int
    ) -> Answers:
        """Fit on what the adversary computed itself, and answer.

        Args:
            deal: that was dealt.
            family: of predictors.
            own: (batches, features) of ``deal.own``.
            released: (trials, features) of ``deal.observed``.
            seed: of the fit.
        """

    @abstractmethod
    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """The records with the secret dealt out anew among them: what is left is no leakage."""

    def prepared(self, records: Records) -> Records:
        """The records as the clients of this game feed them to the model."""
        return records


@dataclass(frozen=True)
class AttributeBased(InferenceGame):
    """Games about a named attribute, guessed by a predictive family trained on balanced batches.

    Attributes:
        attribute: its name.
        fewest: records that a value must have to stand by itself; rarer ones are merged.
    """

    attribute: str
    fewest: int = field(default=0, kw_only=True)

    def column(self, records: Records) -> Attribute:
        """The attribute, with only those of its values that occur.

        Raises:
            UsageError: there is none of this name.
            NotApplicable: it has a single value.
        """
        if self.attribute not in records.attributes:
            known = ", ".join(records.attributes) or "none"
            raise UsageError(f"--attribute {self.attribute}: no such attribute; there are: {known}")
        found, _ = merge_rare(records.attributes[self.attribute], self.fewest)
        if len(found.values) < 2:
            raise NotApplicable(
                f"attribute {self.attribute!r} has one value only: nothing to guess"
            )
        return found

    def merged(self, records: Records) -> dict[str, JsonValue]:
        """What the report says of rare values that were merged."""
        names = merge_rare(records.attributes[self.attribute], self.fewest)[1]
        return {"merged_values": list(names)} if names else {}

    def fitting_batch_size(self, records: Records, shadow: int) -> int:
        """The paper's, or less, so that the rarest value has room for enough separate batches."""
        rarest = int(np.bincount(self.column(records).codes).min())
        return int(np.clip(rarest * SHARES[2] / ROOM, 1, self.batch_size))

    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """The records with the attribute's codes in another order, or in other users' hands."""
        found = records.attributes[self.attribute]
        codes = shuffled(found.codes, records.users, np.random.default_rng(seed))
        return replace(
            records,
            attributes={**records.attributes, self.attribute: Attribute(codes, found.values)},
        )

    def answers(
        self, deal: Deal, family: Family, own: Features, released: Features, seed: int
    ) -> Answers:
        """A member of the family, trained under a uniform prior."""
        values = len(deal.values)
        cut = len(deal.shadow.labels)
        fitted = family.fit(
            own[:cut], deal.shadow.labels, values, seed, prior=np.full(values, 1 / values)
        )
        held = fitted.log_probabilities(own[cut:]) if len(own) > cut else np.zeros((0, values))
        return Answers(fitted.log_probabilities(released), held)

    def in_column(self, records: Records) -> bool:
        """Whether the attribute is a column of the inputs."""
        return any(feature.name == self.attribute for feature in records.features)


def deal_homogeneous(
    records: Records,
    attribute: Attribute,
    secret: str,
    setup: Setup,
    seed: np.random.SeedSequence,
) -> Deal:
    """Batches whose records all have one value of the attribute (attribute and property game).

    Raises:
        NotApplicable: a value has too few records for a batch in some set.
        UsageError: fewer trials than values.
    """
    values, codes = attribute.values, attribute.codes
    if setup.trials < len(values):
        raise UsageError(f"--trials {setup.trials}: {secret} has {len(values)} values; play more")
    parts = deal_parts(codes, values, secret, records.users, setup, seed)
    _expect_shadow(codes, parts.shadow, values, setup, secret)
    prior = frequencies(codes, len(values), setup.prior)
    generator = np.random.default_rng(seed.spawn(1)[0])
    observed = draw_values(
        codes, parts.private, setup.batch_size, trials_of(prior, setup.trials), generator
    )
    return Deal(
        secret=secret,
        values=values,
        prior=prior,
        parts=parts,
        shadow=_balanced(codes, parts.shadow, setup, setup.batches, len(values), generator),
        held=_balanced(codes, parts.held, setup, setup.batches // 4, len(values), generator),
        observed=observed,
        clusters=members_of(observed.indices, records.users),
    )


def _balanced(
    codes: IntArray,
    pool: IntArray,
    setup: Setup,
    batches: int,
    values: int,
    generator: np.random.Generator,
) -> Batches:
    if not len(pool):
        return no_batches(setup.batch_size)
    each = max(batches // values, 1)
    return draw_batches(codes, pool, setup.batch_size, each, generator, values=values)


def _expect_shadow(
    codes: IntArray, pool: IntArray, values: tuple[str, ...], setup: Setup, secret: str
) -> None:
    counts = np.bincount(codes[pool], minlength=len(values))
    if counts.min() < setup.batch_size:
        raise UsageError(
            f"--shadow {setup.shadow}: that leaves {counts.min()} shadow records of the value "
            f"{values[int(counts.argmin())]!r} of {secret}, and a batch takes {setup.batch_size}; "
            f"give at least {setup.batch_size * len(values)} records, or smaller batches"
        )
