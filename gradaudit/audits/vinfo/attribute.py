"""Makes an attribute's rows from its repetitions, and their correlation with an attack."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.rows import Rows
from gradaudit.audits.vinfo import LATENT, Vinfo
from gradaudit.audits.vinfo.spread import (
    RecordUse,
    auroc_interval,
    information_interval,
    ranked_alone,
)
from gradaudit.audits.vinfo.v_information import RATES, UsableInformation
from gradaudit.core.statistics.correlation import FEWEST_POINTS, pearson
from gradaudit.core.statistics.intervals import student
from gradaudit.families import sizes
from gradaudit.report import LEARNERS, RISKIEST_BY, Measurement, Variant

METRIC = "correlation"
RANKED = ("roc", "aurocs")
"""Details of an AUROC that are kept of the permuted attribute as well."""
ENOUGH = 5
"""Repetitions from which on the interval is not warned of."""


@dataclass(frozen=True)
class LayerPoint:
    """One layer of one attribute in one round, which the variant names.

    Its numbers by metric, and the AUROC of the independent attack.
    """

    case: Variant
    metrics: Mapping[str, float]
    auroc: float
    layer: str = ""

    @property
    def place(self) -> tuple[object, str]:
        """The round and the layer, without the attribute."""
        return self.case.get("round"), self.layer


def correlation_rows(points: Sequence[LayerPoint]) -> Iterator[Measurement]:
    """Make rows of Pearson's r of every metric, over all cases and for each with enough layers."""
    cases = list({repr(point.case): point.case for point in points}.values())
    for name in dict.fromkeys(name for point in points for name in point.metrics):
        of_metric: Variant = {} if name == f"{Vinfo.name}.vinfo" else {"of": name}
        yield from _row(name, points, of_metric, f"{len(cases)} cases pooled")
        for case in cases if len(cases) > 1 else ():
            of_case = [point for point in points if point.case == case]
            if len(of_case) >= FEWEST_POINTS:
                yield from _row(name, of_case, {**of_metric, **case, "pooled": False}, "one case")


def _row(
    name: str, points: Sequence[LayerPoint], variant: Variant, what: str
) -> Iterator[Measurement]:
    held = [point for point in points if name in point.metrics]
    cases = list(dict.fromkeys(repr(point.case) for point in held))
    pooled = len(cases) > 1
    correlation = pearson(
        np.array([point.metrics[name] for point in held]),
        np.array([point.auroc for point in held]),
        clusters=[cases.index(repr(point.case)) for point in held] if pooled else None,
    )
    rows = Rows(Vinfo, variant)
    if correlation is None:
        few = f"{len(held)} points; {FEWEST_POINTS} are needed"
        reason = few if len(held) < FEWEST_POINTS else "one of both is the same in every layer"
        yield from rows.skipped(f"{name}: {reason}", [METRIC])
        return
    yield rows.measured(
        METRIC,
        correlation.r,
        interval=correlation.interval,
        n=correlation.n,
        details={
            "of": name,
            "with": "AUROC of an attack on other records, with another seed and classifier",
            "t": correlation.t,
            "p": correlation.p,
            "spearman": correlation.spearman,
            "points": what,
            "interval_by": "jackknife over cases" if pooled else "Fisher",
        },
    )


@dataclass(frozen=True)
class AttributeRows:
    """Makes the rows of one attribute in one round; ``facts`` are details of every measured row."""

    rows: Rows
    facts: Mapping[str, JsonValue]
    sampled: RecordUse
    reductions: Mapping[str, str]

    def of(
        self,
        layer: str,
        real: Sequence[UsableInformation],
        permuted: Sequence[UsableInformation],
        why: str,
    ) -> Iterator[Measurement]:
        """Make a layer's rows, with those of the permuted attribute or why there are none."""
        floor: dict[str, JsonValue] = {}
        variant: Variant = {"attribute_permuted": True}
        if not permuted:
            yield from self.rows.of(variant).skipped(why, LATENT, [layer])
        for metric in LATENT if permuted else ():
            row = self._row(metric, layer, permuted, variant, {})
            kept: dict[str, JsonValue] = {k: v for k, v in row.details.items() if k in RANKED}
            floor[metric] = {"value": row.value, "interval": _pair(row.interval), **kept}
            yield row
        for metric in LATENT:
            details = {"permuted": floor[metric]} if metric in floor else {}
            yield self._row(metric, layer, real, {}, details)

    def independent(self, layer: str, attack: Sequence[UsableInformation], by: str) -> Measurement:
        """Make the row of the AUROC of an attack on other records with another classifier."""
        of_attack: dict[str, JsonValue] = {"families": [by], LEARNERS: sizes([by])}
        return self._row("auroc", layer, attack, {"independent": True}, of_attack)

    def _row(
        self,
        metric: str,
        layer: str,
        repetitions: Sequence[UsableInformation],
        variant: Variant,
        details: Mapping[str, JsonValue],
    ) -> Measurement:
        if metric == "auroc":
            values = np.array([usable.auroc for usable in repetitions])
            chosen = Counter(usable.ranker for usable in repetitions)
            low, high = auroc_interval(repetitions, self.sampled)
        else:
            unit = _unit(metric, repetitions)
            low, high = (x / unit for x in information_interval(repetitions, self.sampled))
            values = np.array([x.information / _unit(metric, [x]) for x in repetitions])
            chosen = Counter(usable.family for usable in repetitions)
        mean, count = float(values.mean()), len(values)
        few = f"only {count} repetitions; the interval is wide, use {ENOUGH} or more"
        warnings = [few if count < ENOUGH else "", ranked_alone(repetitions, self.sampled)]
        warning = "; ".join(filter(None, warnings))
        return self.rows.of(variant, self.facts).measured(
            metric,
            mean if metric == "auroc" else max(0.0, mean),
            layer=layer,
            interval=(low, high),
            n=count,
            details={
                "reduction": self.reductions[layer],
                **({"warning": warning} if warning else {}),
                "mean": mean,
                "interval_over_repetitions": _pair(student(values)),
                "chosen": dict(chosen),
                **(_ranking(repetitions) if metric == "auroc" else {}),
                **details,
            },
        )


def worst(rows: Sequence[Measurement], names: Sequence[str]) -> Iterator[Measurement]:
    """Make each layer's rows of the attribute with the most information in a round."""
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


def _unit(metric: str, repetitions: Sequence[UsableInformation]) -> float:
    return repetitions[0].entropy if metric == "vinfo_fraction" else 1.0


def _ranking(repetitions: Sequence[UsableInformation]) -> dict[str, JsonValue]:
    """Compute the mean ROC curve over repetitions as pairs of rates, and each one's AUROC."""
    curves = [usable.roc for usable in repetitions if usable.roc]
    if not curves:
        return {}
    mean = np.mean(curves, axis=0)
    points: list[JsonValue] = [
        [rate, round(float(true), 4)] for rate, true in zip(RATES, mean, strict=True)
    ]
    return {"roc": points, "aurocs": [round(usable.auroc, 4) for usable in repetitions]}


def _pair(interval: tuple[float, float] | None) -> list[JsonValue] | None:
    return None if interval is None else list(interval)
