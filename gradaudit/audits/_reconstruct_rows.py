"""Rows of ``attack reconstruct``: what the attacker's answers score, and what the restarts did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._attack_intervals import CONFIDENCE, clopper_pearson, student
from gradaudit.report import Measurement, Variant, skipped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradaudit.attacks.reconstruction.attempts import Attempt

_RANGES = {"psnr": (-math.inf, math.inf), "ssim": (-1.0, 1.0)}
SCORES = ("mse", "relative_error", "psnr", "ssim")
_UNITS = {"psnr": "dB"}
_NO_PICTURE = (
    "the records are no pictures in [0, 1] with one or three channels, or too small for a window"
)
_NO_TRUTH = "the update was captured, so there is no truth to score by; name it with --records"


@dataclass(frozen=True)
class Result:
    """A method's attempts on all batches.

    Attributes:
        method: as it was named.
        attempts: one a batch.
        batch: records in a batch.
        success: relative error up to which a restart succeeds.
        facts: what every row says.
    """

    method: str
    attempts: Sequence[Attempt]
    batch: int
    success: float
    facts: Mapping[str, JsonValue]

    def answers(self, metric: str) -> NDArray[np.float64]:
        """The answers' scores, of batches where not every restart diverged."""
        import numpy as np

        return np.array(
            [
                attempt.scores[metric][attempt.answer]
                for attempt in self._answered()
                if metric in attempt.scores
            ]
        )

    def _answered(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.answer is not None]

    def rows(self, audit: str, variant: Variant) -> Iterator[Measurement]:
        """All metrics of this method."""
        if not self._answered():
            yield from _failed(audit, variant, "every restart diverged", self.facts)
            return
        for metric in SCORES:
            yield self._score(audit, metric, variant)
        yield self._labels(audit, variant)
        yield self._own(audit, variant)

    def _score(self, audit: str, metric: str, variant: Variant) -> Measurement:
        answers = self.answers(metric)
        if not len(answers):
            truth = any(attempt.scores for attempt in self.attempts)
            return _without(audit, metric, variant, _NO_PICTURE if truth else _NO_TRUTH)
        mean = float(answers.mean())
        interval = student(answers, _RANGES.get(metric, (0.0, math.inf)))
        return Measurement(
            audit=audit,
            metric=metric,
            variant=variant,
            value=mean if math.isfinite(mean) else None,
            interval=interval,
            confidence=CONFIDENCE if interval else None,
            unit=_UNITS.get(metric, ""),
            n=len(answers),
            details={
                **self.facts,
                **({} if math.isfinite(mean) else {"infinite": True}),
                "answers": [_number(float(answer)) for answer in answers],
                "restarts": self._restarts(metric),
            },
        )

    def _restarts(self, metric: str) -> dict[str, JsonValue]:
        """Over the restarts of all batches: mean, best, and how many succeeded."""
        import numpy as np

        scores = np.concatenate(
            [attempt.scores[metric][attempt.usable] for attempt in self.attempts]
        )
        errors = np.concatenate([attempt.scores["relative_error"] for attempt in self.attempts])
        usable = np.concatenate([attempt.usable for attempt in self.attempts])
        successes, count = int((errors[usable] <= self.success).sum()), len(errors)
        best = scores.max() if metric in ("psnr", "ssim") else scores.min()
        return {
            "count": count,
            "diverged": int((~usable).sum()),
            "mean": _number(float(scores.mean())),
            "mean_interval": _list(student(scores, _RANGES.get(metric, (0.0, math.inf)))),
            "best": _number(float(best)),
            "success_rate": successes / count,
            "success_interval": _list(clopper_pearson(successes, count)),
            "success": f"relative error up to {self.success:g}",
        }

    def _labels(self, audit: str, variant: Variant) -> Measurement:
        metric = "label_accuracy"
        shares = [
            attempt.labels[attempt.answer]
            for attempt in self._answered()
            if attempt.labels is not None
        ]
        if not shares:
            why = "the attacker was told the labels, names none, or they are real numbers"
            return _without(audit, metric, variant, why)
        count = len(shares) * self.batch
        hits = round(sum(float(share) for share in shares) * self.batch)
        return Measurement(
            audit=audit,
            metric=metric,
            variant=variant,
            value=hits / count,
            interval=clopper_pearson(hits, count),
            confidence=CONFIDENCE,
            n=count,
            details=dict(self.facts),
        )

    def _own(self, audit: str, variant: Variant) -> Measurement:
        """The attacker's own score, which needs no truth."""
        import numpy as np

        scores = np.array(
            [float(attempt.candidates.scores[attempt.answer or 0]) for attempt in self._answered()]
        )
        return Measurement(
            audit=audit,
            metric="attacker_score",
            variant=variant,
            value=float(scores.mean()),
            n=len(scores),
            details=dict(self.facts),
        )


def attack_facts(attempts: Sequence[Attempt]) -> dict[str, JsonValue]:
    """What the attack says of itself; what differs between batches stands as ``batches``, in order.

    Of one batch there is no such list.
    """
    details = [attempt.candidates.details for attempt in attempts]
    names = list(dict.fromkeys(name for detail in details for name in detail))
    same = [
        name for name in names if all(name in t and t[name] == details[0][name] for t in details)
    ]
    facts: dict[str, JsonValue] = {name: details[0][name] for name in same}
    if len(same) < len(names):
        facts["batches"] = [
            {n: v for n, v in detail.items() if n not in same} for detail in details
        ]
    return facts


def _number(value: float) -> JsonValue:
    return value if math.isfinite(value) else str(value)


def _list(interval: tuple[float, float] | None) -> JsonValue:
    return None if interval is None else list(interval)


def _without(audit: str, metric: str, variant: Variant, why: str) -> Measurement:
    (row,) = skipped(audit, [metric], [None], why)
    return row.model_copy(update={"variant": variant})


def _failed(
    audit: str, variant: Variant, reason: str, facts: Mapping[str, JsonValue]
) -> Iterator[Measurement]:
    for metric in (*SCORES, "label_accuracy", "attacker_score"):
        yield Measurement(
            audit=audit,
            metric=metric,
            variant=variant,
            status="failed",
            reason=reason,
            details=dict(facts),
        )


def skipped_rows(audit: str, variant: Variant, reason: str) -> Iterator[Measurement]:
    """Rows of a method that does not apply."""
    for metric in (*SCORES, "label_accuracy", "attacker_score"):
        yield _without(audit, metric, variant, reason)
