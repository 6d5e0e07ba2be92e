"""From repetitions to rows: means, intervals, the noise floor beside them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.rows import Rows
from gradaudit.audits.vinfo import LATENT
from gradaudit.inference.spread import (
    Sampled,
    auroc_interval,
    by_a_line,
    imprecise,
    information_interval,
    limit_of_ranking,
    mean_curve,
    ranked_share,
)
from gradaudit.inference.usable import Usable
from gradaudit.report import RISKIEST_BY, Measurement, Variant
from gradaudit.statistics.intervals import student

ENOUGH = 5
"""Repetitions from which on the interval is not warned of."""


@dataclass(frozen=True)
class AttributeRows:
    """Makes the rows of one attribute in one round.

    Attributes:
        rows: with attribute and round in their variant, where there are several.
        facts: what every measured row says.
        sampled: how the records were used.
        reductions: what each layer's gradient was reduced by.
    """

    rows: Rows
    facts: Mapping[str, JsonValue]
    sampled: Sampled
    reductions: Mapping[str, str]

    def of(
        self, layer: str, real: Sequence[Usable], permuted: Sequence[Usable], why: str
    ) -> Iterator[Measurement]:
        """A layer's rows, and the same for the permuted attribute.

        Args:
            layer: its name.
            real: its repetitions.
            permuted: those of the permuted attribute; empty where it cannot be measured.
            why: the reason then.
        """
        floor: dict[str, JsonValue] = {}
        variant: Variant = {"attribute_permuted": True}
        if not permuted:
            yield from self.rows.of(variant).skipped(why, LATENT, [layer])
        for metric in LATENT if permuted else ():
            row = self._row(metric, layer, permuted, variant, {})
            floor[metric] = {"value": row.value, "interval": _pair(row.interval)}
            yield row
        for metric in LATENT:
            details = {"permuted": floor[metric]} if metric in floor else {}
            yield self._row(metric, layer, real, {}, details)

    def independent(self, layer: str, attack: Sequence[Usable], by: str) -> Measurement:
        """The AUROC of an attack on other records, with another seed and classifier."""
        return self._row("auroc", layer, attack, {"independent": True}, {"families": [by]})

    def _row(
        self,
        metric: str,
        layer: str,
        repetitions: Sequence[Usable],
        variant: Variant,
        details: Mapping[str, JsonValue],
    ) -> Measurement:
        values = np.array([_number(metric, usable) for usable in repetitions])
        mean = float(values.mean())
        return self.rows.of(variant, self.facts).measured(
            metric,
            mean if metric == "auroc" else max(0.0, mean),
            layer=layer,
            interval=_interval(metric, repetitions, self.sampled),
            n=len(values),
            imprecise=imprecise(repetitions, self.sampled),
            details={
                "reduction": self.reductions[layer],
                **_warning(len(values)),
                "mean": mean,
                "interval_over_repetitions": _pair(student(values)),
                "chosen": dict(Counter(_member(metric, usable) for usable in repetitions)),
                **_learning(metric, repetitions, self.sampled),
                **details,
            },
        )


def worst(rows: Sequence[Measurement], names: Sequence[str]) -> Iterator[Measurement]:
    """Of several attributes, each layer's rows of the one with the most information.

    Args:
        rows: of all attributes in one round, each with its variant ``attribute``.
        names: of the attributes, in order.
    """
    for layer in dict.fromkeys(row.layer for row in rows):
        of_layer = [row for row in rows if row.layer == layer]
        measured = {
            str(row.variant["attribute"]): row.value or 0.0
            for row in of_layer
            if row.metric == "vinfo"
            and row.status == "measured"
            and "attribute_permuted" not in row.variant
        }
        first = max(measured, key=lambda name: measured[name]) if measured else names[0]
        for row in of_layer:
            if row.variant["attribute"] == first:
                variant = {key: at for key, at in row.variant.items() if key != "attribute"}
                details = {**row.details, "worst_of": list(names), RISKIEST_BY: ["attribute"]}
                yield row.model_copy(update={"variant": variant, "details": details})


def _unit(metric: str, repetitions: Sequence[Usable]) -> float:
    """What information is divided by: one, or the prior's entropy."""
    return repetitions[0].entropy if metric == "vinfo_fraction" else 1.0


def _number(metric: str, usable: Usable) -> float:
    return usable.auroc if metric == "auroc" else usable.information / _unit(metric, [usable])


def _member(metric: str, usable: Usable) -> str:
    return usable.ranker if metric == "auroc" else usable.family


def _interval(metric: str, repetitions: Sequence[Usable], sampled: Sampled) -> tuple[float, float]:
    if metric == "auroc":
        return auroc_interval(repetitions, sampled)
    low, high = information_interval(repetitions, sampled)
    unit = _unit(metric, repetitions)
    return low / unit, high / unit


def _learning(metric: str, repetitions: Sequence[Usable], sampled: Sampled) -> dict[str, JsonValue]:
    """What is learned with fewer batches, and by that how far the value is from what is there."""
    curve = mean_curve(repetitions)
    if not curve:
        return {}
    unit = _unit(metric, repetitions)
    shares = [point.share for point in curve]
    values = [p.auroc if metric == "auroc" else p.information / unit for p in curve]
    limit = limit_of_ranking(curve) if auroc_interval(repetitions, sampled)[0] > 0.5 else None
    if limit is not None and metric != "auroc":
        limit = ranked_share(limit) * repetitions[0].entropy / unit
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
