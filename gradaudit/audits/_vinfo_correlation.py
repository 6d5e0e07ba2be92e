"""Whether the layers' numbers follow what an independent attack gets from them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradaudit.audits._vinfo_rows import AUDIT
from gradaudit.report import Measurement, Variant

METRIC = "correlation"
FEWEST_POINTS = 5


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


def correlation_rows(points: Sequence[Point]) -> Iterator[Measurement]:
    """Pearson's r of every metric, pooled over cases, and of each case with enough layers."""
    names = dict.fromkeys(name for point in points for name in point.metrics)
    cases: list[Variant] = []
    for point in points:
        if point.case not in cases:
            cases.append(point.case)
    for name in names:
        of_metric: Variant = {} if name == f"{AUDIT}.vinfo" else {"of": name}
        yield _row(name, points, of_metric, f"{len(cases)} cases pooled")
        for case in cases if len(cases) > 1 else ():
            own = [point for point in points if point.case == case]
            if len(own) >= FEWEST_POINTS:
                yield _row(name, own, {**of_metric, **case, "pooled": False}, "one case")


def crossed_rows(points: Sequence[Point]) -> Iterator[Measurement]:
    """Pearson's r of one attribute's information with the attack on another (2021, figure 7).

    Layers of all rounds are pooled; pairs with too few have no row.
    """
    attributes = dict.fromkeys(p.case["attribute"] for p in points if "attribute" in p.case)
    attacks = {(point.case.get("attribute"), _place(point)): point.auroc for point in points}
    for known, attacked in itertools.permutations(attributes, 2):
        crossed = [
            replace(point, auroc=attacks[attacked, _place(point)])
            for point in points
            if point.case.get("attribute") == known and (attacked, _place(point)) in attacks
        ]
        if len(crossed) >= FEWEST_POINTS:
            pair: Variant = {"attribute": known, "attack_on": attacked}
            yield _row(f"{AUDIT}.vinfo", crossed, pair, "one attribute against another")


def _place(point: Point) -> tuple[object, str]:
    return point.case.get("round"), point.layer


def no_correlation(reason: str) -> Measurement:
    """The row that says why there is none."""
    return Measurement(audit=AUDIT, metric=METRIC, status="skipped", reason=reason)


def _row(name: str, points: Sequence[Point], variant: Variant, what: str) -> Measurement:
    import numpy as np

    from gradaudit.statistics import CONFIDENCE
    from gradaudit.statistics.correlation import pearson

    held = [point for point in points if name in point.metrics]
    cases = list({repr(point.case): None for point in held})
    clusters = [cases.index(repr(point.case)) for point in held]
    found = pearson(
        np.array([point.metrics[name] for point in held]),
        np.array([p.auroc for p in held]),
        clusters=clusters if len(cases) > 1 else None,
    )
    if found is None:
        few = f"{len(held)} points; {FEWEST_POINTS} are needed"
        reason = few if len(held) < FEWEST_POINTS else "one of both is the same in every layer"
        return Measurement(
            audit=AUDIT,
            metric=METRIC,
            variant=variant,
            status="skipped",
            reason=f"{name}: {reason}",
        )
    return Measurement(
        audit=AUDIT,
        metric=METRIC,
        variant=variant,
        value=found.r,
        interval=found.interval,
        confidence=CONFIDENCE,
        n=found.n,
        details={
            "of": name,
            "with": "AUROC of an attack on other records, with another seed and classifier",
            "t": found.t,
            "p": found.p,
            "spearman": found.spearman,
            "points": what,
            "interval_by": "jackknife over cases" if len(cases) > 1 else "Fisher",
        },
    )
