"""The unified inference game (definition 3.1), and those of attribute and property.

Attribute inference: the secret is a column of the inputs. Property inference: it goes with the
records, but is no input (section 3.2).

Source, here "Li et al. 2024": Z. Li et al., "Analyzing inference privacy risks through gradients in
machine learning" (2024).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from pydantic import JsonValue

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
from gradaudit.data.records import Attribute, Records, merge_rare
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.families import Family, family, sizes
from gradaudit.families.base import Features, Training
from gradaudit.games.scores import ROOM
from gradaudit.games.splits import Batches, draw_any, draw_batches, shuffled

HELD = "held at its mean in every record, since the model takes it"


@dataclass(frozen=True)
class Answers:
    """An adversary's guesses after one round.

    Attributes:
        observed: (trials, values) log-posterior of the batches to guess.
        held: (held batches, values) the same of held-out shadow batches; may be none.
    """

    observed: FloatArray
    held: FloatArray

    @classmethod
    def of(
        cls,
        split: GameSplit,
        says: Callable[[Features], FloatArray],
        released: Features,
        held: Features,
    ) -> Self:
        """Compute a fitted adversary's log-probabilities of released and of held-out updates."""
        return cls(says(released), says(held) if len(held) else np.zeros((0, len(split.values))))


class InferenceGame(ABC):
    """An inference game: the secret, how batches are drawn, and how the secret is guessed."""

    name: ClassVar[str]
    batch_size: ClassVar[int]
    """Records in a batch, where nobody says otherwise (Li et al. 2024, section 5.1.4)."""
    families: ClassVar[tuple[str, ...]] = ()
    """The readers that the game has of its own, whatever families are asked for."""

    def fitting_batch_size(self, records: Records, shadow: int) -> int:
        """The batch size that is used where no option gives one.

        Args:
            records: of the data set.
            shadow: records that the adversary has, at most.
        """
        return self.batch_size

    @abstractmethod
    def split(self, records: Records, design: Design, seed: np.random.SeedSequence) -> GameSplit:
        """Split the records between the adversary and the clients, and draw every batch.

        Raises:
            NotApplicable: the records do not have what is asked about, or too little of it.
            UsageError: an option does not go with these records.
        """

    @abstractmethod
    def answers(
        self, split: GameSplit, name: str, own: Features, released: Features, seed: int
    ) -> Answers:
        """Fit a classifier on the adversary's own updates, and guess the observed secrets.

        Args:
            split: what was drawn.
            name: of the family of predictors.
            own: (batches, features) of ``split.own``.
            released: (trials, features) of ``split.observed``.
            seed: of the fit.
        """

    @abstractmethod
    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """Shuffle the secret among the records; what an adversary still guesses then is chance."""

    def learners(self, families: Sequence[str]) -> dict[str, JsonValue]:
        """The adversary's predictive families, each with its size."""
        return sizes(families)

    def prepared(self, records: Records) -> Records:
        """The records as the clients of this game feed them to the model."""
        return records


@dataclass(frozen=True)
class AttributeBased(InferenceGame):
    """Games about a named attribute, which a classifier guesses after training on balanced batches.

    Attributes:
        fewest: records that a value must have to stand by itself; rarer ones are merged.
    """

    attribute: str
    fewest: int = field(default=0, kw_only=True)

    def column(self, records: Records) -> Attribute:
        """Restrict the attribute to those of its values that occur in the records.

        Raises:
            UsageError: there is none of this name.
            NotApplicable: it has a single value.
        """
        if self.attribute not in records.attributes:
            known = ", ".join(records.attributes) or "none"
            raise UsageError(f"--attribute {self.attribute}: no such attribute; there are: {known}")
        column, _ = merge_rare(records.attributes[self.attribute], self.fewest)
        if len(column.values) < 2:
            raise NotApplicable(
                f"attribute {self.attribute!r} has one value only: nothing to guess"
            )
        return column

    def merged(self, records: Records) -> dict[str, JsonValue]:
        """The report's note on rare values that were merged."""
        names = merge_rare(records.attributes[self.attribute], self.fewest)[1]
        return {"merged_values": list(names)} if names else {}

    def fitting_batch_size(self, records: Records, shadow: int) -> int:
        """The paper's batch size, or a smaller one where the rarest value has few records."""
        rarest = int(np.bincount(self.column(records).codes).min())
        return int(np.clip(rarest * SHARES[2] / ROOM, 1, self.batch_size))

    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """Shuffle the attribute's values among the records, or among their users."""
        column = records.attributes[self.attribute]
        codes = shuffled(column.codes, records.users, rng(seed, "permutation"))
        return replace(
            records,
            attributes={**records.attributes, self.attribute: Attribute(codes, column.values)},
        )

    def answers(
        self, split: GameSplit, name: str, own: Features, released: Features, seed: int
    ) -> Answers:
        """Train a classifier of the family under a uniform prior, and guess."""
        chosen = family(name)
        training, held = training_of(split, chosen, own)
        member = chosen.fit_on(training, seed)
        return Answers.of(split, member.log_probabilities, chosen.reads(released), held)

    def in_column(self, records: Records) -> bool:
        """Whether the attribute is a column of the inputs."""
        return any(feature.name == self.attribute for feature in records.features)

    def homogeneous_split(
        self,
        records: Records,
        design: Design,
        seed: np.random.SeedSequence,
        notes: Mapping[str, JsonValue],
    ) -> GameSplit:
        """Batches whose records all have one value of the attribute.

        Raises:
            NotApplicable: a value has too few records for a batch in some set.
            UsageError: fewer trials than values, or too few shadow records.
        """
        column = self.column(records)
        secret = Secret(self.attribute, column.values, column.codes, records.users)
        if design.trials < len(secret.values):
            raise UsageError(
                f"--trials {design.trials}: {secret.name} has {len(secret.values)} values; "
                "play more"
            )
        parts = split_parts(secret, design, seed)
        _expect_shadow(secret, parts.shadow, design)
        values = len(secret.values)
        frequencies = np.bincount(secret.codes, minlength=values) / len(secret.codes)
        prior = np.full(values, 1 / values) if design.prior == "uniform" else frequencies
        generator = rng(seed, "batches")
        observed = _in_shares(secret, parts.private, design, prior, generator)
        return GameSplit(
            secret=secret.name,
            values=secret.values,
            prior=prior,
            parts=parts,
            shadow=_balanced(secret, parts.shadow, design, design.batches, generator),
            held=_balanced(secret, parts.held, design, design.batches // 4, generator),
            observed=observed,
            clusters=secret.behind(observed.indices),
            notes={**notes, **self.merged(records)},
        )


class AttributeGame(AttributeBased):
    """Guess the value that a column of the inputs has in all records of a batch."""

    name: ClassVar[str] = "attribute"
    batch_size: ClassVar[int] = 16

    def split(self, records: Records, design: Design, seed: np.random.SeedSequence) -> GameSplit:
        """Batches of one value each."""
        self.column(records)
        if not self.in_column(records):
            columns = ", ".join(feature.name for feature in records.features) or "none"
            raise NotApplicable(
                f"attribute {self.attribute!r} is no column of the inputs ({columns}); what is "
                "not among them is guessed by `attack property`"
            )
        return self.homogeneous_split(records, design, seed, {})


class PropertyGame(AttributeBased):
    """Guess the value that all records of a batch share, from the gradient by other inputs.

    Where the attribute is a column that the model takes (it was not dropped in the data's spec),
    that column is held at its mean: then it says nothing, and only what goes with it can.
    """

    name: ClassVar[str] = "property"
    batch_size: ClassVar[int] = 16

    def split(self, records: Records, design: Design, seed: np.random.SeedSequence) -> GameSplit:
        """Batches of one value each."""
        notes = {"column": HELD} if self.in_column(records) else {}
        return self.homogeneous_split(records, design, seed, notes)

    def prepared(self, records: Records) -> Records:
        """Set the attribute's own input column to its mean, or to its most frequent category."""
        held = next((f for f in records.features if f.name == self.attribute), None)
        if held is None:
            return records
        inputs = records.inputs.clone()
        columns = inputs[:, list(held.positions)]
        middle = columns.mode(dim=0).values if held.coded else columns.mean(dim=0)
        inputs[:, list(held.positions)] = middle
        return replace(records, inputs=inputs)


def training_of(split: GameSplit, family: Family, own: Features) -> tuple[Training, Features]:
    """Select what a family reads of the shadow batches, to be fitted on, and of those held out."""
    labels, values, read = split.shadow.labels, len(split.values), family.reads(own)
    cut, even = len(labels), np.full(values, 1 / values)
    return Training.of(read[:cut], labels, values, even), read[cut:]


def _in_shares(
    secret: Secret,
    pool: IntArray,
    design: Design,
    prior: FloatArray,
    generator: np.random.Generator,
) -> Batches:
    """Draw the trials' batches (trials, k), as many of each value as the prior says."""
    counts = trials_of(prior, design.trials)
    drawn = [
        draw_any(secret.having(value, pool), design.batch_size, int(count), generator)
        for value, count in enumerate(counts)
    ]
    return Batches(np.concatenate(drawn), np.repeat(np.arange(len(counts)), counts))


def _balanced(
    secret: Secret, pool: IntArray, design: Design, batches: int, generator: np.random.Generator
) -> Batches:
    if not len(pool):
        return no_batches(design.batch_size)
    values = len(secret.values)
    per_value = max(batches // values, 1)
    return draw_batches(secret.codes, pool, design.batch_size, per_value, generator, values=values)


def _expect_shadow(secret: Secret, pool: IntArray, design: Design) -> None:
    counts, size = secret.counts(pool), design.batch_size
    if counts.min() < size:
        raise UsageError(
            f"--shadow {design.shadow}: that leaves {counts.min()} shadow records of the value "
            f"{secret.values[int(counts.argmin())]!r} of {secret.name}, and a batch takes {size}; "
            f"give at least {size * len(secret.values)} records, or smaller batches"
        )
