"""Makes rows of every mechanism that is studied, and draws the curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from pydantic import JsonValue

from gradaudit.attacks.reconstruction import load_method
from gradaudit.audits.rows import Rows
from gradaudit.audits.tradeoff import PROPERTY, RATE, ROUNDS, Tradeoff, TradeoffOptions
from gradaudit.audits.tradeoff.attacking import (
    FEWEST,
    Attack,
    FloatArray,
    cap,
    cap_interval,
    mean_interval,
    position,
)
from gradaudit.audits.tradeoff.characteristics import (
    PanelPoint,
    Value,
    draw_advantages,
    draw_characteristics,
    expect_panels,
)
from gradaudit.audits.tradeoff.mechanisms import DefenseGrid, read_mechanism
from gradaudit.audits.tradeoff.property import pairs, play, property_rows
from gradaudit.audits.tradeoff.studies import AttackedModel, Study, StudyPlan, study
from gradaudit.core.drawing import expect_picture
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.federation.settings import TrainingOptions
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.subject import SINGLE, Subject

_NO_LABELS = "the method names no labels of these records, so there are none to compare"
_CAP_PAPER_IS_CAP = (
    "the distance is a share of records, which cannot exceed 1: the paper's CAP is `cap`"
)
_NO_DEFENSE = (
    "no defense with a grid of settings is named; name one, as in --defense "
    "'dp:clip=1e6,sigma=0.01|0.1|0.5,per=release' (in a config file: tradeoff: {defense: […]})"
)
_HIDDEN = (
    "--hide: all layers are trained together, so accuracy would not be that of a model with hidden "
    "layers; leave it out (--layer shows an attack on some layers)"
)
_OF_MECHANISM = ("cap", "cap_paper", "accuracy")


@dataclass(frozen=True)
class StudyRows:
    """Makes the rows of one study."""

    rows: Rows
    study: Study
    games: tuple[str, ...]
    facts: Mapping[str, JsonValue]

    def __iter__(self) -> Iterator[Measurement]:
        yield from self._accuracies()
        for view in self.study.outcomes:
            for game in self.games:
                yield from self._of_game(view, game)

    def points(self, view: AttackedModel) -> list[PanelPoint]:
        """Return the points of the curve in the picture."""
        of_games = {game: self.study.of(view, game) for game in self.games}
        return [
            PanelPoint(
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
        """Make rows of every setting's accuracy, and of the grid's mean without ``setting``."""
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
        """Compute a setting's mean accuracy, with Wilson's or Student's interval."""
        accuracies = self.study.accuracies
        if len(accuracies) > 1:
            return [_mean(of_setting) for of_setting in accuracies.T]
        first = self.study.trained[0]
        return [
            Value(float(a), t.accuracy.interval) for a, t in zip(*accuracies, first, strict=True)
        ]

    def _of_game(self, view: AttackedModel, game: str) -> Iterator[Measurement]:
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
        self, metric: str, rows: Rows, view: AttackedModel, distances: FloatArray, most: float
    ) -> Measurement:
        study, settings = self.study, self.study.mechanism.settings
        mean = study.accuracies.mean(axis=0)
        interval = cap_interval(study.accuracies, study.reaches, distances, most)
        covers = "repetitions" if len(distances) >= FEWEST else "attacked batches and test records"
        return rows.measured(
            metric,
            cap(study.accuracies, distances),
            interval=interval,
            n=distances.shape[0] * distances.shape[2],
            details={
                **self.facts,
                "grid": [dict(setting.values) or str(setting) for setting in settings],
                "points": [
                    {
                        "setting": str(setting),
                        "accuracy": float(accuracy),
                        "distance": float(distances[:, index].mean()),
                        "position": self._position(view, index),
                    }
                    for index, (setting, accuracy) in enumerate(zip(settings, mean, strict=True))
                ],
                "interval_over": covers if interval else None,
                "knowledge": study.outcomes[view][0][0].knowledge,
            },
        )

    def _distances(
        self, rows: Rows, view: AttackedModel, distances: FloatArray
    ) -> Iterator[Measurement]:
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

    def _position(self, view: AttackedModel, index: int) -> float | None:
        ratios = self.study.of(view, "ratios")
        return None if ratios is None else position(ratios[:, index])


def _mean(values: FloatArray) -> Value:
    return Value(float(values.mean()), mean_interval(values))


def run(audit: Tradeoff, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Study every mechanism; the first one's first view is the headline.

    Raises:
        NotApplicable: no defense is named, or none goes with the model.
        UsageError: an option is wrong for these records.
    """
    options = audit.options
    mechanisms = _mechanisms(options)
    if not mechanisms:
        raise NotApplicable(_NO_DEFENSE)
    if subject.hidden:
        raise UsageError(_HIDDEN)
    if options.curves is not None:
        expect_picture(options.curves)
        if PROPERTY not in options.game:
            expect_panels(len(mechanisms) * len(options.sizes))
    rows_of = _played if PROPERTY in options.game else _studied
    rows = rows_of(subject, mechanisms, options, progress)
    firsts: dict[str, Measurement] = {}
    for row in rows:
        firsts.setdefault(row.metric, row)
    for row in firsts.values():
        details = {**row.details, "headline_of": dict(row.variant)}
        yield row.model_copy(update={"variant": {}, "details": details})
    yield from rows


def gradients(audit: Tradeoff, subject: Subject) -> float:
    """Count the passes of trainings with all settings, and of all attacks on each."""
    o = audit.options
    settings = sum(len(mechanism.settings) for mechanism in _mechanisms(o))
    records = len(subject.records)
    if PROPERTY in o.game:
        return SINGLE * settings * 3 * (o.rounds or 3) * min(records, o.shadow + 5000)
    of_round = records * o.epochs
    if o.algorithm == "fedsgd":
        of_round = min(o.clients * o.training_batch, records)
    method = load_method(o.method, {"iterations": o.iterations}, o.restarts)
    attacks = method.steps() * sum(o.sizes) * o.batches * len(o.weights)
    return float(settings * o.repeats * ((o.rounds or ROUNDS) * of_round + attacks))


def _mechanisms(options: TradeoffOptions) -> list[DefenseGrid]:
    """List the mechanism of ``--defense`` and those beside it; none may be named twice."""
    mechanisms = [read_mechanism(options.defense, "--defense")] if options.defense else []
    mechanisms += [read_mechanism([text], "--against") for text in options.against]
    names = [mechanism.text for mechanism in mechanisms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--against {name}: is named twice")
    return mechanisms


def _plan(subject: Subject, o: TradeoffOptions) -> StudyPlan:
    if "tracing" in o.game and o.batches < o.participants:
        raise UsageError(
            f"--participants {o.participants}: each needs an update; --batches is {o.batches}"
        )
    method = load_method(o.method, {"iterations": o.iterations}, o.restarts)
    training = TrainingOptions(
        algorithm=o.algorithm,
        clients=o.clients,
        rounds=o.rounds or ROUNDS,
        epochs=o.epochs,
        batch_size=o.training_batch,
        optimizer=o.optimizer,
        rate=o.learning_rate or RATE,
        momentum=o.momentum,
    )
    return StudyPlan(o, training, Attack(method, o.participants, subject.layers))


def _studied(
    subject: Subject,
    mechanisms: Sequence[DefenseGrid],
    options: TradeoffOptions,
    progress: Progress,
) -> list[Measurement]:
    """Make rows of attacks by reconstruction; mechanisms that cannot be trained with have no CAP.

    Raises:
        NotApplicable: the only mechanism does not go with the model.
    """
    plan = _plan(subject, options)
    named = {"method", "iterations", "restarts", "participants", "repeats"}
    facts = {"training": plan.training.model_dump(mode="json"), **options.model_dump(include=named)}
    rows: list[Measurement] = []
    panels: dict[str, list[PanelPoint]] = {}
    for mechanism in mechanisms:
        of_mechanism = Rows(Tradeoff, {"mechanism": mechanism.text})
        try:
            done = study(subject, mechanism, plan, progress)
        except NotApplicable as why:
            if len(mechanisms) == 1:
                raise
            rows += of_mechanism.skipped(str(why), _OF_MECHANISM)
            continue
        except AuditError as error:
            rows += of_mechanism.failed(str(error), _OF_MECHANISM)
            continue
        studied = StudyRows(of_mechanism, done, options.game, facts)
        rows += studied
        for view in done.outcomes:
            if view.weights == options.weights[0] and not view.insider:
                title = f"{mechanism.text}, batch size {view.batch_size}"
                panels[title] = studied.points(view)
    if options.curves is not None and panels:
        draw_characteristics(options.curves, panels)
    return rows


def _played(
    subject: Subject,
    mechanisms: Sequence[DefenseGrid],
    options: TradeoffOptions,
    progress: Progress,
) -> list[Measurement]:
    rows: list[Measurement] = []
    panels: dict[str, dict[str, Sequence[tuple[Value, Value]]]] = {}
    for mechanism in mechanisms:
        played = play(subject, mechanism, options, progress)
        rows += property_rows(mechanism, played)
        for adversary, points in pairs(played).items():
            if points:
                panels.setdefault(adversary, {})[mechanism.text] = points
    if options.curves is not None:
        draw_advantages(options.curves, panels)
    return rows
