"""The gain in AUROC of a scan that plays several games about an attribute that is a coin.

    python -m benchmarks.coverage.games [--scans 30] [--records 1000]

Each scan plays ``attack property`` and ``attack distribution`` at their quick presets on the digits
and the sample model, with a fair coin for every record as the attribute. Printed are the means of
``attack.auroc_gain`` of the whole update with their standard errors: of each game, of the headline,
and of the larger of both games, which stood in the headline before.
"""

from collections.abc import Iterator

import numpy as np

import gradaudit
from benchmarks.coverage.studies.scan import CHECKPOINT, MODEL, with_attribute
from benchmarks.harness import arguments
from gradaudit.audits import audits

GAMES = ("attack property", "attack distribution")
METRIC = "attack.auroc_gain"


def gains(seed: int, records: int) -> dict[str, float]:
    """The gains of the whole update in one scan, by game, and that of the headline."""
    report = gradaudit.audit(
        MODEL,
        with_attribute("random", seed),
        audits={name: audits()[name].quick for name in GAMES},
        checkpoints=(CHECKPOINT,),
        attributes=("private",),
        samples=records,
        seed=seed,
    )
    rows = report.select(METRIC, layer=None)
    named = {str(row.variant.get("attack", "headline")): row.value or 0.0 for row in rows}
    games = [value for name, value in named.items() if name != "headline"]
    return {**named, "larger of both": max(games)}


def summary(scans: list[dict[str, float]]) -> Iterator[str]:
    """A line for each number: its mean and standard error."""
    for name in scans[0]:
        values = np.array([scan[name] for scan in scans])
        error = values.std(ddof=1) / np.sqrt(len(values))
        yield f"{name}: {values.mean():+.3f} ± {error:.3f}, {np.mean(values > 0):.0%} above 0"


if __name__ == "__main__":
    given = arguments(__doc__)
    for line in summary([gains(seed, given.records) for seed in range(given.scans)]):
        print(line)
