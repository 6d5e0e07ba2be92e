"""What the adversary knows of the batch beside its gradient: columns of the records, φ(x).

Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
(2024), section 4.1; that columns alone may give an attribute away is the imputation of
B. Jayaraman and D. Evans, "Are attribute inference attacks just imputation?" (2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.specs import suggest
from gradaudit.text import listed

LABEL = "label"
"""The name by which the task label counts as a column, where no column is called so."""


@dataclass(frozen=True)
class Knowledge:
    """Known columns of every record.

    Attributes:
        names: of the columns, in the order asked for.
        columns: (records, positions) as encoded, float64; no positions where nothing is known.
    """

    names: tuple[str, ...]
    columns: NDArray[np.float64]

    @classmethod
    def of(cls, records: Records, names: Sequence[str], secret: str = "") -> "Knowledge":
        """The columns of these names; ``label`` is the task label.

        Raises:
            UsageError: a column does not exist, or is the secret itself.
            NotApplicable: the records have no columns.
        """
        wanted = tuple(dict.fromkeys(names))
        parts = [_column(records, name, secret) for name in wanted]
        empty = np.zeros((len(records), 0))
        return cls(wanted, np.concatenate([empty, *parts], axis=1))

    def __bool__(self) -> bool:
        return bool(self.names)

    def of_batches(self, batches: NDArray[np.int64]) -> NDArray[np.float64]:
        """φ of batches (batches, k): each known position's mean, (batches, positions).

        Records of a batch have no order, and a batch's gradient is a mean too.
        """
        total = np.zeros((len(batches), self.columns.shape[1]))
        for place in range(batches.shape[1]):
            total += self.columns[batches[:, place]]
        return np.asarray(total / batches.shape[1])


def _column(records: Records, name: str, secret: str) -> NDArray[np.float64]:
    if name == secret:
        raise UsageError(f"--knows {name}: this is what is to be guessed; leave it out")
    known = {feature.name: feature for feature in records.features}
    if name in known:
        inputs = records.inputs.flatten(1)[:, list(known[name].positions)]
        return np.asarray(inputs.cpu().numpy(), dtype=np.float64)
    if name == LABEL:
        labels = records.labels.cpu().numpy()
        if labels.dtype.kind != "f":
            labels = np.eye(int(labels.max()) + 1)[labels]
        return np.array(labels, dtype=np.float64).reshape(len(labels), -1)
    if not known:
        raise NotApplicable(f"--knows {name}: these records have no columns, only {LABEL} is known")
    raise UsageError(
        f"--knows {name}: no column {name!r}{suggest(name, known)}; there are: "
        f"{listed(list(known), 20)} and {LABEL}"
    )
