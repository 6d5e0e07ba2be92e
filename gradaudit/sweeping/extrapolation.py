"""Predicts a sweep's metrics at sizes that cannot be attacked, from the sizes that were.

On a scale without ends (probits of an AUROC, log-odds of a share, logarithms of what is positive)
a metric is y(k) = a + b h(k) + s W(log₂ k) + ε: a law h that theory knows (√k of what adds up over
k records, 1/√k of one record among k, log k of powers of k), a Brownian motion W for what no law
says, which widens the interval with the distance, and the measured values' own error ε. The law
and s are averaged over, by how well they explain the measured values (a Gaussian process with a
linear mean: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006,
section 2.7). The interval is that of another measurement at the size, as exact as the least exact
one measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr, ndtri

from gradaudit.audits import Audit, Metric
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.text import variant_text
from gradaudit.report import EXTRAPOLATED, Measurement, Report
from gradaudit.sweeping.grid import FEWEST

Floats = NDArray[np.float64]
EDGE = 1e-3
"""Distance from an end of its scale at which a share or an AUROC counts as at the end."""
DRIFTS = np.geomspace(0.02, 2.0, 16)
"""Values of s that are averaged over, in units of the scale for each doubling of the size."""
TYPICAL, SPREAD = 0.15, 1.0
"""Median of s before anything is measured, and the deviation of its logarithm."""
SLOPE = 3.0
"""Deviation of b, the law's whole change between the first and the last measured size."""
LAWS: Mapping[str, Callable[[Floats], Floats]] = {
    "√k": np.sqrt,
    "1/√k": lambda k: 1 / np.sqrt(k),
    "log k": np.log,
}
_SHARES = ("accuracy", "share", "recovered", "certified", "fraction")


@dataclass(frozen=True)
class UnboundedScale:
    """A scale without ends: from a metric's values to it and back."""

    name: str
    to: Callable[[Any], Any]
    back: Callable[[Any], Any]
    low: float = -math.inf
    high: float = math.inf

    def ends(self, value: float) -> bool:
        """Whether a value is at an end of the metric's range."""
        return not self.low + EDGE < value < self.high - EDGE

    def __call__(self, value: float) -> float:
        """The value on the scale; an end of the range is moved inwards by ``EDGE``."""
        return float(self.to(min(max(value, self.low + EDGE), self.high - EDGE)))


PROBIT = UnboundedScale("probit", ndtri, ndtr, 0.0, 1.0)
LOG_ODDS = UnboundedScale("log-odds", logit, expit, 0.0, 1.0)
LOGARITHM = UnboundedScale("logarithm", np.log, np.exp, 0.0)
PLAIN = UnboundedScale("plain", float, float)


def scale_of(metric: Metric, values: Sequence[float]) -> UnboundedScale:
    """Returns the scale of a metric with these measured values."""
    if metric.chance == 0.5:
        return PROBIT
    if metric.chance == 1 and min(values) >= 0:
        return LOGARITHM
    share = metric.id.endswith(_SHARES) and 0 <= min(values) <= max(values) <= 1
    return LOG_ODDS if share else PLAIN


def extrapolate(report: Report, audit: type[Audit[Any]], key: str, size: float) -> Report:
    """Returns the sweep's report with a predicted row for every metric, layer and setting.

    Metrics are those that say what there is by chance. Fitted to batches up to 16 of 16 pairs of
    model and real data, intervals held 215 of 217 measurements at 32 to 128, and 10 of 109 series
    were refused (``benchmarks/coverage/extrapolations.py``; the constants of this module were set
    before).
    """
    name = audit.reports_as()
    metrics = {f"{name}.{m.id}": m for m in audit.metrics if m.riskier and m.chance is not None}
    series: dict[object, list[Measurement]] = {}
    for row in report.rows:
        if row.id in metrics and key in row.variant and row.value is not None:
            rest = {name: value for name, value in row.variant.items() if name != key}
            series.setdefault((row.id, row.layer, variant_text(rest)), []).append(row)
    made = [_row(metrics[rows[0].id], rows, key, size) for rows in series.values()]
    return report.model_copy(update={"measurements": [*report.measurements, *made]})


def _row(metric: Metric, rows: Sequence[Measurement], key: str, size: float) -> Measurement:
    """The row at a size, or why there is none."""
    rows = sorted(rows, key=lambda row: float(row.variant[key]))
    whole = int(size) if size == int(size) else size
    basis: dict[str, JsonValue] = {"measured": [row.variant[key] for row in rows]}
    blank = Measurement(
        audit=rows[0].audit,
        metric=rows[0].metric,
        layer=rows[0].layer,
        variant={**rows[0].variant, key: whole},
        unit=rows[0].unit,
        status="skipped",
        reason="not extrapolated",
    )
    curve = Curve.of(metric, rows, key)
    if why := curve.why_not():
        return blank.model_copy(
            update={"reason": f"not extrapolated: {why}", "details": {EXTRAPOLATED: basis}}
        )
    found, (held, tested) = curve.predict(size), curve.held_out()
    basis |= {"law": found.law, "scale": curve.scale.name, "held_out": held, "inside": tested}
    return blank.model_copy(
        update={
            "value": found.value,
            "interval": (found.low, found.high),
            "confidence": CONFIDENCE,
            "status": "measured",
            "reason": None,
            "details": {EXTRAPOLATED: basis, "warning": "extrapolated, not measured"},
        }
    )


@dataclass(frozen=True)
class Prediction:
    """The median and the interval at a size, and the law that explains the measured values best."""

    value: float
    low: float
    high: float
    law: str


@dataclass(frozen=True)
class Curve:
    """Measured values of one metric over growing sizes, on a scale without ends.

    Attributes:
        scale: of ``y``.
        k: (sizes,).
        y: (sizes,).
        error: (sizes,) standard deviations of ``y``.
    """

    scale: UnboundedScale
    k: Floats
    y: Floats
    error: Floats

    @classmethod
    def of(cls, metric: Metric, rows: Sequence[Measurement], key: str) -> "Curve":
        """The curve of rows that differ in one key alone, by growing sizes.

        Small sizes at an end of the metric's range, as where a batch is solved exactly, say nothing
        of where it leaves that end, and are left out.
        """
        scale = scale_of(metric, [row.value or 0.0 for row in rows])
        first = next(
            (i for i, row in enumerate(rows) if not scale.ends(row.value or 0.0)), len(rows)
        )
        rows = rows[first:]
        values = [row.value or 0.0 for row in rows]
        k = np.array([float(row.variant[key]) for row in rows])
        error = np.array([_error(scale, row) for row in rows])
        y = np.array([scale(value) for value in values])
        if scale is PLAIN:
            unit = float(np.ptp(y)) or 1.0
            scale = UnboundedScale("plain", lambda x: x / unit, lambda x: x * unit)
            y, error = y / unit, error / unit
        return cls(scale, k, y, error)

    def first(self, count: int) -> "Curve":
        """The curve without its largest sizes."""
        return Curve(self.scale, self.k[:count], self.y[:count], self.error[:count])

    def why_not(self) -> str:
        """Why nothing is predicted; empty where the fit holds out."""
        if len(self.k) < FEWEST:
            return (
                f"the metric is measured, and not yet at an end of its range, at {len(self.k)} "
                f"sizes, fewer than {FEWEST}; measure more"
            )
        held, inside = self.held_out()
        return "" if inside else f"the {held} largest sizes are not as the smaller ones predict"

    def held_out(self) -> tuple[int, bool]:
        """How many of the largest sizes are predicted from the others, and whether all hold."""
        held = 1 if len(self.k) == FEWEST else 2
        rest = self.first(len(self.k) - held)
        places = range(len(self.k) - held, len(self.k))
        found = [rest.predict(self.k[i], error=self.error[i]) for i in places]
        back = [float(self.scale.back(self.y[i])) for i in places]
        slack = 1e-9
        return held, all(
            one.low - slack <= value <= one.high + slack
            for one, value in zip(found, back, strict=True)
        )

    def predict(self, size: float, *, error: float | None = None) -> Prediction:
        """The median and the interval of a measurement at a size, with this error on the scale."""
        parts = list(self._parts(float(size), self.error.max() if error is None else error))
        logs, means, deviations = np.array([part[:3] for part in parts]).T
        weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
        by_law = {
            law: sum(w for w, p in zip(weights, parts, strict=True) if p[3] == law) for law in LAWS
        }

        def quantile(share: float) -> float:
            low, high = (means - 9 * deviations).min(), (means + 9 * deviations).max()
            at = brentq(lambda y: weights @ ndtr((y - means) / deviations) - share, low, high)
            return float(self.scale.back(at))

        tail = (1 - CONFIDENCE) / 2
        low, value, high = map(quantile, (tail, 0.5, 1 - tail))
        return Prediction(value, low, high, max(by_law, key=lambda law: by_law[law]))

    def _parts(self, size: float, error: float) -> Iterator[tuple[float, float, float, str]]:
        """Log weight, mean and deviation at a size of every law and drift."""
        k = np.append(self.k, size)
        doublings = np.log2(k / k[0])
        noise = np.diag(np.append(self.error, error) ** 2)
        for law, basis in LAWS.items():
            h = basis(k)
            h = (h - h[0]) / (h[-2] - h[0])
            for drift in DRIFTS:
                free = np.minimum.outer(doublings, doublings) + np.eye(len(k)) / 4
                c = 100.0 + SLOPE**2 * np.outer(h, h) + drift**2 * free + noise
                inner, across = c[:-1, :-1], c[:-1, -1]
                factor = np.linalg.cholesky(inner)
                white = np.linalg.solve(factor, np.column_stack([self.y, across]))
                mean = float(white[:, 0] @ white[:, 1])
                deviation = math.sqrt(c[-1, -1] - white[:, 1] @ white[:, 1])
                prior = -0.5 * (math.log(drift / TYPICAL) / SPREAD) ** 2
                fit = -0.5 * white[:, 0] @ white[:, 0] - np.log(np.diag(factor)).sum()
                yield float(fit + prior), mean, deviation, law


def _error(scale: UnboundedScale, row: Measurement) -> float:
    """Standard deviation of a row's value on the scale, from its interval."""
    if row.interval is None or row.value is None:
        return 0.0
    y, low, high = scale(row.value), scale(row.interval[0]), scale(row.interval[1])
    width = 2 * max(high - y, 0.0) if scale.ends(row.interval[0]) else high - low
    return width / (2 * float(ndtri((1 + (row.confidence or CONFIDENCE)) / 2)))
