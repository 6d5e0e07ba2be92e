"""Makes the rows that audits report; audits make rows nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from gradaudit.audits.base import Audit
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.errors import GradauditError, NotApplicable
from gradaudit.report import Measurement, Status, Variant

if TYPE_CHECKING:
    from gradaudit.models.target import Target
    from gradaudit.subject import Subject

Details = Mapping[str, JsonValue]
Layers = Iterable[str | None]
Metrics = Iterable[str] | None
Facts = Details | None
_MODEL = (None,)
NO_TRUTH = "the update was captured, so there is no truth to score by; name it with --records"


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one audit that share a variant and facts.

    Attributes:
        audit: whose they are.
        variant: what tells them from the headline; empty for the headline itself.
        facts: what the details of every row begin with.
    """

    audit: type[Audit[Any]]
    variant: Variant = field(default_factory=dict)
    facts: Details = field(default_factory=dict)

    def of(self, variant: Variant, facts: Facts = None) -> Self:
        """Make rows with more in their variant and facts."""
        return replace(
            self, variant={**self.variant, **variant}, facts={**self.facts, **(facts or {})}
        )

    def measured(
        self,
        metric: str,
        value: float,
        *,
        layer: str | None = None,
        interval: tuple[float, float] | None = None,
        confidence: float | None = None,
        n: int | None = None,
        unit: str | None = None,
        imprecise: str = "",
        details: Facts = None,
    ) -> Measurement:
        """Make a measured row.

        Args:
            metric: id of one that the audit declares.
            value: finite, or positive infinity.
            layer: its name; None for the whole model.
            interval: [low, high].
            confidence: of the interval, or of a bound; 95 % of an interval without.
            n: how many of what the metric counts.
            unit: the metric's own without.
            imprecise: why the interval cannot be trusted; empty where it can.
            details: beside the facts.
        """
        units = {of_audit.id: of_audit.unit for of_audit in self.audit.metrics}
        if metric not in units:
            raise ValueError(f"{self.audit.name} declares no metric {metric!r}")
        more: dict[str, JsonValue] = {**self.facts, **(details or {})}
        if math.isinf(value):
            more["infinite"] = True
        if imprecise:
            more |= {"imprecise": True, "imprecise_because": imprecise}
        return Measurement(
            audit=self.audit.reports_as(),
            metric=metric,
            layer=layer,
            variant=self.variant,
            value=None if math.isinf(value) else value,
            interval=interval,
            confidence=CONFIDENCE if confidence is None and interval is not None else confidence,
            unit=units[metric] if unit is None else unit,
            n=n,
            details=more,
        )

    def skipped(
        self, reason: str, metrics: Metrics = None, layers: Layers = _MODEL, details: Facts = None
    ) -> Iterator[Measurement]:
        """Make rows of what does not apply, for some metrics or for all that the audit declares."""
        return self.unmeasured("skipped", reason, metrics, layers, details)

    def failed(
        self, reason: str, metrics: Metrics = None, layers: Layers = _MODEL
    ) -> Iterator[Measurement]:
        """Make rows of measurements that failed."""
        return self.unmeasured("failed", reason, metrics, layers)

    def without(
        self,
        why: GradauditError,
        metrics: Metrics = None,
        layers: Layers = _MODEL,
        details: Facts = None,
    ) -> Iterator[Measurement]:
        """Make rows of what an error prevented: skipped if it does not apply, else failed."""
        status: Status = "skipped" if isinstance(why, NotApplicable) else "failed"
        return self.unmeasured(status, str(why), metrics, layers, details)

    def unmeasured(
        self,
        status: Status,
        reason: str,
        metrics: Metrics = None,
        layers: Layers = _MODEL,
        details: Facts = None,
    ) -> Iterator[Measurement]:
        """Make a row with a reason for each layer and metric, by default all declared ones."""
        wanted = [metric.id for metric in self.audit.metrics] if metrics is None else list(metrics)
        for layer in layers:
            for metric in wanted:
                yield Measurement(
                    audit=self.audit.reports_as(),
                    metric=metric,
                    layer=layer,
                    variant=self.variant,
                    status=status,
                    reason=reason,
                    details={**self.facts, **(details or {})},
                )


def by_round(subject: Subject) -> Iterator[tuple[Target, Variant]]:
    """Pair the checkpoints' targets, oldest first, with variants; the newest's is empty."""
    newest = len(subject.targets)
    for number, target in enumerate(subject.targets, start=1):
        yield target, {} if number == newest else {"round": number}
