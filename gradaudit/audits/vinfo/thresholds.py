"""Rows of usable information about the input itself: one set of layers at every threshold."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.success import KINDS, Similarities
from gradaudit.audits.rows import Rows
from gradaudit.audits.vinfo import SUCCESS, VINFO
from gradaudit.information.original import (
    FEWEST,
    THRESHOLDS,
    FloatArray,
    Original,
    Spread,
    Tally,
    information,
    spread,
)
from gradaudit.report import Measurement, Variant
from gradaudit.statistics.intervals import clopper_pearson

NOTHING = "no success to compare: neither reconstructions nor random guesses reach this SSIM"


def threshold_rows(
    rows: Rows,
    layer: str | None,
    rebuilt: Similarities,
    guessed: FloatArray,
    threshold: float,
    seed: int,
) -> Iterator[Measurement]:
    """The rows of a set of layers at ``threshold``, and as variants those at every threshold.

    Args:
        rows: of the set, with its facts.
        layer: the single one's name; None of several.
        rebuilt: what the attacks made of the updates.
        guessed: (kinds, updates, records, guesses) SSIM of random reconstructions.
        threshold: SSIM from which a reconstruction counts.
        seed: of the bootstrap.
    """
    thresholds = tuple(sorted({*THRESHOLDS, threshold}))
    tally = Tally.of(rebuilt.own, guessed, thresholds)
    beside = None
    if rebuilt.others is not None:
        beside = Tally.of(rebuilt.others, np.roll(guessed, -1, axis=1), thresholds)
    levels = _Levels(
        rows, layer, rebuilt, thresholds, tally, information(tally), spread(tally, seed), beside
    )
    yield from levels.rows_at(thresholds.index(threshold), {})
    for index, level in enumerate(thresholds):
        yield from levels.rows_at(index, {"threshold": level})


@dataclass(frozen=True)
class _Levels:
    """A set's numbers at all thresholds.

    Attributes:
        rows: of the set.
        layer: the single one's name.
        rebuilt: what the attacks made of the updates.
        thresholds: in rising order.
        tally: counts.
        original: information.
        spread: its intervals, None of too few updates.
        beside: counts against other records, None where there are none.
    """

    rows: Rows
    layer: str | None
    rebuilt: Similarities
    thresholds: tuple[float, ...]
    tally: Tally
    original: Original
    spread: Spread | None
    beside: Tally | None

    def rows_at(self, at: int, variant: Variant) -> Iterator[Measurement]:
        """Both metrics at one threshold."""
        rows = self.rows.of(variant, self._counts(at))
        if self.tally.comparable[at]:
            yield self._information(at, rows)
        else:
            yield from rows.skipped(NOTHING, [VINFO], [self.layer])
        yield self._success(at, rows)

    def _information(self, at: int, rows: Rows) -> Measurement:
        values = self.original.members[at]
        best = int(self.original.best[at])
        value = float(self.original.values[at])
        interval = None
        if self.spread is not None:
            low, high = self.spread.values[at].tolist()
            interval = min(low, value), max(high, value)
        members = self.rebuilt.members
        return rows.measured(
            VINFO,
            value,
            layer=self.layer,
            interval=interval,
            n=self.tally.successes[at, best].size,
            imprecise=self._few,
            details={
                "chosen": members[best] if values[best] > 0 else "guessing",
                "members": dict(zip(members, values.tolist(), strict=True)),
                **self._warning(),
                **self._permuted(at),
            },
        )

    def _success(self, at: int, rows: Rows) -> Measurement:
        best = int(self.original.best[at])
        hits = int(self.tally.successes[at, best].sum())
        count = self.tally.successes[at, best].size * self.tally.restarts
        of_restarts = clopper_pearson(hits, count)
        return rows.measured(
            SUCCESS,
            hits / count,
            layer=self.layer,
            interval=of_restarts if self.spread is None else self._of_new_records(at, self.spread),
            n=count,
            imprecise=self._few,
            details={
                "chosen": self.rebuilt.members[best],
                "interval_of_these_records": list(of_restarts),
                **self._warning(),
            },
        )

    def _of_new_records(self, at: int, ends: Spread) -> tuple[float, float]:
        """The bootstrap's; where all updates agree, Clopper and Pearson's with one trial each."""
        low, high = ends.rates[at].tolist()
        updates = self.tally.successes.shape[2]
        if low == high and low in (0.0, 1.0):
            return clopper_pearson(round(low * updates), updates)
        return low, high

    def _counts(self, at: int) -> dict[str, JsonValue]:
        """Threshold, failed restarts, refused members, and the best guesses."""
        kind = int(self.original.kinds[at])
        guessed: dict[str, JsonValue] = {
            "kind": KINDS[kind],
            "success": float(self.tally.guessed[at, kind].mean()),
        }
        return {
            "threshold": self.thresholds[at],
            "failed_restarts": dict(zip(self.rebuilt.members, self.rebuilt.failed, strict=True)),
            "refused": dict(self.rebuilt.refused),
            "guessed": guessed,
        }

    def _permuted(self, at: int) -> dict[str, JsonValue]:
        """The same numbers where each reconstruction is compared with other records."""
        if self.beside is None:
            return {}
        other = information(self.beside)
        rate = float(self.beside.rates[at, int(other.best[at])].mean())
        return {"permuted": {"value": float(other.values[at]), "success": rate}}

    @property
    def _few(self) -> str:
        """Why there is no bootstrap; empty where there is one."""
        if self.spread is not None:
            return ""
        updates = self.tally.successes.shape[2]
        return f"only {updates} updates; intervals over records need {FEWEST}"

    def _warning(self) -> dict[str, JsonValue]:
        return {"warning": self._few} if self._few else {}
