"""From sensitivities of records to rows: means, shares, intervals and what to say with them."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from gradaudit.report import Measurement, Status, Variant

if TYPE_CHECKING:
    from gradaudit.gradients.estimates import Array, Sample
    from gradaudit.gradients.sensitivity import Measured

NormName = Literal["f", "1", "inf"]

NORMS: Mapping[NormName, str] = {
    "f": "root of the sum of squares of its Jacobian, over √elements",
    "1": "sum of absolute entries of its Jacobian, over elements",
    "inf": "largest absolute entry of its Jacobian",
}


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
        for norm in NORMS:
            for layer in self.layers:
                yield from self._neither(f"{reacting}_{norm}", layer, status, reason)

    def of(self, reacting: str, measured: "Measured") -> Iterator[Measurement]:
        """Rows of every norm and layer."""
        for norm in NORMS:
            samples = {
                layer: found[norm]
                for layer, found in measured.samples.items()
                if self.layers[layer] > 1 and norm in found and found[norm].defined.any()
            }
            yield from self._measured(f"{reacting}_{norm}", samples, measured)
            for layer in self.layers:
                if layer not in samples:
                    metric = f"{reacting}_{norm}"
                    if self.layers[layer] == 1:
                        yield from self._neither(metric, layer, "skipped", _ONE_ELEMENT)
                    else:
                        yield from self._neither(metric, layer, *_why_not(measured, layer, norm))

    def _measured(
        self, metric: str, samples: "Mapping[str, Sample]", measured: "Measured"
    ) -> Iterator[Measurement]:
        """Rows of one norm: the means, and each mean's share in their sum."""
        means = {layer: self._replicates(sample) for layer, sample in samples.items()}
        total = sum(sample.mean for sample in samples.values())
        for layer, sample in samples.items():
            facts = {**self.facts, "method": _method(sample, measured)}
            yield self._row(
                metric, layer, sample.mean, means[layer], sample, facts | _details(sample)
            )
            if total == 0:
                reason = "no layer's gradient reacts, so there is nothing to have a share in"
                yield self._not_measured(f"{metric}_share", layer, "skipped", reason)
            else:
                facts["of"] = f"the sum over {len(samples)} shown layers"
                facts["undefined"] = _undefined(sample)
                shares = means[layer] / sum(means.values())
                value = sample.mean / total
                yield self._row(f"{metric}_share", layer, value, shares, sample, facts)

    def _replicates(self, sample: "Sample") -> "Array":
        """The mean over records and probes drawn again, the same ones for every layer."""
        from gradaudit.gradients.estimates import drawn

        records = drawn(len(sample.defined), self.seed, 0)
        probes = drawn(sample.parts.shape[1], self.seed, 1)
        return sample.replicates(records, probes / probes.sum(axis=1, keepdims=True))

    def _row(
        self,
        metric: str,
        layer: str,
        value: float,
        replicates: "Array",
        sample: "Sample",
        details: dict[str, JsonValue],
    ) -> Measurement:
        from gradaudit.gradients.estimates import CONFIDENCE, percentiles

        alone = sample.exact and len(sample.defined) == 1
        return Measurement(
            audit=self.audit,
            metric=metric,
            layer=layer,
            variant=self.variant,
            value=value,
            interval=None if alone else percentiles(replicates),
            confidence=None if alone else CONFIDENCE,
            unit="" if metric.endswith("share") else f"1/{metric.split('_')[0]}",
            n=int(sample.defined.sum()),
            details=details,
        )

    def _neither(
        self, metric: str, layer: str, status: Status, reason: str, undefined: int | None = None
    ) -> list[Measurement]:
        return [
            self._not_measured(name, layer, status, reason, undefined)
            for name in (metric, f"{metric}_share")
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


def _details(sample: "Sample") -> dict[str, JsonValue]:
    """What stands behind a mean: the median, the records left out, one that decides, the error."""
    from gradaudit.gradients.estimates import CONFIDENCE

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


def _why_not(measured: "Measured", layer: str, norm: NormName) -> tuple[Status, str, int | None]:
    """Status, reason, and how many records are undefined, where that is why."""
    found = measured.samples[layer]
    if not found:
        return "failed", "some record's gradient or its Jacobian is not finite", None
    if norm not in found:
        reason = f"{measured.probes} probes do not show the largest entry; --probes 0 measures it"
        return "skipped", reason, None
    reason = "every record's gradient has range zero, but moves: nothing to divide by"
    return "failed", reason, _undefined(found[norm])
