"""What the attacker's answers score, and what the restarts did: the rows of one method."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.attempts import Attempt
from gradaudit.audits.rows import Details, Rows
from gradaudit.report import Measurement
from gradaudit.statistics.intervals import clopper_pearson, student

SCORES = ("mse", "relative_error", "psnr", "ssim")
METRICS = (*SCORES, "label_accuracy", "attacker_score")
_RANGES = {"psnr": (-math.inf, math.inf), "ssim": (-1.0, 1.0)}
_FEWEST = 5
"""Values, below which an interval of their mean would say nothing."""
NO_PICTURE = (
    "the records are no pictures in [0, 1] with one or three channels, or too small for a window"
)
_NO_TRUTH = "the update was captured, so there is no truth to score by; name it with --records"
_NO_LABELS = "the attacker was told the labels, names none, or they are real numbers"


@dataclass(frozen=True)
class Result:
    """A method's attempts on all batches.

    Attributes:
        attempts: one a batch.
        batch: records in a batch.
        success: relative error up to which a restart succeeds.
    """

    attempts: Sequence[Attempt]
    batch: int
    success: float

    def rows(self, rows: Rows, facts: Details) -> Iterator[Measurement]:
        """All metrics of this method; the facts are of those that were tried."""
        told = rows.of({}, facts)
        answered = [attempt for attempt in self.attempts if attempt.answer is not None]
        if not answered:
            yield from told.failed("every restart diverged", METRICS)
            return
        for metric in SCORES:
            scored = [attempt for attempt in answered if metric in attempt.scores]
            if scored:
                answers = np.array([a.scores[metric][a.answer] for a in scored])
                yield self._score(metric, answers, told)
            else:
                truth = any(attempt.scores for attempt in self.attempts)
                yield from rows.skipped(NO_PICTURE if truth else _NO_TRUTH, [metric])
        shares = [float(a.labels[a.answer]) for a in answered if a.labels is not None]
        if shares:
            yield self._labels(shares, told)
        else:
            yield from rows.skipped(_NO_LABELS, ["label_accuracy"])
        scores = [float(a.candidates.scores[a.answer or 0]) for a in answered]
        yield told.measured("attacker_score", float(np.mean(scores)), n=len(scores))

    def _score(self, metric: str, answers: NDArray[np.float64], told: Rows) -> Measurement:
        details: dict[str, JsonValue] = {
            "answers": [_number(float(answer)) for answer in answers],
            "restarts": self._restarts(metric),
        }
        if without := sum(metric not in attempt.scores for attempt in self.attempts):
            details["left_out"] = f"{without} of {len(self.attempts)} batches: {NO_PICTURE}"
        interval = _interval(metric, answers)
        return told.measured(
            metric, float(answers.mean()), interval=interval, n=len(answers), details=details
        )

    def _restarts(self, metric: str) -> dict[str, JsonValue]:
        """Over the restarts of the batches that have this score: mean, best, and successes."""
        scored = [attempt for attempt in self.attempts if metric in attempt.scores]
        usable = np.concatenate([attempt.usable for attempt in scored])
        scores = np.concatenate([attempt.scores[metric] for attempt in scored])[usable]
        errors = np.concatenate([attempt.scores["relative_error"] for attempt in scored])
        successes, count = int((errors[usable] <= self.success).sum()), len(errors)
        best = scores.max() if metric in ("psnr", "ssim") else scores.min()
        ends = _interval(metric, scores)
        return {
            "count": count,
            "diverged": int((~usable).sum()),
            "mean": _number(float(scores.mean())),
            "mean_interval": None if ends is None else list(ends),
            "best": _number(float(best)),
            "success_rate": successes / count,
            "success_interval": list(clopper_pearson(successes, count)),
            "success": f"relative error up to {self.success:g}",
        }

    def _labels(self, shares: Sequence[float], told: Rows) -> Measurement:
        count = len(shares) * self.batch
        hits = round(sum(shares) * self.batch)
        interval = clopper_pearson(hits, count)
        return told.measured("label_accuracy", hits / count, interval=interval, n=count)


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


def _interval(metric: str, values: NDArray[np.float64]) -> tuple[float, float] | None:
    """Student's, cut at what the values can be; None for few values or where one is infinite."""
    if len(values) < _FEWEST or not np.isfinite(values).all():
        return None
    low, high = student(values)
    least, most = _RANGES.get(metric, (0.0, math.inf))
    return max(low, least), min(high, most)


def _number(value: float) -> JsonValue:
    return value if math.isfinite(value) else str(value)
