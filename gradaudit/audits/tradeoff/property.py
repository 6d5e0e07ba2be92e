"""Property inference against accuracy, over the grid of a defense (Li et al. 2024, figure 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradaudit.audits.attack_inference import AttackProperty, InferenceOptions
from gradaudit.audits.rows import Rows
from gradaudit.audits.tradeoff import Tradeoff, TradeoffOptions
from gradaudit.audits.tradeoff.characteristics import Value
from gradaudit.audits.tradeoff.mechanisms import DefenseGrid, DefenseSetting
from gradaudit.audits.tradeoff.studies import expect_usable
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.subject import Subject, defended_target

_ADVERSARIES: dict[str, Variant] = {"adaptive": {}, "static": {"adversary": "static"}}
_NO_PAPER = "Fan et al. 2020 define CAP for reconstruction, membership and tracing"


@dataclass(frozen=True)
class PropertyResult:
    """One setting's accuracy, and each adversary's advantage and AUROC (adaptive and static)."""

    setting: DefenseSetting
    accuracy: Measurement
    advantage: dict[str, Measurement]
    auroc: dict[str, Measurement]


def play(
    subject: Subject, mechanism: DefenseGrid, options: TradeoffOptions, progress: Progress
) -> list[PropertyResult]:
    """Play property inference at every setting, on models that the audit trains with it.

    Training and splits are the attack's own: the private set is trained on and attacked, other
    records are tested on.

    Raises:
        NotApplicable: no single attribute is named, or there are too few records.
    """
    if len(subject.attributes) != 1:
        raise NotApplicable("--game property: name the one attribute to guess with --attribute")
    for setting in mechanism.settings:
        expect_usable(subject, setting)
    attack = AttackProperty(
        InferenceOptions(
            batch_size=options.sizes[0],
            shadow=options.shadow,
            batches=options.shadow_batches,
            trials=options.trials,
            repeats=1,  # each would train every setting's model anew
            rounds=options.rounds,
            learning_rate=options.learning_rate or 0.01,
        )
    )
    return [_played(subject, setting, attack, progress) for setting in mechanism.settings]


def _played(
    subject: Subject, setting: DefenseSetting, attack: AttackProperty, progress: Progress
) -> PropertyResult:
    chain = (*subject.defenses, *setting.defenses)
    target = defended_target(replace(subject.target, checkpoint=None), chain, subject.seed)
    attacked = replace(subject, targets=(target,), defenses=chain)
    rows = list(attack.run(attacked, progress))
    advantage, auroc = (
        {
            name: row
            for name, variant in _ADVERSARIES.items()
            for row in rows
            if (row.metric, row.layer, row.variant) == (metric, None, variant)
        }
        for metric in ("advantage", "auroc")
    )
    return PropertyResult(setting, _accuracy(advantage["adaptive"].details), advantage, auroc)


def _accuracy(facts: dict[str, Any]) -> Measurement:
    tested = facts.get("test_accuracy") or {}
    if tested.get("metric") != "accuracy":
        raise NotApplicable(
            "the labels and the loss define no accuracy, which is what privacy is weighed against"
        )
    return Rows(Tradeoff).measured(
        "accuracy",
        tested["value"],
        interval=tested["interval"],
        confidence=tested["confidence"],
        n=tested["n"],
        details={"chance": tested["chance"], "rounds": facts["rounds"]},
    )


def property_rows(
    mechanism: DefenseGrid, played: Sequence[PropertyResult]
) -> Iterator[Measurement]:
    """Make rows of CAP with 1 − advantage as the distance, and of the curve's points."""
    rows = Rows(Tradeoff, {"mechanism": mechanism.text, "game": "property"})
    for name, variant in _ADVERSARIES.items():
        if all(name in point.advantage for point in played):
            yield _cap(played, name, rows.of(variant))
    yield from rows.skipped(_NO_PAPER, ["cap_paper"])
    for point in played:
        at: Variant = {**rows.variant, "setting": str(point.setting)}
        yield point.accuracy.model_copy(update={"variant": at})
        for by_adversary in (point.advantage, point.auroc):
            for name, row in by_adversary.items():
                update = {"audit": Tradeoff.name, "variant": {**at, **_ADVERSARIES[name]}}
                yield row.model_copy(update=update)


def _cap(played: Sequence[PropertyResult], adversary: str, rows: Rows) -> Measurement:
    """Compute (1/n) Σ Acc_m (1 − advantage_m); its interval is conservative."""
    points = [(_ends(point.accuracy), _ends(point.advantage[adversary])) for point in played]
    value, low, high = (
        sum(accuracy[a] * (1 - advantage[b]) for accuracy, advantage in points) / len(points)
        for a, b in ((0, 0), (1, 2), (2, 1))
    )
    return rows.measured(
        "cap",
        value,
        interval=(max(low, 0.0), min(high, 1.0)),
        n=len(points),
        details={
            "distance": "1 - advantage",
            "grid": [dict(point.setting.values) or str(point.setting) for point in played],
            "interval_over": "the ends of all points' intervals, which is cautious",
            "points": [
                {
                    "setting": str(point.setting),
                    "accuracy": point.accuracy.value,
                    "advantage": point.advantage[adversary].value,
                    "auroc": point.auroc[adversary].value,
                }
                for point in played
            ],
            "attack": played[0].advantage[adversary].details,
        },
    )


def _ends(row: Measurement) -> tuple[float, float, float]:
    mean = _value(row)
    return (mean.value, *(mean.interval or (mean.value, mean.value)))


def _value(row: Measurement) -> Value:
    assert row.value is not None
    return Value(row.value, row.interval)


def pairs(played: Sequence[PropertyResult]) -> dict[str, list[tuple[Value, Value]]]:
    """Return (accuracy, advantage) of every setting by adversary, for the picture."""
    return {
        name: [
            (_value(point.accuracy), _value(point.advantage[name]))
            for point in played
            if name in point.advantage
        ]
        for name in _ADVERSARIES
    }
