"""Opacus: canary records in a training of your own, for a bound on the epsilon of a record.

Source: A. Yousefpour et al., "Opacus: User-friendly differential privacy library in PyTorch"
(2021), as of 1.6; T. Steinke, M. Nasr and M. Jagielski (2023) for the bound.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opacus.optimizers import DPOptimizer

from gradaudit.federation.canaries import FILE
from gradaudit.federation.record_canaries import RecordCanaries


@contextmanager
def record_canaries(
    optimizer: DPOptimizer,
    folder: str | Path,
    *,
    sampling_rate: float,
    count: int | None = None,
    seed: int = 0,
) -> Iterator[RecordCanaries]:
    """Put canaries into the steps of this optimizer, and write their scores when the block ends.

    ``gradaudit dp-audit --mode one-run --canaries FOLDER`` makes a bound of them. The canaries
    train too: run this on a copy of your training, and keep no model of it.

    Args:
        optimizer: as ``PrivacyEngine.make_private`` returns it.
        folder: that the scores are written to; it is made where there is none.
        sampling_rate: with which a record is in a batch: 1/len(loader) of Opacus's own loader.
        count: of canaries; without it as many as are most precise within memory.
        seed: of coins and directions, which nothing else in your training may depend on.

    Raises:
        UsageError: the model has fewer trainable parameters than canaries are asked for.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with RecordCanaries(optimizer, sampling_rate=sampling_rate, count=count, seed=seed) as canaries:
        yield canaries
    (place / FILE).write_bytes(canaries.scores().packed())
