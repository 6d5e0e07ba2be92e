"""Whether the layers' numbers follow what an independent attack gets from them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradaudit.audits.rows import Rows
from gradaudit.audits.vinfo import Vinfo
from gradaudit.report import Measurement, Variant
from gradaudit.statistics.correlation import FEWEST_POINTS, pearson

METRIC = "correlation"


@dataclass(frozen=True)
class Point:
    """One layer in one case.

    Attributes:
        case: attribute and round, as the variant says them.
        metrics: numbers of the layer by metric.
        auroc: of the independent attack.
        layer: its name.
    """

    case: Variant
    metrics: Mapping[str, float]
    auroc: float
    layer: str = ""

    @property
    def place(self) -> tuple[object, str]:
        """Round and layer, whatever the attribute."""
        return self.case.get("round"), self.layer


def correlation_rows(points: Sequence[Point]) -> Iterator[Measurement]:
    """Pearson's r of every metric, pooled over cases, and of each case with enough layers."""
    names = dict.fromkeys(name for point in points for name in point.metrics)
    cases: list[Variant] = []
    for point in points:
        if point.case not in cases:
            cases.append(point.case)
    for name in names:
        of_metric: Variant = {} if name == f"{Vinfo.name}.vinfo" else {"of": name}
        yield from _row(name, points, of_metric, f"{len(cases)} cases pooled")
        for case in cases if len(cases) > 1 else ():
            of_case = [point for point in points if point.case == case]
            if len(of_case) >= FEWEST_POINTS:
                yield from _row(name, of_case, {**of_metric, **case, "pooled": False}, "one case")


def crossed_rows(points: Sequence[Point]) -> Iterator[Measurement]:
    """Pearson's r of one attribute's information with the attack on another (2021, figure 7).

    Layers of all rounds are pooled; pairs with too few have no row.
    """
    attributes = dict.fromkeys(p.case["attribute"] for p in points if "attribute" in p.case)
    attacks = {(point.case.get("attribute"), point.place): point.auroc for point in points}
    for known, attacked in itertools.permutations(attributes, 2):
        crossed = [
            replace(point, auroc=attacks[attacked, point.place])
            for point in points
            if point.case.get("attribute") == known and (attacked, point.place) in attacks
        ]
        if len(crossed) >= FEWEST_POINTS:
            pair: Variant = {"attribute": known, "attack_on": attacked}
            yield from _row(f"{Vinfo.name}.vinfo", crossed, pair, "one attribute against another")


def _row(name: str, points: Sequence[Point], variant: Variant, what: str) -> Iterator[Measurement]:
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
