"""Privacy against accuracy over a defense's settings."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import JsonValue

from gradaudit.audits._tradeoff_options import PROPERTY, TradeoffOptions
from gradaudit.audits._tradeoff_rows import AUDIT, Rows, headlines
from gradaudit.audits.base import Audit, Metric
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction import Method
    from gradaudit.models.target import Subject
    from gradaudit.tradeoff.mechanisms import Mechanism
    from gradaudit.tradeoff.pictures import Point
    from gradaudit.tradeoff.studies import Plan

_NO_DEFENSE = (
    "no defense with a grid of settings is named; name one, as in --defense "
    "'dp:clip=1e6,sigma=0.01|0.1|0.5,per=release' (in a config file: tradeoff: {defense: […]})"
)
_HIDDEN = (
    "--hide: all layers are trained together, so accuracy would not be that of a model with hidden "
    "layers; leave it out (--layer shows an attack on some layers)"
)


class Tradeoff(Audit[TradeoffOptions]):
    """What a defense leaves of accuracy and takes from attackers, over a grid of its settings.

    Calibrated averaged performance CAP = (1/n) Σ_m Acc_m · dist_m (eq. 1) over the settings m of
    the grid, which is part of the result and stands in the details with all points. Acc is the test
    accuracy of a model trained with the setting. dist is what an attack leaves between its answer
    and the truth: for reconstruction min(‖x̂ − x‖/‖x‖, 1), since a blank record is always to be had
    (``cap_paper`` is without the minimum, as in the paper), for membership the share of labels
    not recovered, for tracing the share of records traced to a wrong participant. One
    reconstruction a batch serves all three (algorithms 5 and 6). The higher, the better the
    defense. Attacks are on the model before training, as in appendix C, and on the trained model;
    all settings attack the same batches of training records. The axis of the curves is
    log10(‖B‖/‖E‖ + 1) of bias gradients and what the defense made of them (figure 5). Accuracy is
    on the left axis, distance on the right.

    With ``game property`` it is the advantage of property inference against accuracy (Li et al.
    2024, figure 6); CAP is then over 1 − advantage.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), sections 2.1 and 4, appendices C and D.
    """

    name = "tradeoff"
    summary = "Privacy against accuracy over a defense's settings: curves and CAP."
    metrics = (
        Metric(
            id="cap",
            title="Calibrated averaged performance: accuracy times distance, distance at most 1",
            riskier="lower",
            per_layer=False,
        ),
        Metric(
            id="cap_paper",
            title="Calibrated averaged performance with unbounded distance, as in the paper",
            riskier="lower",
            per_layer=False,
        ),
        Metric(
            id="accuracy",
            title="Test accuracy of models trained with the defense",
            riskier="lower",
            per_layer=False,
        ),
        Metric(
            id="distance",
            title="What an attack leaves between its answer and the truth",
            riskier="lower",
            per_layer=False,
        ),
        Metric(
            id="advantage",
            title="Advantage of property inference",
            riskier="higher",
            per_layer=False,
        ),
        Metric(id="auroc", title="AUROC of property inference", riskier="higher", per_layer=False),
    )
    headline = ("cap",)
    Options = TradeoffOptions
    renames: ClassVar = {"defense": "base_defense"}
    quick: ClassVar = {"iterations": 10, "rounds": 20}
    thorough: ClassVar = {"iterations": 300, "batches": 10, "repeats": 5}

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Study every mechanism; the first one's first view is the headline.

        Raises:
            NotApplicable: no defense is named, or none goes with the model.
            UsageError: an option is wrong for these records.
        """
        mechanisms = self.options.mechanisms()
        if not mechanisms:
            raise NotApplicable(_NO_DEFENSE)
        if subject.hidden:
            raise UsageError(_HIDDEN)
        self._expect_picture(len(mechanisms))
        if PROPERTY in self.options.game:
            rows = self._property(subject, mechanisms, progress)
        else:
            rows = self._studied(subject, mechanisms, progress)
        yield from headlines(rows)
        yield from rows

    def passes(self, subject: "Subject") -> float:
        """Trainings with all settings, and all attacks on each."""
        o = self.options
        settings = sum(len(mechanism.settings) for mechanism in o.mechanisms())
        records = len(subject.records)
        if PROPERTY in o.game:
            return float(settings * 3 * (o.rounds or 3) * min(records, o.shadow + 5000))
        each = records * o.epochs
        if o.algorithm == "fedsgd":
            each = min(o.clients * o.training_batch, records)
        attacks = self._method().steps(o.restarts) * sum(o.sizes) * o.batches * len(o.weights)
        return settings * o.repeats * (o.training().rounds * each + attacks)

    def _method(self) -> "Method":
        from gradaudit.attacks.reconstruction import load_method

        return load_method(self.options.method, {"iterations": self.options.iterations})

    def _expect_picture(self, mechanisms: int) -> None:
        from gradaudit.pictures import expect_picture

        if self.options.curves is None:
            return
        from gradaudit.tradeoff.pictures import expect_panels

        expect_picture(self.options.curves)
        if PROPERTY not in self.options.game:
            expect_panels(mechanisms * len(self.options.sizes))

    def _plan(self, subject: "Subject") -> "Plan":
        from gradaudit.tradeoff.attacking import Attack
        from gradaudit.tradeoff.studies import Plan, Weights

        o = self.options
        if "tracing" in o.game and o.batches < o.participants:
            raise UsageError(
                f"--participants {o.participants}: each needs an update; --batches is {o.batches}"
            )
        return Plan(
            training=o.training(),
            test_share=o.test_share,
            attack=Attack(self._method(), o.restarts, o.participants, subject.layers),
            batches=o.batches,
            batch_sizes=o.sizes,
            weights=cast("tuple[Weights, ...]", o.weights),
            insider=o.insider,
            repeats=o.repeats,
        )

    def _studied(
        self, subject: "Subject", mechanisms: "tuple[Mechanism, ...]", progress: Progress
    ) -> list[Measurement]:
        from gradaudit.tradeoff.pictures import draw_characteristics
        from gradaudit.tradeoff.studies import study

        plan = self._plan(subject)
        rows: list[Measurement] = []
        panels: dict[str, list[Point]] = {}
        for mechanism in mechanisms:
            try:
                found = Rows(
                    study(subject, mechanism, plan, progress), self.options.game, self._facts(plan)
                )
            except NotApplicable as why:
                if len(mechanisms) == 1:
                    raise
                rows += _instead(mechanism, "skipped", str(why))
                continue
            except AuditError as error:
                rows += _instead(mechanism, "failed", str(error))
                continue
            rows += found
            for view in found.study.outcomes:
                if view.weights == plan.weights[0] and not view.insider:
                    title = f"{mechanism.text}, batch size {view.batch_size}"
                    panels[title] = found.points(view)
        if self.options.curves is not None and panels:
            draw_characteristics(self.options.curves, panels)
        return rows

    def _facts(self, plan: "Plan") -> Mapping[str, JsonValue]:
        return {
            "training": plan.training.model_dump(mode="json"),
            "method": self.options.method,
            "iterations": self.options.iterations,
            "restarts": plan.attack.restarts,
            "participants": plan.attack.participants,
            "repeats": plan.repeats,
        }

    def _property(
        self, subject: "Subject", mechanisms: "tuple[Mechanism, ...]", progress: Progress
    ) -> list[Measurement]:
        from gradaudit.audits._tradeoff_property import curves, play, rows
        from gradaudit.tradeoff.pictures import draw_advantages

        found: list[Measurement] = []
        drawn: dict[str, dict[str, Any]] = {}
        for mechanism in mechanisms:
            played = play(subject, mechanism, self.options, progress)
            found += rows(mechanism, played)
            for adversary, points in curves(played).items():
                if points:
                    drawn.setdefault(adversary, {})[mechanism.text] = points
        if self.options.curves is not None:
            draw_advantages(self.options.curves, drawn)
        return found


def _instead(
    mechanism: "Mechanism", status: Literal["skipped", "failed"], reason: str
) -> list[Measurement]:
    """Rows for a mechanism one of whose settings cannot be trained with: there is no CAP then."""
    return [
        Measurement(
            audit=AUDIT,
            metric=metric,
            variant={"mechanism": mechanism.text},
            status=status,
            reason=reason,
        )
        for metric in ("cap", "cap_paper", "accuracy")
    ]
