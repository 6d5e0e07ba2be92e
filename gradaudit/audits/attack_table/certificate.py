"""Which rows are proved, and what fresh decoys say of the test's false rate.

A row is certified where its residual is less than a tenth of the least of decoys' in the spans that
it was found in, and its multiplicity is a whole number; of a rounded or noisy update this number
is one where there are numeric columns, for two rows of alike numbers look like one that is there
twice. Behind noise the named rows must also leave nothing but noise of the whole update, or none is
certified: the gradient of a row that is not found moves the numbers of those that are. Fresh decoys
then take the whole test: with none of n certified, the false rate is at most 1 − .025^(1/n)
(Clopper and Pearson 1934).
"""

from dataclasses import dataclass
from typing import Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.polishing import SpanTest, decoys_of, limit_of


@dataclass(frozen=True)
class Certificates:
    """What decoys say of the rows of one update.

    Attributes:
        certified: (rows,) whether each named row is, round by round.
        limits: (rounds,) the residual below which a row of the round is certified.
        tried: fresh decoys that took the whole test.
        false: those that passed it.
    """

    certified: tuple[bool, ...]
    limits: tuple[float, ...]
    tried: int
    false: int

    @classmethod
    def of(
        cls, peeling: Peeling, generator: torch.Generator, count: int, batch: Tensor | None = None
    ) -> Self:
        """Set limits by decoys in every round, and try others on the rounds' tests.

        Args:
            peeling: the rows that are named.
            generator: of decoys.
            count: fresh decoys that are tried.
            batch: (rows, cells) the truth, that no fresh decoy may be; it plays no part in limits.
        """
        named, certified, limits, tried, false = peeling.named, list[bool](), list[float](), 0, 0
        for done in peeling.rounds:
            limit = limit_of(done.test, done.cells, generator, named)
            share = -(-count // len(peeling.rounds))
            true = named if batch is None else torch.cat([named, batch])
            fresh, after = decoys_of(done.test, done.cells, true, share, generator)
            false += _passing(peeling, done.test, fresh[after < limit])
            tried += len(fresh)
            limits.append(limit)
            blends = not peeling.precision.exact and len(peeling.columns.numeric) > 0
            alone = (done.times == 1) | torch.tensor(not blends)
            told = peeling.explained or not peeling.precision.noisy
            certified += ((done.residual < limit) & alone & told).tolist()
        return cls(tuple(certified), tuple(limits), tried, false)

    def facts(self) -> dict[str, JsonValue]:
        """For the report."""
        return {
            "decoys": self.tried,
            "decoys_certified": self.false,
            "residual_limits": list(self.limits),
        }


def _passing(peeling: Peeling, test: SpanTest, decoys: Tensor) -> int:
    """How many decoys pass the rest of the test as well."""
    if not len(decoys):
        return 0
    rows, labels, _ = peeling.labels.of(test, decoys)
    if not peeling.precision.noisy:
        return len(set(rows.tolist()))
    passing = [
        peeling.explained and peeling.replaces(decoys[row], label)
        for row, label in zip(rows, labels, strict=True)
    ]
    return sum(passing)
