"""Rows of the study of a mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from pydantic import JsonValue

from gradaudit.audits.rows import Rows
from gradaudit.report import Measurement, Variant
from gradaudit.tradeoff.pictures import Point, Value
from gradaudit.tradeoff.scores import FEWEST, FloatArray, cap, cap_interval, mean_interval, position
from gradaudit.tradeoff.studies import Study, View

_NO_LABELS = "the method names no labels of these records, so there are none to compare"
_CAP_PAPER_IS_CAP = (
    "the distance is a share of records, which cannot exceed 1: the paper's CAP is `cap`"
)


@dataclass(frozen=True)
class StudyRows:
    """The rows of one study.

    Attributes:
        rows: with the mechanism in their variant.
        study: of the mechanism.
        games: that are asked about.
        facts: what each CAP says of the training and the attacks.
    """

    rows: Rows
    study: Study
    games: tuple[str, ...]
    facts: Mapping[str, JsonValue]

    def __iter__(self) -> Iterator[Measurement]:
        yield from self._accuracies()
        for view in self.study.outcomes:
            for game in self.games:
                yield from self._of_game(view, game)

    def points(self, view: View) -> list[Point]:
        """For the picture."""
        of_games = {game: self.study.of(view, game) for game in self.games}
        return [
            Point(
                self._position(view, index),
                accuracy,
                {
                    game: _mean(distances[:, index].reshape(-1))
                    for game, distances in of_games.items()
                    if distances is not None
                },
            )
            for index, accuracy in enumerate(self._accuracy)
        ]

    def _accuracies(self) -> Iterator[Measurement]:
        """Of every setting; the mean over the grid has no ``setting`` in its variant."""
        tested = self.study.trained[0][0].accuracy
        count = len(self._accuracy)
        mean = sum(accuracy.value for accuracy in self._accuracy) / count
        yield self.rows.measured("accuracy", mean, details={**self.facts, "mean_of": count})
        for setting, accuracy in zip(self.study.mechanism.settings, self._accuracy, strict=True):
            yield self.rows.of({"setting": str(setting)}).measured(
                "accuracy",
                accuracy.value,
                interval=accuracy.interval,
                n=tested.n,
                details={"chance": tested.chance, "values": dict(setting.values)},
            )

    @cached_property
    def _accuracy(self) -> list[Value]:
        """Each setting's mean accuracy; Wilson's interval, or Student's over repetitions."""
        accuracies = self.study.accuracies
        if len(accuracies) > 1:
            return [_mean(of_setting) for of_setting in accuracies.T]
        first = self.study.trained[0]
        return [
            Value(float(a), t.accuracy.interval) for a, t in zip(*accuracies, first, strict=True)
        ]

    def _of_game(self, view: View, game: str) -> Iterator[Measurement]:
        known: Variant = {"knows": "private part"} if view.insider else {}
        rows = self.rows.of(
            {"game": game, "batch_size": view.batch_size, "weights": view.weights, **known}
        )
        distances = self.study.of(view, game)
        if distances is None:
            yield from rows.skipped(_NO_LABELS, ("cap", "cap_paper", "distance"))
            return
        yield self._cap("cap", rows, view, distances, 1.0)
        if game == "reconstruct":
            raw = cast("FloatArray", self.study.of(view, "relative_error"))
            yield self._cap("cap_paper", rows, view, raw, float("inf"))
        else:
            yield from rows.skipped(_CAP_PAPER_IS_CAP, ["cap_paper"])
        yield rows.measured("distance", float(distances.mean()), details={"mean_of": "grid"})
        yield from self._distances(rows, view, distances)

    def _cap(
        self, metric: str, rows: Rows, view: View, distances: FloatArray, most: float
    ) -> Measurement:
        study = self.study
        interval = cap_interval(study.accuracies, study.reaches, distances, most)
        covers = "repetitions" if len(distances) >= FEWEST else "attacked batches and test records"
        return rows.measured(
            metric,
            cap(study.accuracies, distances),
            interval=interval,
            n=distances.shape[0] * distances.shape[2],
            details={
                **self.facts,
                "grid": [dict(s.values) or str(s) for s in study.mechanism.settings],
                "points": self._described(view, distances),
                "interval_over": covers if interval else None,
                "knowledge": study.knowledge(view),
            },
        )

    def _described(self, view: View, distances: FloatArray) -> list[JsonValue]:
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

    def _distances(self, rows: Rows, view: View, distances: FloatArray) -> Iterator[Measurement]:
        for index, setting in enumerate(self.study.mechanism.settings):
            of_setting = distances[:, index].reshape(-1)
            mean = _mean(of_setting)
            yield rows.of({"setting": str(setting)}).measured(
                "distance",
                mean.value,
                interval=mean.interval,
                n=len(of_setting),
                details={
                    "values": dict(setting.values),
                    "position": self._position(view, index),
                    "diverged": sum(row[index].diverged for row in self.study.outcomes[view]),
                },
            )

    def _position(self, view: View, index: int) -> float | None:
        ratios = self.study.of(view, "ratios")
        return None if ratios is None else position(ratios[:, index])


def _mean(values: FloatArray) -> Value:
    return Value(float(values.mean()), mean_interval(values, 1.0))
