"""Rows of ``tradeoff`` from the study of a mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.tradeoff.pictures import Point
    from gradaudit.tradeoff.scores import FloatArray
    from gradaudit.tradeoff.studies import Study, View

AUDIT = "tradeoff"
_NO_LABELS = "the method names no labels of these records, so there are none to compare"
_CAP_PAPER_IS_CAP = (
    "the distance is a share of records, which cannot exceed 1: the paper's CAP is `cap`"
)


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one study.

    Attributes:
        study: of a mechanism.
        games: that are asked about.
        facts: what each CAP says of the training and the attacks.
    """

    study: "Study"
    games: tuple[str, ...]
    facts: Mapping[str, JsonValue]

    def __iter__(self) -> Iterator[Measurement]:
        yield from self._accuracies()
        for view in self.study.outcomes:
            for game in self.games:
                yield from self._of_game(view, game)

    @property
    def base(self) -> Variant:
        """What every row's variant holds."""
        return {"mechanism": self.study.mechanism.text}

    def points(self, view: "View") -> "list[Point]":
        """For the picture."""
        from gradaudit.tradeoff.pictures import Point, Value
        from gradaudit.tradeoff.scores import mean_interval

        found = []
        for index, accuracy in enumerate(self._accuracy_values()):
            distances = {}
            for game in self.games:
                values = self.study.of(view, game)
                if values is not None:
                    each = values[:, index].reshape(-1)
                    distances[game] = Value(float(each.mean()), mean_interval(each, 1.0))
            found.append(Point(self._position(view, index), Value(*accuracy), distances))
        return found

    def _accuracies(self) -> Iterator[Measurement]:
        """Of every setting; the mean over the grid has no ``setting`` in its variant."""
        from gradaudit.tradeoff.scores import CONFIDENCE

        values = self._accuracy_values()
        tested = self.study.trained[0][0].accuracy
        mean = sum(value for value, _ in values) / len(values)
        yield self._row("accuracy", mean, self.base, details={**self.facts, "mean_of": len(values)})
        for setting, (value, interval) in zip(self.study.mechanism.settings, values, strict=True):
            yield self._row(
                "accuracy",
                value,
                {**self.base, "setting": str(setting)},
                interval=interval,
                confidence=CONFIDENCE if interval else None,
                n=tested.n,
                details={"chance": tested.chance, "values": dict(setting.values)},
            )

    def _accuracy_values(self) -> list[tuple[float, tuple[float, float] | None]]:
        """Each setting's mean accuracy; Wilson's interval, or Student's over repetitions."""
        from gradaudit.tradeoff.scores import mean_interval

        accuracies = self.study.accuracies
        first = [each.accuracy.interval for each in self.study.trained[0]]
        return [
            (
                float(accuracies[:, index].mean()),
                own if len(accuracies) == 1 else mean_interval(accuracies[:, index], 1.0),
            )
            for index, own in enumerate(first)
        ]

    def _of_game(self, view: "View", game: str) -> Iterator[Measurement]:
        variant = {**self.base, **_variant(view, game)}
        distances = self.study.of(view, game)
        if distances is None:
            for metric in ("cap", "cap_paper", "distance"):
                yield self._skipped(metric, variant, _NO_LABELS)
            return
        yield self._cap("cap", view, game, distances, 1.0)
        if game == "reconstruct":
            raw = cast("FloatArray", self.study.of(view, "relative_error"))
            yield self._cap("cap_paper", view, game, raw, float("inf"))
        else:
            yield self._skipped("cap_paper", variant, _CAP_PAPER_IS_CAP)
        yield self._row("distance", float(distances.mean()), variant, details={"mean_of": "grid"})
        yield from self._distances(view, variant, distances)

    def _cap(
        self, metric: str, view: "View", game: str, distances: "FloatArray", most: float
    ) -> Measurement:
        from gradaudit.tradeoff.scores import CONFIDENCE, FEWEST, cap, cap_interval

        study = self.study
        interval = cap_interval(study.accuracies, study.reaches, distances, most)
        covers = "repetitions" if len(distances) >= FEWEST else "attacked batches and test records"
        return self._row(
            metric,
            cap(study.accuracies, distances),
            {**self.base, **_variant(view, game)},
            interval=interval,
            confidence=CONFIDENCE if interval else None,
            n=distances.shape[0] * distances.shape[2],
            details={
                **self.facts,
                "grid": [dict(s.values) or str(s) for s in study.mechanism.settings],
                "points": self._described(view, distances),
                "interval_over": covers if interval else None,
                "knowledge": study.knowledge(view),
            },
        )

    def _described(self, view: "View", distances: "FloatArray") -> list[JsonValue]:
        accuracies = self.study.accuracies.mean(axis=0)
        return [
            {
                "setting": str(setting),
                "accuracy": float(accuracies[index]),
                "distance": float(distances[:, index].mean()),
                "position": self._position(view, index),
            }
            for index, setting in enumerate(self.study.mechanism.settings)
        ]

    def _distances(
        self, view: "View", variant: Variant, distances: "FloatArray"
    ) -> Iterator[Measurement]:
        from gradaudit.tradeoff.scores import CONFIDENCE, mean_interval

        for index, setting in enumerate(self.study.mechanism.settings):
            each = distances[:, index].reshape(-1)
            interval = mean_interval(each, 1.0)
            diverged = sum(row[index].diverged for row in self.study.outcomes[view])
            yield self._row(
                "distance",
                float(each.mean()),
                {**variant, "setting": str(setting)},
                interval=interval,
                confidence=CONFIDENCE if interval else None,
                n=len(each),
                details={
                    "values": dict(setting.values),
                    "position": self._position(view, index),
                    "diverged": diverged,
                },
            )

    def _position(self, view: "View", index: int) -> float | None:
        from gradaudit.tradeoff.scores import position

        ratios = self.study.of(view, "ratios")
        return None if ratios is None else position(ratios[:, index])

    def _row(
        self,
        metric: str,
        value: float,
        variant: Variant,
        *,
        interval: tuple[float, float] | None = None,
        confidence: float | None = None,
        n: int | None = None,
        details: Mapping[str, JsonValue],
    ) -> Measurement:
        return Measurement(
            audit=AUDIT,
            metric=metric,
            variant=variant,
            value=value,
            interval=interval,
            confidence=confidence,
            n=n,
            details=dict(details),
        )

    def _skipped(self, metric: str, variant: Variant, reason: str) -> Measurement:
        return Measurement(
            audit=AUDIT, metric=metric, variant=variant, status="skipped", reason=reason
        )


def _variant(view: "View", game: str) -> Variant:
    known: Variant = {"knows": "private part"} if view.insider else {}
    return {"game": game, "batch_size": view.batch_size, "weights": view.weights, **known}


def headlines(rows: list[Measurement]) -> Iterator[Measurement]:
    """The first row of each metric, which is the first mechanism's, with the empty variant."""
    seen: set[str] = set()
    for row in rows:
        if row.metric not in seen:
            seen.add(row.metric)
            told = {**row.details, "headline_of": dict(row.variant)}
            yield row.model_copy(update={"variant": {}, "details": told})
