"""Attribute inference: the secret is a column of the inputs (Li et al. 2024, section 3.2)."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from gradaudit.attacks.inference.deal import Deal, Setup
from gradaudit.attacks.inference.game import AttributeBased, deal_homogeneous
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable


class AttributeGame(AttributeBased):
    """Guess the value that a column of the inputs has in all records of a batch."""

    name: ClassVar[str] = "attribute"
    batch_size: ClassVar[int] = 16

    def deal(self, records: Records, setup: Setup, seed: np.random.SeedSequence) -> Deal:
        """Batches of one value each."""
        attribute = self.column(records)
        if not self.in_column(records):
            columns = ", ".join(feature.name for feature in records.features) or "none"
            raise NotApplicable(
                f"attribute {self.attribute!r} is no column of the inputs ({columns}); what is "
                "not among them is guessed by `attack property`"
            )
        dealt = deal_homogeneous(records, attribute, self.attribute, setup, seed)
        return replace(dealt, notes=self.merged(records))
