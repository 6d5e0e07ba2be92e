"""From repetitions to rows: means, intervals, the noise floor beside them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.report import RISKIEST_BY, Measurement, Variant, skipped

if TYPE_CHECKING:
    from gradaudit.inference.spread import Sampled
    from gradaudit.inference.usable import Usable

AUDIT = "vinfo"
METRICS = ("vinfo", "vinfo_fraction", "auroc")
ENOUGH = 5
"""Repetitions from which on the interval is not warned of."""


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one attribute in one round.

    Attributes:
        variant: attribute and round, where there are several.
        facts: what every row says.
        sampled: how the records were used.
        reductions: what each layer's gradient was reduced by.
    """

    variant: Variant
    facts: Mapping[str, JsonValue]
    sampled: "Sampled"
    reductions: Mapping[str, str]

    def of(
        self, layer: str, real: "Sequence[Usable]", permuted: "Sequence[Usable]", why: str
    ) -> Iterator[Measurement]:
        """A layer's rows, and the same for the permuted attribute.

        Args:
            layer: its name.
            real: its repetitions.
            permuted: those of the permuted attribute; empty where it cannot be measured.
            why: the reason then.
        """
        floor: dict[str, JsonValue] = {}
        beside: Variant = {**self.variant, "attribute_permuted": True}
        for metric in METRICS:
            if permuted:
                row = self._row(metric, layer, permuted, beside, {})
                floor[metric] = {"value": row.value, "interval": _pair(row.interval)}
                yield row
            else:
                yield Measurement(
                    audit=AUDIT,
                    metric=metric,
                    layer=layer,
                    variant=beside,
                    status="skipped",
                    reason=why,
                )
        for metric in METRICS:
            details = {"permuted": floor[metric]} if metric in floor else {}
            yield self._row(metric, layer, real, self.variant, details)

    def independent(self, layer: str, found: "Sequence[Usable]", by: str) -> Measurement:
        """The AUROC of an attack on other records, with another seed and classifier."""
        variant: Variant = {**self.variant, "independent": True}
        details: dict[str, JsonValue] = {"families": [by]}
        return self._row("auroc", layer, found, variant, details)

    def _row(
        self,
        metric: str,
        layer: str,
        found: "Sequence[Usable]",
        variant: Variant,
        details: Mapping[str, JsonValue],
    ) -> Measurement:
        import numpy as np

        from gradaudit.inference.spread import imprecise
        from gradaudit.statistics import CONFIDENCE
        from gradaudit.statistics.student import student

        values = np.array([_number(metric, each) for each in found])
        mean = float(values.mean())
        because = imprecise(found, self.sampled)
        return Measurement(
            audit=AUDIT,
            metric=metric,
            layer=layer,
            variant=variant,
            value=mean if metric == "auroc" else max(0.0, mean),
            interval=_interval(metric, found, self.sampled),
            confidence=CONFIDENCE,
            unit="nats" if metric == "vinfo" else "",
            n=len(values),
            details={
                **self.facts,
                "reduction": self.reductions[layer],
                **_warning(len(values)),
                **({"imprecise": True, "imprecise_because": because} if because else {}),
                "mean": mean,
                "interval_over_repetitions": _pair(student(values)),
                "chosen": dict(Counter(_member(metric, each) for each in found)),
                **_learning(metric, found, self.sampled),
                **details,
            },
        )


def unmeasured(variant: Variant, layers: Sequence[str], reason: str) -> Iterator[Measurement]:
    """Rows that say why nothing was measured."""
    for row in skipped(AUDIT, METRICS, layers, reason):
        yield row.model_copy(update={"variant": variant})


def worst(rows: Sequence[Measurement], names: Sequence[str]) -> Iterator[Measurement]:
    """Of several attributes, each layer's rows of the one with the most information.

    Args:
        rows: of all attributes in one round, each with its variant ``attribute``.
        names: of the attributes, in order.
    """
    layers = dict.fromkeys(row.layer for row in rows)
    for layer in layers:
        own = [row for row in rows if row.layer == layer]
        measured = {
            str(row.variant["attribute"]): row.value or 0.0
            for row in own
            if row.metric == "vinfo"
            and row.status == "measured"
            and "attribute_permuted" not in row.variant
        }
        first = max(measured, key=lambda name: measured[name]) if measured else names[0]
        for row in own:
            if row.variant["attribute"] == first:
                variant = {key: at for key, at in row.variant.items() if key != "attribute"}
                details = {**row.details, "worst_of": list(names), RISKIEST_BY: ["attribute"]}
                yield row.model_copy(update={"variant": variant, "details": details})


def _number(metric: str, found: "Usable") -> float:
    if metric == "auroc":
        return found.auroc
    return found.information / (found.entropy if metric == "vinfo_fraction" else 1)


def _member(metric: str, found: "Usable") -> str:
    return found.ranker if metric == "auroc" else found.family


def _interval(metric: str, found: "Sequence[Usable]", sampled: "Sampled") -> tuple[float, float]:
    from gradaudit.inference.spread import auroc_interval, information_interval

    if metric == "auroc":
        return auroc_interval(found, sampled)
    low, high = information_interval(found, sampled)
    unit = found[0].entropy if metric == "vinfo_fraction" else 1.0
    return low / unit, high / unit


def _learning(metric: str, found: "Sequence[Usable]", sampled: "Sampled") -> dict[str, JsonValue]:
    """What is learned with fewer batches, and by that how far the value is from what is there."""
    from gradaudit.inference.spread import (
        auroc_interval,
        by_a_line,
        limit_of_ranking,
        mean_curve,
        ranked_share,
    )

    curve = mean_curve(found)
    if not curve:
        return {}
    unit = found[0].entropy if metric == "vinfo_fraction" else 1.0
    shares = [point.share for point in curve]
    values = [p.auroc if metric == "auroc" else p.information / unit for p in curve]
    limit = limit_of_ranking(curve) if auroc_interval(found, sampled)[0] > 0.5 else None
    if limit is not None and metric != "auroc":
        limit = ranked_share(limit) * found[0].entropy / unit
    return {
        "learning_curve": [[share, value] for share, value in zip(shares, values, strict=True)],
        "bias_at_least": -by_a_line(shares, values),
        "bias_estimate": None if limit is None else min(0.0, values[-1] - limit),
    }


def _warning(count: int) -> dict[str, JsonValue]:
    if count >= ENOUGH:
        return {}
    return {"warning": f"only {count} repetitions; the interval is poor, use {ENOUGH} or more"}


def _pair(interval: tuple[float, float] | None) -> list[JsonValue] | None:
    return None if interval is None else list(interval)
