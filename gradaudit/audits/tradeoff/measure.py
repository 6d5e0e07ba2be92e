"""From a subject to rows: every mechanism studied, its curves drawn."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from gradaudit.attacks.reconstruction import Method, load_method
from gradaudit.audits.base import Cost
from gradaudit.audits.rows import Rows
from gradaudit.audits.tradeoff import PROPERTY, RATE, ROUNDS, Tradeoff, TradeoffOptions
from gradaudit.audits.tradeoff.property import pairs, play, property_rows
from gradaudit.audits.tradeoff.study import StudyRows
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Subject
from gradaudit.pictures import expect_picture
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.tradeoff.attacking import Attack
from gradaudit.tradeoff.mechanisms import Mechanism, read_mechanism
from gradaudit.tradeoff.pictures import (
    Point,
    Value,
    draw_advantages,
    draw_characteristics,
    expect_panels,
)
from gradaudit.tradeoff.studies import Plan, Weights, study

_NO_DEFENSE = (
    "no defense with a grid of settings is named; name one, as in --defense "
    "'dp:clip=1e6,sigma=0.01|0.1|0.5,per=release' (in a config file: tradeoff: {defense: […]})"
)
_HIDDEN = (
    "--hide: all layers are trained together, so accuracy would not be that of a model with hidden "
    "layers; leave it out (--layer shows an attack on some layers)"
)
_OF_MECHANISM = ("cap", "cap_paper", "accuracy")


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
    yield from _headlines(rows)
    yield from rows


def cost(audit: Tradeoff, subject: Subject) -> Cost:
    """Trainings with all settings, and all attacks on each."""
    o = audit.options
    settings = sum(len(mechanism.settings) for mechanism in _mechanisms(o))
    records = len(subject.records)
    if PROPERTY in o.game:
        return Cost(passes=settings * 3 * (o.rounds or 3) * min(records, o.shadow + 5000))
    of_round = records * o.epochs
    if o.algorithm == "fedsgd":
        of_round = min(o.clients * o.training_batch, records)
    attacks = _method(o).steps(o.restarts) * sum(o.sizes) * o.batches * len(o.weights)
    return Cost(passes=settings * o.repeats * ((o.rounds or ROUNDS) * of_round + attacks))


def _mechanisms(options: TradeoffOptions) -> list[Mechanism]:
    """The mechanism of ``--defense``, and those beside it.

    Raises:
        UsageError: a spec is wrong, or a mechanism is named twice.
    """
    mechanisms = [read_mechanism(options.defense, "--defense")] if options.defense else []
    mechanisms += [read_mechanism([text], "--against") for text in options.against]
    names = [mechanism.text for mechanism in mechanisms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--against {name}: is named twice")
    return mechanisms


def _method(options: TradeoffOptions) -> Method:
    return load_method(options.method, {"iterations": options.iterations})


def _plan(subject: Subject, o: TradeoffOptions) -> Plan:
    if "tracing" in o.game and o.batches < o.participants:
        raise UsageError(
            f"--participants {o.participants}: each needs an update; --batches is {o.batches}"
        )
    return Plan(
        training=TrainingOptions(
            algorithm=o.algorithm,
            clients=o.clients,
            rounds=o.rounds or ROUNDS,
            epochs=o.epochs,
            batch_size=o.training_batch,
            optimizer=o.optimizer,
            rate=o.learning_rate or RATE,
            momentum=o.momentum,
        ),
        test_share=o.test_share,
        attack=Attack(_method(o), o.restarts, o.participants, subject.layers),
        batches=o.batches,
        batch_sizes=o.sizes,
        weights=cast("tuple[Weights, ...]", o.weights),
        insider=o.insider,
        repeats=o.repeats,
    )


def _studied(
    subject: Subject, mechanisms: Sequence[Mechanism], options: TradeoffOptions, progress: Progress
) -> list[Measurement]:
    """Rows of attacks from one reconstruction; a mechanism that cannot be trained with has no CAP.

    Raises:
        NotApplicable: the only mechanism does not go with the model.
    """
    plan = _plan(subject, options)
    facts = _facts(plan, options)
    rows: list[Measurement] = []
    panels: dict[str, list[Point]] = {}
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
            if view.weights == plan.weights[0] and not view.insider:
                title = f"{mechanism.text}, batch size {view.batch_size}"
                panels[title] = studied.points(view)
    if options.curves is not None and panels:
        draw_characteristics(options.curves, panels)
    return rows


def _facts(plan: Plan, options: TradeoffOptions) -> Mapping[str, JsonValue]:
    return {
        "training": plan.training.model_dump(mode="json"),
        "method": options.method,
        "iterations": options.iterations,
        "restarts": plan.attack.restarts,
        "participants": plan.attack.participants,
        "repeats": plan.repeats,
    }


def _played(
    subject: Subject, mechanisms: Sequence[Mechanism], options: TradeoffOptions, progress: Progress
) -> list[Measurement]:
    """Rows of property inference."""
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


def _headlines(rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """The first row of each metric, which is the first mechanism's, with the empty variant."""
    seen: set[str] = set()
    for row in rows:
        if row.metric not in seen:
            seen.add(row.metric)
            details = {**row.details, "headline_of": dict(row.variant)}
            yield row.model_copy(update={"variant": {}, "details": details})
