"""Property inference: the secret goes with the records, but is no input (Li et al. 2024, 3.2)."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from gradaudit.attacks.inference.deal import Deal, Setup
from gradaudit.attacks.inference.game import AttributeBased, deal_homogeneous
from gradaudit.data.records import Records

HELD = "held at its mean in every record, since the model takes it"


class PropertyGame(AttributeBased):
    """Guess the value that all records of a batch share, from the gradient by other inputs.

    Where the attribute is a column that the model takes (it was not dropped in the data's spec),
    that column is held at its mean: then it says nothing, and only what goes with it can.
    """

    name: ClassVar[str] = "property"
    batch_size: ClassVar[int] = 16

    def deal(self, records: Records, setup: Setup, seed: np.random.SeedSequence) -> Deal:
        """Batches of one value each."""
        dealt = deal_homogeneous(records, self.column(records), self.attribute, setup, seed)
        notes = {"column": HELD} if self.in_column(records) else {}
        return replace(dealt, notes={**notes, **self.merged(records)})

    def prepared(self, records: Records) -> Records:
        """The records with the attribute's own column held at its mean."""
        held = [f.positions for f in records.features if f.name == self.attribute]
        if not held:
            return records
        inputs = records.inputs.clone()
        positions = list(held[0])
        inputs[:, positions] = inputs[:, positions].mean(dim=0)
        return replace(records, inputs=inputs)
