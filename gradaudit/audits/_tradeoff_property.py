"""Property inference against accuracy, over the grid of a defense (Li et al. 2024, figure 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from gradaudit.audits._tradeoff_rows import AUDIT
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.audits._tradeoff_options import TradeoffOptions
    from gradaudit.audits.attack_inference.options import InferenceOptions
    from gradaudit.models.target import Subject
    from gradaudit.tradeoff.mechanisms import Mechanism, Setting
    from gradaudit.tradeoff.pictures import Value

CONFIDENCE = 0.95
_ADVERSARIES: dict[str, Variant] = {"adaptive": {}, "static": {"adversary": "static"}}
_NO_PAPER = "Fan et al. 2020 define CAP for reconstruction, membership and tracing"


@dataclass(frozen=True)
class Played:
    """One setting: accuracy, and advantage and AUROC by adversary (adaptive and static)."""

    setting: "Setting"
    accuracy: Measurement
    advantage: dict[str, Measurement]
    auroc: dict[str, Measurement]


def play(
    subject: "Subject", mechanism: "Mechanism", options: "TradeoffOptions", progress: Progress
) -> list[Played]:
    """Property inference at every setting, on models that the audit trains with it.

    Training and splits are the attack's own: the private set is trained on and attacked, other
    records are tested on.

    Raises:
        NotApplicable: no single attribute is named, or there are too few records.
    """
    from gradaudit.tradeoff.studies import expect_usable

    if len(subject.attributes) != 1:
        raise NotApplicable("--game property: name the one attribute to guess with --attribute")
    for setting in mechanism.settings:
        expect_usable(subject, setting)
    return [
        _played(subject, setting, of_property(options), progress) for setting in mechanism.settings
    ]


def of_property(options: "TradeoffOptions") -> "InferenceOptions":
    """The options of ``attack property``."""
    from gradaudit.audits.attack_inference.options import InferenceOptions

    return InferenceOptions(
        batch_size=options.sizes[0],
        shadow=options.shadow,
        batches=options.shadow_batches,
        trials=options.trials,
        repeats=1,  # each would train every setting's model anew
        rounds=options.rounds,
        learning_rate=options.learning_rate or 0.01,
    )


def _played(
    subject: "Subject", setting: "Setting", options: "InferenceOptions", progress: Progress
) -> Played:
    from gradaudit.audits.attack_inference import AttackProperty
    from gradaudit.defenses.modules.target import defended_target

    chain = (*subject.defenses, *setting.defenses)
    target = defended_target(replace(subject.target, checkpoint=None), chain, subject.seed)
    own = replace(subject, targets=(target,), defenses=chain)
    rows = list(AttackProperty(options).run(own, progress))
    found = {
        metric: {name: row for name, v in _ADVERSARIES.items() if (row := _find(rows, metric, v))}
        for metric in ("advantage", "auroc")
    }
    facts = found["advantage"]["adaptive"].details
    return Played(setting, _accuracy(facts), found["advantage"], found["auroc"])


def _find(rows: Sequence[Measurement], metric: str, variant: Variant) -> Measurement | None:
    return next(
        (r for r in rows if (r.metric, r.layer, r.variant) == (metric, None, variant)), None
    )


def _accuracy(facts: dict[str, Any]) -> Measurement:
    tested = facts.get("test_accuracy") or {}
    if tested.get("metric") != "accuracy":
        raise NotApplicable(
            "the labels and the loss define no accuracy, which is what privacy is weighed against"
        )
    return Measurement(
        audit=AUDIT,
        metric="accuracy",
        value=tested["value"],
        interval=tested["interval"],
        confidence=tested["confidence"],
        n=tested["n"],
        details={"chance": tested["chance"], "rounds": facts["rounds"]},
    )


def rows(mechanism: "Mechanism", played: Sequence[Played]) -> Iterator[Measurement]:
    """CAP with 1 − advantage for the distance, and the points of the curve."""
    base: Variant = {"mechanism": mechanism.text, "game": "property"}
    for name in _ADVERSARIES:
        if all(name in each.advantage for each in played):
            yield _cap(played, name, {**base, **_variant(name)})
    yield Measurement(
        audit=AUDIT, metric="cap_paper", variant=base, status="skipped", reason=_NO_PAPER
    )
    for each in played:
        at: Variant = {**base, "setting": str(each.setting)}
        yield each.accuracy.model_copy(update={"variant": at})
        for found in (each.advantage, each.auroc):
            for name, row in found.items():
                update = {"audit": AUDIT, "variant": {**at, **_variant(name)}}
                yield row.model_copy(update=update)


def _variant(adversary: str) -> Variant:
    return {} if adversary == "adaptive" else {"adversary": adversary}


def _cap(played: Sequence[Played], adversary: str, variant: Variant) -> Measurement:
    """(1/n) Σ Acc_m (1 − advantage_m); the interval has every point at its ends, so is cautious."""
    points = [(_ends(each.accuracy), _ends(each.advantage[adversary])) for each in played]
    value, low, high = (
        sum(accuracy[a] * (1 - advantage[b]) for accuracy, advantage in points) / len(points)
        for a, b in ((0, 0), (1, 2), (2, 1))
    )
    return Measurement(
        audit=AUDIT,
        metric="cap",
        variant=variant,
        value=value,
        interval=(max(low, 0.0), min(high, 1.0)),
        confidence=CONFIDENCE,
        n=len(points),
        details={
            "distance": "1 - advantage",
            "grid": [dict(each.setting.values) or str(each.setting) for each in played],
            "interval_over": "the ends of all points' intervals, which is cautious",
            "points": [
                {
                    "setting": str(each.setting),
                    "accuracy": each.accuracy.value,
                    "advantage": each.advantage[adversary].value,
                    "auroc": each.auroc[adversary].value,
                }
                for each in played
            ],
            "attack": played[0].advantage[adversary].details,
        },
    )


def _ends(row: Measurement) -> tuple[float, float, float]:
    """Value, low and high end."""
    value = cast("float", row.value)
    return (value, *(row.interval or (value, value)))


def curves(
    played: Sequence[Played],
) -> "dict[str, list[tuple[Value, Value]]]":
    """(accuracy, advantage) of every setting by adversary, for the picture."""
    from gradaudit.tradeoff.pictures import Value

    return {
        name: [
            (
                Value(cast("float", each.accuracy.value), each.accuracy.interval),
                Value(cast("float", row.value), row.interval),
            )
            for each in played
            if (row := each.advantage.get(name))
        ]
        for name in _ADVERSARIES
    }
