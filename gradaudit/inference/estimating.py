"""One estimate of usable information, as a worker process makes it: no torch to load in here."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from gradaudit.inference.members import Labelled, Sets
from gradaudit.inference.repetitions import Repetition
from gradaudit.inference.usable import Usable, usable_information
from gradaudit.progress import Advance

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Adversary:
    """Who estimates.

    Attributes:
        members: names of the families.
        prior: ``uniform``, or ``empirical`` for the frequencies among the adversary's records.
        paper: the softmax of a forest's votes, uncalibrated (Mo et al. 2021, eq. 8).
        curve: whether to fit on fewer batches too, where the attribute is not permuted.
    """

    members: tuple[str, ...]
    prior: str = "uniform"
    paper: bool = False
    curve: bool = False

    def of(self, repetition: Repetition) -> NDArray[np.float64]:
        """The prior in a repetition, (values,)."""
        count = len(repetition.frequencies)
        return repetition.frequencies if self.prior == "empirical" else np.full(count, 1 / count)


def estimate(
    rows: Rows,
    repetition: Repetition,
    adversary: Adversary,
    seed: np.random.SeedSequence,
    advance: Advance,
) -> Usable:
    """One estimate, on one thread, which is one unit of work."""
    ends = np.cumsum([len(batches.labels) for batches in repetition.batches])[:-1]
    *folds, score = (
        Labelled(own, batches.labels)
        for own, batches in zip(np.split(rows, ends), repetition.batches, strict=True)
    )
    sets = Sets(tuple(folds), score, repetition.independent)
    with threadpool_limits(1):
        usable = usable_information(
            sets,
            adversary.of(repetition),
            adversary.members,
            seed,
            paper=adversary.paper,
            curve=adversary.curve and not repetition.permuted,
        )
    advance(1)
    return usable
