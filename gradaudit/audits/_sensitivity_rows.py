"""From sensitivities of records to rows: means, shares, intervals and what to say with them."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from gradaudit.report import Measurement, Status, Variant

if TYPE_CHECKING:
    from gradaudit.gradients.sensitivity import Array, Measured, Sample

NormName = Literal["f", "1", "inf"]
Reacting = Literal["input", "label"]


@dataclass(frozen=True)
class Reading:
    """What a metric is of: a norm of a Jacobian, as it is or over range and ψ."""

    reacting: Reacting
    norm: NormName
    bounded: bool

    @property
    def metric(self) -> str:
        """Its id; the paper has the label's only over range and ψ."""
        suffix = "_bounded" if self.bounded and self.reacting == "input" else ""
        return f"{self.reacting}_{self.norm}{suffix}"

    @property
    def unit(self) -> str:
        """Of its values."""
        return f"{'1' if self.bounded else 'gradient'}/{self.reacting}"


NORMS: tuple[NormName, ...] = ("f", "1", "inf")
READINGS = (
    *(Reading("input", norm, bounded=False) for norm in NORMS),
    *(Reading("input", norm, bounded=True) for norm in NORMS),
    *(Reading("label", norm, bounded=True) for norm in NORMS),
)


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one target.

    Attributes:
        audit: its name.
        layers: the number of elements of each layer's gradient, by name.
        variant: the round, if it is not the newest.
        seed: of the bootstrap.
        facts: what every row says.
    """

    audit: str
    layers: Mapping[str, int]
    variant: Variant
    seed: int
    facts: dict[str, JsonValue]

    def without(self, reacting: str, status: Status, reason: str) -> Iterator[Measurement]:
        """Rows that say why nothing was measured."""
        for reading in READINGS:
            for layer in self.layers if reading.reacting == reacting else ():
                yield from self._neither(reading, layer, status, reason)

    def of(self, reacting: str, measured: "Measured") -> Iterator[Measurement]:
        """Rows of every reading, norm and layer."""
        for reading in READINGS:
            if reading.reacting == reacting:
                yield from self._of_reading(reading, measured)

    def _of_reading(self, reading: Reading, measured: "Measured") -> Iterator[Measurement]:
        every = measured.bounded if reading.bounded else measured.raw
        samples = {
            layer: found[reading.norm]
            for layer, found in every.items()
            if reading.norm in found and found[reading.norm].defined.any()
        }
        yield from self._measured(reading, samples, measured)
        for layer in self.layers:
            if layer not in every:
                yield from self._neither(reading, layer, "skipped", _ONE_ELEMENT)
            elif layer not in samples:
                reason = _why_not(measured, every[layer], reading.norm)
                yield from self._neither(reading, layer, *reason)

    def _measured(
        self, reading: Reading, samples: "Mapping[str, Sample]", measured: "Measured"
    ) -> Iterator[Measurement]:
        """Rows of one reading: the means, and each mean's share in their sum."""
        import numpy as np

        if not samples:
            return
        total = sum(sample.mean for sample in samples.values())
        together = np.sum([_spread(sample) for sample in samples.values()], axis=0)
        probes = np.sum([sample.by_probe for sample in samples.values()], axis=0)
        for layer, sample in samples.items():
            facts = {**self.facts, "method": _method(sample, measured)}
            details = facts | _details(sample)
            yield self._row(reading, layer, sample.mean, self._interval(sample), sample, details)
            if total == 0:
                reason = "no layer's gradient reacts, so there is nothing to have a share in"
                yield self._not_measured(f"{reading.metric}_share", layer, "skipped", reason)
            else:
                facts["of"] = f"the sum over {len(samples)} shown layers"
                facts["undefined"] = _undefined(sample)
                interval = self._share_interval(sample, together, probes)
                share = sample.mean / total
                yield self._row(reading, layer, share, interval, sample, facts, share=True)

    def _interval(self, sample: "Sample") -> tuple[float, float] | None:
        """Of the mean over records like these, and over probes."""
        from gradaudit.gradients.sensitivity import joined
        from gradaudit.statistics.bootstrap import drawn, ratio_interval

        defined = sample.defined.astype(float)
        draws = drawn(len(defined), self.seed)
        found = ratio_interval(_spread(sample) * defined.mean(), defined, draws)
        if found is None or sample.exact:
            return found
        return joined(sample.mean, found, sample.interval())

    def _share_interval(
        self, sample: "Sample", together: "Array", probes: "Array"
    ) -> tuple[float, float] | None:
        """Of the share that one layer has in what all have together, by record and by probe."""
        from gradaudit.gradients.sensitivity import joined
        from gradaudit.statistics.bootstrap import drawn, ratio_interval
        from gradaudit.statistics.student import student

        found = ratio_interval(_spread(sample), together, drawn(len(together), self.seed))
        if found is None:
            return None
        low, high = found
        if not sample.exact:
            share = float(sample.by_probe.mean() / probes.mean())
            off = student(share + (sample.by_probe - share * probes) / probes.mean())
            low, high = joined(share, found, off)
        return low, min(high, 1.0)

    def _row(
        self,
        reading: Reading,
        layer: str,
        value: float,
        interval: tuple[float, float] | None,
        sample: "Sample",
        details: dict[str, JsonValue],
        *,
        share: bool = False,
    ) -> Measurement:
        from gradaudit.statistics import CONFIDENCE

        return Measurement(
            audit=self.audit,
            metric=reading.metric + ("_share" if share else ""),
            layer=layer,
            variant=self.variant,
            value=value,
            interval=interval,
            confidence=None if interval is None else CONFIDENCE,
            unit="" if share else reading.unit,
            n=int(sample.defined.sum()),
            details=details | _imprecision(sample),
        )

    def _neither(
        self,
        reading: Reading,
        layer: str,
        status: Status,
        reason: str,
        undefined: int | None = None,
    ) -> list[Measurement]:
        return [
            self._not_measured(name, layer, status, reason, undefined)
            for name in (reading.metric, f"{reading.metric}_share")
        ]

    def _not_measured(
        self, metric: str, layer: str, status: Status, reason: str, undefined: int | None = None
    ) -> Measurement:
        return Measurement(
            audit=self.audit,
            metric=metric,
            layer=layer,
            variant=self.variant,
            status=status,
            reason=reason,
            details=self.facts if undefined is None else {**self.facts, "undefined": undefined},
        )


def _spread(sample: "Sample") -> "Array":
    """Numbers of all records whose mean is the sample's, (all records,); 0 where undefined."""
    import numpy as np

    found = np.zeros(len(sample.defined))
    found[sample.defined] = sample.values / sample.defined.mean()
    return found


def _imprecision(sample: "Sample") -> dict[str, JsonValue]:
    """Why no interval of these records' mean can be trusted, if none can."""
    from gradaudit.statistics.bootstrap import FEWEST, enough_records

    count, needed = len(sample.values), enough_records(sample.values)
    if needed is None:
        return {}
    few = f"{count} records give no interval"
    uneven = f"few of the {count} records carry the mean"
    because = f"{few if count < FEWEST else uneven}; look at about {needed:,} (--samples)"
    return {"imprecise": True, "imprecise_because": because}


def _details(sample: "Sample") -> dict[str, JsonValue]:
    """What stands behind a mean: the median, the records left out, one that decides, the error."""
    from gradaudit.statistics import CONFIDENCE

    values = sample.values
    found: dict[str, JsonValue] = {
        "median": statistics.median(values.tolist()),
        "undefined": _undefined(sample),
    }
    share = float(values.max() / values.sum()) if values.any() else 0.0
    if len(values) > 2 and share > 0.5:
        found["warning"] = f"one record carries {share:.0%} of the mean; look at the median"
    if not sample.exact:
        low, high = sample.interval()
        found["estimate"] = {
            "method": _ESTIMATORS[sample.squared],
            "probes": sample.parts.shape[1],
            "interval": [low, high],
            "confidence": CONFIDENCE,
        }
    return found


_ESTIMATORS = {
    True: "Gaussian directions, the same for every record; chi-square interval (Satterthwaite)",
    False: "columns drawn without replacement, the same for every record; Student's interval",
}


def _method(sample: "Sample", measured: "Measured") -> str:
    how = "all columns" if sample.exact else f"estimated from {sample.parts.shape[1]} directions"
    return f"{how}, {measured.method}"


_ONE_ELEMENT = "its gradient has one element, which has no range to divide by"


def _undefined(sample: "Sample") -> int:
    """Records that are left out: their gradient moves, but has no range."""
    return int((~sample.defined).sum())


def _why_not(
    measured: "Measured", found: "Mapping[NormName, Sample]", norm: NormName
) -> tuple[Status, str, int | None]:
    """Status, reason, and how many records are undefined, where that is why."""
    if not found:
        return "failed", "some record's gradient or its Jacobian is not finite", None
    if norm not in found:
        reason = f"{measured.probes} probes do not show the largest entry; --probes 0 measures it"
        return "skipped", reason, None
    reason = "every record's gradient has range zero, but moves: nothing to divide by"
    return "failed", reason, _undefined(found[norm])
