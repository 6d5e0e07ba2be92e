"""Rows of usable information about the input itself: one set of layers at every threshold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._attack_intervals import CONFIDENCE, clopper_pearson
from gradaudit.audits._vinfo_layer_sets import SUCCESS, VINFO, LayerSet
from gradaudit.audits._vinfo_rows import AUDIT
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.success import Similarities
    from gradaudit.information.original import FloatArray, Original, Spread, Tally

NOTHING = "no success to compare: neither reconstructions nor random guesses reach this SSIM"


@dataclass(frozen=True)
class OriginalRows:
    """Makes the rows of one set of layers.

    Attributes:
        chosen: the set.
        turn: the variant of the checkpoint.
        facts: what every row says.
        seed: of the bootstrap.
    """

    chosen: LayerSet
    turn: Variant
    facts: Mapping[str, JsonValue]
    seed: int

    def of(
        self, found: "Similarities", guessed: "FloatArray", threshold: float
    ) -> Iterator[Measurement]:
        """The rows at ``threshold``, and as variants those at every threshold.

        Args:
            found: what the attacks made of the updates.
            guessed: (kinds, updates, records, guesses) SSIM of random reconstructions.
            threshold: SSIM from which a reconstruction counts.
        """
        import numpy as np

        from gradaudit.information.original import THRESHOLDS, Tally

        thresholds = tuple(sorted({*THRESHOLDS, threshold}))
        tally = Tally.of(found.own, guessed, thresholds)
        beside = None
        if found.others is not None:
            beside = Tally.of(found.others, np.roll(guessed, -1, axis=1), thresholds)
        levels = _Levels.of(self, found, thresholds, tally, beside)
        yield from levels.rows(thresholds.index(threshold), {})
        for index, level in enumerate(thresholds):
            yield from levels.rows(index, {"threshold": level})


@dataclass(frozen=True)
class _Levels:
    """A set's numbers at all thresholds.

    Attributes:
        rows_of: the set.
        found: what the attacks made of the updates.
        thresholds: in rising order.
        tally: counts.
        original: information.
        spread: its intervals, None of too few updates.
        beside: counts against other records, None where there are none.
    """

    rows_of: OriginalRows
    found: "Similarities"
    thresholds: tuple[float, ...]
    tally: "Tally"
    original: "Original"
    spread: "Spread | None"
    beside: "Tally | None"

    @classmethod
    def of(
        cls,
        rows_of: OriginalRows,
        found: "Similarities",
        thresholds: tuple[float, ...],
        tally: "Tally",
        beside: "Tally | None",
    ) -> "_Levels":
        from gradaudit.information.original import information, spread

        own, ends = information(tally), spread(tally, rows_of.seed)
        return cls(rows_of, found, thresholds, tally, own, ends, beside)

    def rows(self, at: int, variant: Variant) -> Iterator[Measurement]:
        """Both metrics at one threshold."""
        if self.tally.comparable[at]:
            yield self._information(at, variant)
        else:
            yield self._row(VINFO, variant, at, status="skipped", reason=NOTHING)
        yield self._success(at, variant)

    def _information(self, at: int, variant: Variant) -> Measurement:
        values = self.original.members[at]
        best = int(self.original.best[at])
        ends = None if self.spread is None else self.spread.values[at]
        value = float(self.original.values[at])
        details: dict[str, JsonValue] = {
            "chosen": self.found.members[best] if values[best] > 0 else "guessing",
            "members": dict(zip(self.found.members, values.tolist(), strict=True)),
            **self._few(),
            **self._permuted(at),
        }
        return self._row(
            VINFO,
            variant,
            at,
            value=value,
            interval=None if ends is None else (float(min(ends[0], value)), _most(ends[1], value)),
            confidence=None if ends is None else CONFIDENCE,
            unit="nats",
            n=self.tally.successes[at, best].size,
            details=details,
        )

    def _success(self, at: int, variant: Variant) -> Measurement:
        best = int(self.original.best[at])
        hits = int(self.tally.successes[at, best].sum())
        count = self.tally.successes[at, best].size * self.tally.restarts
        of_restarts = clopper_pearson(hits, count)
        ends = of_restarts if self.spread is None else self._of_new_records(at)
        details: dict[str, JsonValue] = {
            "chosen": self.found.members[best],
            "interval_of_these_records": list(of_restarts),
            **self._few(),
        }
        return self._row(
            SUCCESS,
            variant,
            at,
            value=hits / count,
            interval=ends,
            confidence=CONFIDENCE,
            n=count,
            details=details,
        )

    def _of_new_records(self, at: int) -> tuple[float, float]:
        """The bootstrap's; where all updates agree, Clopper and Pearson's with one trial each."""
        assert self.spread is not None
        low, high = self.spread.rates[at].tolist()
        updates = self.tally.successes.shape[2]
        if low == high and low in (0.0, 1.0):
            return clopper_pearson(round(low * updates), updates)
        return low, high

    def _row(
        self,
        metric: str,
        variant: Variant,
        at: int,
        *,
        details: Mapping[str, JsonValue] | None = None,
        **fields: object,
    ) -> Measurement:
        rows = self.rows_of
        return Measurement.model_validate(
            {
                "audit": AUDIT,
                "metric": metric,
                "layer": rows.chosen.layer,
                "variant": {**rows.turn, **rows.chosen.variant, **variant},
                **fields,
                "details": {**rows.facts, **self._counts(at), **(details or {})},
            }
        )

    def _counts(self, at: int) -> dict[str, JsonValue]:
        """Threshold, failed restarts, refused members, and the best guesses."""
        from gradaudit.attacks.reconstruction.success import KINDS

        kind = int(self.original.kinds[at])
        guessed: dict[str, JsonValue] = {
            "kind": KINDS[kind],
            "success": float(self.tally.guessed[at, kind].mean()),
        }
        return {
            "threshold": self.thresholds[at],
            "failed_restarts": dict(zip(self.found.members, self.found.failed, strict=True)),
            "refused": dict(self.found.refused),
            "guessed": guessed,
        }

    def _permuted(self, at: int) -> dict[str, JsonValue]:
        """The same numbers where each reconstruction is compared with other records."""
        if self.beside is None:
            return {}
        from gradaudit.information.original import information

        other = information(self.beside)
        best = int(other.best[at])
        rate = float(self.beside.rates[at, best].mean())
        return {"permuted": {"value": float(other.values[at]), "success": rate}}

    def _few(self) -> dict[str, JsonValue]:
        from gradaudit.information.original import FEWEST

        if self.spread is not None:
            return {}
        updates = self.tally.successes.shape[2]
        why = f"only {updates} updates; intervals over records need {FEWEST}"
        return {"warning": why, "imprecise": True, "imprecise_because": why}


def _most(end: float, value: float) -> float:
    return float(max(end, value))
